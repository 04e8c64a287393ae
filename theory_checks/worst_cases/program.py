r"""The semidefinite program of a worst case.

Its variables are the blocks of the Gram matrix G of all inputs, and the values F of the workers'
functions at their points. All constraints and the measure are linear in (G, F), because inner
products of vectors are linear in G. There are functions of the class through given points,
gradients and values if and only if each pair of points of the same function satisfies

$$ f_i \ge f_j + \langle g_j, x_i - x_j \rangle + \frac{1}{2 (1 - \mu/L)} \Big( \frac1L |g_i -
g_j|^2 + \mu |x_i - x_j|^2 - \frac{2\mu}{L} \langle g_j - g_i, x_j - x_i \rangle \Big), $$

also for $\mu < 0$. For convex classes $\sum_n f_n'(x^\star) = 0$ is all there is to a minimizer of
f. Functions that are not convex satisfy $f(x) - |f'(x)|^2 / (2L) \ge f^\star = 0$ at every point,
and, for any points $x_n$ of the workers,

$$ \frac1N \sum_n \Big( f_n(x_n) - \frac{|f_n'(x_n)|^2}{2L} \Big) + \frac L2 \mathrm{Var}_n \Big(
x_n - \frac{f_n'(x_n)}{L} \Big) \ge 0. $$

These conditions are sufficient for one worker; for several, the value is an upper bound.

Source: Taylor, Hendrickx and Glineur, "Smooth strongly convex interpolation and exact worst-case
performance of first-order methods", 2017, Theorem 4.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from theory_checks.worst_cases.layout import Layout, Message
from theory_checks.worst_cases.measures import Measure, Over, measured_rounds
from theory_checks.worst_cases.sizes import Sizes
from theory_checks.worst_cases.symmetry import Basis


class Program(NamedTuple):
    r"""The program $\max c \cdot y$ subject to $A y \le b$ and $G_k \succeq 0$, with y = (svec
    $G_k$, F).

    svec stacks the columns of the upper triangle, with off-diagonal elements times $\sqrt 2$.

    Args:
        c, A, b: as above.
        sizes: the sizes of the blocks $G_k$.
        unit: the worst case is `unit` times the program's value.
    """

    c: np.ndarray
    A: Any
    b: np.ndarray
    sizes: list[int]
    unit: float

    @property
    def products(self) -> int:
        """The number of elements of y that belong to G; the others are values."""
        return sum(n * (n + 1) // 2 for n in self.sizes)


class Scales(NamedTuple):
    """Units of the variables F and of the measure, relative to those that follow from the class.

    Args:
        values: `[values]`.
        measure: of the measure.
    """

    values: Any
    measure: float

    def rescale(self, y: np.ndarray, objective: float, smallest: float) -> Scales:
        """Returns the units in which these variables and this objective are 1, but for a factor
        below `smallest` or above its inverse.
        """
        relative, size = np.clip(np.abs(y), smallest, 1 / smallest), abs(objective)
        return Scales(
            self.values * relative, self.measure * float(np.clip(size, smallest, 1 / smallest))
        )


class Assembly:
    """Collects the constraints of one run.

    Args:
        layout: its points.
        basis: the coordinates of its vectors.
        vectors: its coefficients, `[K, inputs]`.
        units: size of each input, `[inputs]`.
        delta: the contraction of the compressors; None: there are none.
        scales: units of the values and of the measure.
    """

    def __init__(
        self,
        layout: Layout,
        basis: Basis,
        vectors: np.ndarray,
        units: np.ndarray,
        delta: float | None,
        scales: Scales = Scales(1.0, 1.0),  # noqa: B008 (immutable)
    ) -> None:
        self.layout: Layout = layout
        self.basis: Basis = basis
        self.vectors: np.ndarray = vectors
        self.units: np.ndarray = units
        self._delta = delta
        self._products = sum(n * (n + 1) // 2 for n in basis.sizes)
        self._upper = [np.tril_indices(n) for n in basis.sizes]
        self._places, values = _value_places(layout, basis)
        self.values: int = values
        self._constraints: list[tuple[Any, np.ndarray]] = []
        self._height = layout.of.L * layout.of.radius**2  # the unit of values
        self.scales: Scales = scales
        self._heights = self._height * scales.values * np.ones(values)

    def program(self, measure: Measure, over: Over) -> Program:
        """Returns the program for a measure."""
        of = self.layout.of
        for n in self.basis.workers:
            self._interpolate(n)
        self._bound_start()
        if of.convex:
            self._bound_optimum()
        else:
            self._bound_below()
        if of.where != "optimum":
            self._bound_path()
        for message in self.layout.messages:
            if self.basis.symmetry == "none" or not message.owner:
                self._contract(message)
        unit, products, values = self._measures(measure, measured_rounds(over, self.layout.rows.T))
        if over == "best":
            return self._smallest(unit, products, values)
        c = np.concatenate([products.mean(axis=0), values.mean(axis=0)]) / unit
        return self._stack(c, unit)

    # --- Inner products and values as linear functions of the variables.

    def _product(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Returns the inner products of vectors `[..., inputs]` as coefficients of svec(G)."""
        parts = []
        coordinates = map(self.basis.coordinates, (u, v))
        for (j, i), of_u, of_v in zip(self._upper, *coordinates, strict=True):
            both = np.einsum("...mi,...mj->...ij", of_u, of_v)
            factor = np.where(i == j, 0.5, np.sqrt(0.5))
            parts.append((both[..., i, j] + both[..., j, i]) * factor)
        return np.concatenate(parts, axis=-1)

    def _square(self, v: np.ndarray) -> np.ndarray:
        return self._product(v, v)

    def value(self, n: int, point: int) -> np.ndarray:
        """Returns the value of worker n's function at a point as coefficients of F."""
        coefficients = np.zeros(self.values)
        worker = n if self.basis.symmetry == "none" else 0
        place = self._places[worker, point]
        coefficients[place] = self._heights[place]
        return coefficients

    def value_bounds(self, bounds: Sizes, measure: Measure, over: Over) -> np.ndarray:
        """Returns bounds on the absolute values of the program's variables F."""
        found = np.zeros(self.values)
        for (n, point), place in self._places.items():
            found[place] = max(found[place], bounds.value(n, point) / self._heights[place])
        if over != "best":
            return found
        # The smallest measure is at most the one of the start.
        return np.append(found, bounds.measure(measure, 0) / self._unit(measure))

    def _objective(self, t: int) -> np.ndarray:
        """Returns f at the model of round t as coefficients of F."""
        N = self.layout.rows.N
        return (
            sum(
                (self.value(n, self.layout.evaluated[t, n]) for n in range(N)),
                np.zeros(self.values),
            )
            / N
        )

    def _gradient(self, n: int, point: int) -> np.ndarray:
        return self._input(self.layout.points[n][point].gradient)

    def _input(self, number: int) -> np.ndarray:
        unit = np.zeros(self.vectors.shape[1])
        unit[number] = 1
        return unit

    def _gradients(self, t: int) -> np.ndarray:
        """Returns the gradients of all workers at the model of round t, `[N, inputs]`."""
        N = self.layout.rows.N
        return np.stack([self._gradient(n, self.layout.evaluated[t, n]) for n in range(N)])

    def _add(self, products: np.ndarray, values: np.ndarray, most: float, scale: float) -> None:
        """Adds constraints products . svec(G) + values . F <= most, divided by their scale."""
        rows = np.concatenate([np.atleast_2d(products), np.atleast_2d(values)], axis=1) / scale
        self._constraints.append((scipy.sparse.csr_matrix(rows), np.full(len(rows), most / scale)))

    def _add_products(self, products: np.ndarray, most: float, scale: float) -> None:
        nothing = np.zeros((len(np.atleast_2d(products)), self.values))
        self._add(products, nothing, most, scale)

    # --- Constraints.

    def _interpolate(self, n: int) -> None:
        """Adds the interpolation conditions of worker n's function."""
        of, points = self.layout.of, self.layout.points[n]
        x = self.vectors[[point.row for point in points]]
        g = np.stack([self._input(point.gradient) for point in points])
        f = np.stack([self.value(n, number) for number in range(len(points))])
        if of.convex:
            at_optimum = self._input(self.layout.optimum[n]) if self.layout.optimum else 0 * x[0]
            x, f = (np.concatenate([rows, 0 * rows[:1]]) for rows in (x, f))
            g = np.concatenate([g, at_optimum[None]])
        L, mu = of.L, of.mu
        i, j = np.nonzero(~np.eye(len(x), dtype=bool))
        step, change = x[i] - x[j], g[i] - g[j]
        curvature = (
            self._square(change) / L
            + mu * self._square(step)
            - 2 * mu / L * self._product(change, step)
        ) / (2 * (1 - mu / L))
        self._add(self._product(g[j], step) + curvature, f[j] - f[i], 0.0, self._height)

    def _bound_start(self) -> None:
        of = self.layout.of
        if of.distance is not None:
            start = self._square(self._input(0))
            self._add_products(start, of.distance**2, of.radius**2)
        if of.gap is not None:
            self._add(np.zeros(self._products), self._objective(0), of.gap, self._height)

    def _bound_optimum(self) -> None:
        of, optimum = self.layout.of, self.layout.optimum
        if optimum and of.where != "average":
            squares = self._square(np.stack([self._input(each) for each in optimum]))
            scale = (of.L * of.radius) ** 2
            self._add_products(squares.mean(axis=0), of.heterogeneity**2, scale)

    def _bound_below(self) -> None:
        """Adds the conditions for f* = 0 of functions that are not convex."""
        L, (T, Q, N, _) = self.layout.of.L, self.layout.rows
        for t in self.layout.rounds:
            square = self._square(self._gradients(t).mean(axis=0))
            self._add(square / (2 * L), -self._objective(t), 0.0, self._height)
        for t, q in itertools.product(range(T), range(Q)):
            numbers = [self.layout.queried.get((t, q, n)) for n in range(N)]
            if N > 1 and None not in numbers:
                self._bound_below_at(numbers)

    def _bound_below_at(self, numbers: list) -> None:
        """Adds the condition for one point of each worker."""
        L, points = self.layout.of.L, self.layout.points
        gradients = np.stack([self._gradient(n, i) for n, i in enumerate(numbers)])
        x = self.vectors[[points[n][i].row for n, i in enumerate(numbers)]]
        lowest = x - gradients / L
        variance = self._square(lowest - lowest.mean(axis=0)).mean(axis=0)
        squares = self._square(gradients).mean(axis=0) / (2 * L)
        values = np.mean([self.value(n, i) for n, i in enumerate(numbers)], axis=0)
        self._add(squares - L / 2 * variance, -values, 0.0, self._height)

    def _bound_path(self) -> None:
        """Adds the bounds on the heterogeneity at the models."""
        of, T = self.layout.of, self.layout.rows.T
        deviations = []
        for t in range(T):
            gradients = self._gradients(t)
            deviations.append(self._square(gradients - gradients.mean(axis=0)).mean(axis=0))
        bounded = np.stack(deviations)
        if of.where == "average":
            bounded = bounded.mean(axis=0)
        self._add_products(bounded, of.heterogeneity**2, (of.L * of.radius) ** 2)

    def _contract(self, message: Message) -> None:
        r"""Adds $|e|^2 \le (1 - \delta) |v|^2$."""
        assert self._delta is not None
        error = self._square(self._input(message.error))
        vector = self._square(self.vectors[message.row])
        scale = self.units[message.error] ** 2
        self._add_products(error - (1 - self._delta) * vector, 0.0, scale)

    # --- The measure.

    def _measures(
        self, measure: Measure, rounds: list[int]
    ) -> tuple[float, np.ndarray, np.ndarray]:
        """Returns the unit of a measure, and the measure before each of the rounds as coefficients
        of svec(G), `[rounds, products]`, and of F, `[rounds, values]`.
        """
        N = self.layout.rows.N
        unit = self._unit(measure)
        if measure == "gap":
            values = np.stack([self._objective(t) for t in rounds])
            return unit, np.zeros((len(rounds), self._products)), values
        if measure == "gradient":
            squares = [self._square(self._gradients(t).mean(axis=0)) for t in rounds]
        elif measure == "distance":
            squares = [self._square(self._model(t)) for t in rounds]
        else:
            squares = []
            for t in rounds:
                local = self.vectors[[self.layout.rows.local_model(t, n) for n in range(N)]]
                squares.append(self._square(local - local.mean(axis=0)).mean(axis=0))
        return unit, np.stack(squares), np.zeros((len(rounds), self.values))

    def _unit(self, measure: Measure) -> float:
        """Returns the size of a measure, by which the program is scaled."""
        return self.scales.measure * self.layout.of.unit(measure)

    def _model(self, t: int) -> np.ndarray:
        return self.vectors[self.layout.rows.model(t)]

    def _smallest(self, unit: float, products: np.ndarray, values: np.ndarray) -> Program:
        """Returns the program for the smallest of several measures, with one more variable that is
        at most each of them.
        """
        epigraph = np.concatenate([-products, -values, np.full((len(values), 1), unit)], axis=1)
        c = np.zeros(epigraph.shape[1])
        c[-1] = 1
        for i, (A, b) in enumerate(self._constraints):
            column = scipy.sparse.csr_matrix((len(b), 1))
            self._constraints[i] = scipy.sparse.hstack([A, column], format="csr"), b
        rows = scipy.sparse.csr_matrix(epigraph / unit)
        self._constraints.append((rows, np.zeros(len(epigraph))))
        return self._stack(c, unit)

    def _stack(self, c: np.ndarray, unit: float) -> Program:
        A, b = zip(*self._constraints, strict=True)
        stacked = scipy.sparse.vstack(A, format="csc")
        return Program(c, stacked, np.concatenate(b), self.basis.sizes, unit)


def _value_places(layout: Layout, basis: Basis) -> tuple[dict[tuple[int, int], int], int]:
    """Returns the place in F of each worker's value at each point, and their number. Functions that
    are not convex have equal values at the start, since a constant in each does not matter.
    """
    places: dict[tuple[int, int], int] = {}
    at_start = None
    for n in basis.workers:
        for number in range(len(layout.points[n])):
            common = not layout.of.convex and layout.evaluated.get((0, n)) == number
            if common and at_start is not None:
                places[n, number] = at_start
                continue
            places[n, number] = len(set(places.values()))
            at_start = places[n, number] if common else at_start
    return places, len(set(places.values()))
