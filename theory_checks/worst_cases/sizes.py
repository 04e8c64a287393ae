r"""Bounds on the norms of all inputs and on all values, for any functions of the class.

They follow from $|f_n'(x)| \le |f_n'(x^\star)| + L |x - x^\star|$ (for functions that are not
convex, from the gradients at the start), from the contraction of the compressors, and from the
triangle inequality, in the order in which the inputs arise. The certificate needs them: they bound
what a solution that violates the dual constraints by rounding may lose.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from theory_checks.worst_cases.layout import Layout
from theory_checks.worst_cases.measures import Measure
from theory_checks.worst_cases.symmetry import Basis

_NOTHING = 1e-12  # coefficients below this are rounding errors


class Sizes(NamedTuple):
    """Bounds for one run.

    Args:
        layout: its points.
        vectors: its coefficients, `[K, inputs]`.
        inputs: bounds on the norms of the inputs, `[inputs]`.
    """

    layout: Layout
    vectors: np.ndarray
    inputs: np.ndarray

    def norm(self, vector: np.ndarray) -> float:
        """Returns a bound on the norm of a vector with these coefficients."""
        return float(np.abs(vector) @ self.inputs)

    def value(self, n: int, point: int) -> float:
        """Returns a bound on the absolute value of worker n's function at a point."""
        of, x = self.layout.of, self.norm(self.vectors[self.layout.points[n][point].row])
        if of.convex:
            gradient = self.inputs[self.layout.optimum[n]] if self.layout.optimum else 0.0
            return gradient * x + of.L / 2 * x**2
        return (of.gap or 0.0) + _gradient_at_start(self.layout) * x + of.L / 2 * x**2

    def measure(self, measure: Measure, t: int) -> float:
        """Returns a bound on a measure of the model of round t."""
        layout, rows = self.layout, self.layout.rows
        workers = range(rows.N)
        if measure == "distance":
            return self.norm(self.vectors[rows.model(t)]) ** 2
        if measure == "consensus":
            local = self.vectors[[rows.local_model(t, n) for n in workers]]
            return float(np.mean([self.norm(each) ** 2 for each in local - local.mean(axis=0)]))
        at = [layout.evaluated[t, n] for n in workers]
        if measure == "gap":
            return float(np.mean([self.value(n, at[n]) for n in workers]))
        norms = [self.inputs[layout.points[n][at[n]].gradient] for n in workers]
        return float(np.mean(norms)) ** 2

    def trace(self, basis: Basis, units: np.ndarray) -> float:
        """Returns a bound on the sum of the traces of the blocks, each times its number of modes,
        which is the sum of the squared norms of all inputs.
        """
        used = np.zeros(len(units), bool)
        for block in basis.blocks:
            used |= np.any(block, axis=(0, 2))
        return float(np.sum((self.inputs[used] / units[used]) ** 2)) * basis.growth


def sizes(layout: Layout, vectors: np.ndarray, delta: float | None) -> Sizes:
    """Returns bounds for a run.

    Args:
        layout, vectors: of the run.
        delta: the contraction of the compressors; None: there are none.
    """
    of, N = layout.of, layout.rows.N
    bounds, known = np.zeros(vectors.shape[1]), np.zeros(vectors.shape[1], bool)
    if of.convex:
        bounds[0], known[0] = of.radius, True
        bounds[layout.optimum], known[layout.optimum] = _gradient_at_optimum(layout), True
    waiting = []
    for n, points in enumerate(layout.points):
        offset = bounds[layout.optimum[n]] if layout.optimum else 0.0
        offset = offset if of.convex else _gradient_at_start(layout)
        waiting += [(point.gradient, point.row, of.L, offset) for point in points]
    contraction = np.sqrt(1 - (1.0 if delta is None else delta))
    waiting += [(message.error, message.row, contraction, 0.0) for message in layout.messages]
    while waiting:
        later = []
        for entry in waiting:
            new, row, factor, offset = entry
            if np.any(vectors[row, ~known]):
                later.append(entry)
            else:
                bounds[new] = factor * (np.abs(vectors[row]) @ bounds) + offset
                known[new] = True
        assert len(later) < len(waiting), "a point depends on its own gradient"
        waiting = later
    assert len(layout.points) == N
    return Sizes(layout, vectors, bounds)


def units(layout: Layout, vectors: np.ndarray) -> np.ndarray:
    """Returns a typical size of each input, `[inputs]`, by which the program is scaled."""
    of = layout.of
    found = np.full(vectors.shape[1], float(of.L * of.radius))
    if of.convex:
        found[0] = of.radius
    for message in layout.messages:
        # Errors of earlier messages have the size of the vectors that they belong to.
        sources = np.abs(vectors[message.row]) * found
        sources[[other.error for other in layout.messages]] = 0
        found[message.error] = sources.max() if sources.max() > _NOTHING else of.L * of.radius
    return found


def _gradient_at_optimum(layout: Layout) -> float:
    """Returns a bound on each worker's gradient at the optimum."""
    of, (T, _, N, _) = layout.of, layout.rows
    if of.where == "average":  # from the gradients at the start
        return np.sqrt(N * T) * of.heterogeneity + 2 * of.L * of.radius
    return np.sqrt(N) * of.heterogeneity


def _gradient_at_start(layout: Layout) -> float:
    """Returns a bound on each worker's gradient at the start, for functions that are not convex."""
    of, (T, _, N, _) = layout.of, layout.rows
    assert of.gap is not None
    times = 0 if N == 1 else N * (T if of.where == "average" else 1)
    return np.sqrt(2 * of.L * of.gap) + np.sqrt(times) * of.heterogeneity
