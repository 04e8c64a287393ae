"""`best_step` finds the step size with the smallest worst case, by its derivative."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import scipy.optimize

from dsgd import checks
from dsgd.base import Algorithm, Key
from theory_checks.worst_cases.analysis import Analysis, WorstCase
from theory_checks.worst_cases.classes import Smooth
from theory_checks.worst_cases.coefficients import Values
from theory_checks.worst_cases.measures import Measure, Over

Range = tuple[float, float]
_FIRST = {1: 6}  # values of each hyperparameter that are tried first, by their number; else 3
_ACCURACY = 1e-6  # relative, of the worst case
_STEPS = 30  # of the search after the grid
_NARROW = 1e-4  # radius at which the search ends, as a share of the range


class BestStep(NamedTuple):
    """The hyperparameters with the smallest worst case.

    Args:
        hyperparameters: their values by name.
        worst: the worst case there.
        tried: the worst cases of all hyperparameters that were tried, in order; infinite if the
            solver failed.
    """

    hyperparameters: dict[str, float]
    worst: WorstCase
    tried: list[tuple[dict[str, float], float]]


@checks.arguments
def best_step(
    method: Callable[..., Algorithm],
    functions: Smooth,
    *,
    steps: int,
    measure: Measure = "gap",
    over: Over = "last",
    workers: int | None = None,
    delta: float | None = None,
    key: Key | None = None,
    **ranges: tuple[float, float],
) -> BestStep:
    r"""Finds the step size, or several hyperparameters, with the smallest worst case.

    A grid of 6 values (for several hyperparameters, 3 of each) is followed by a search with
    derivatives, which follow from the multipliers of each solution: each step minimizes the maximum
    of the tangents at the points near the best one. The search is local, and ends after 30 steps,
    or if the tangents predict no improvement of more than 1e-6.

    Args:
        method, functions, steps, measure, over, workers, delta, key: as in `worst_case`.
        ranges: the smallest and the largest value of each hyperparameter, such as `rate=(0.01,
            2.0)`. It is searched on a logarithmic scale if the smallest value is positive.

    Raises:
        ImportError: if Clarabel is not installed.
        ValueError: as in `worst_case`; if a range is not one; or if the solver fails everywhere.
    """
    if not ranges:
        raise ValueError("best_step: no hyperparameter; expected a range, such as rate=(0.01, 2.0)")
    scales = {name: _scale(name, bounds) for name, bounds in ranges.items()}
    middle = {name: scale.value(0.5) for name, scale in scales.items()}
    analysis = Analysis.from_method(
        method,
        functions,
        middle,
        steps=steps,
        measure=measure,
        over=over,
        workers=workers,
        delta=delta,
        key=key,
    )
    search = _Search(analysis, scales)
    shares = np.linspace(0, 1, _FIRST.get(len(scales), 3))
    for point in itertools.product(shares, repeat=len(scales)):
        search.evaluate(np.array(point))
    if not math.isfinite(search.best[1]):
        raise ValueError(
            f"best_step: the solver failed at all {len(search.tried)} points of the grid; expected "
            "ranges with a finite worst case, such as smaller steps"
        )
    _descend(search, radius=float(shares[1]))
    values = search.values(search.best[0])
    return BestStep(
        values,
        analysis.attain(analysis.solve(values), values),
        [(search.values(np.array(point)), one.height) for point, one in search.tried.items()],
    )


class _Scale(NamedTuple):
    """The scale on which a hyperparameter is searched, from 0 to 1."""

    low: float
    high: float

    def value(self, share: float) -> float:
        if self.low > 0:
            return float(self.low * (self.high / self.low) ** share)
        return float(self.low + share * (self.high - self.low))

    def slope(self, share: float) -> float:
        """Returns the derivative of the value by the share."""
        if self.low > 0:
            return self.value(share) * math.log(self.high / self.low)
        return self.high - self.low


def _scale(name: str, bounds: Range) -> _Scale:
    pair = (
        isinstance(bounds, list | tuple) and len(bounds) == 2 and all(map(checks.is_number, bounds))
    )
    if not pair or not 0 <= bounds[0] < bounds[1] < math.inf:
        raise ValueError(
            f"best_step: {name} = {checks.show(bounds)}; expected a range (smallest, largest) of "
            "numbers that are at least 0"
        )
    return _Scale(*bounds)


class _Tried(NamedTuple):
    """A point with its worst case and the gradient, zeros if the worst case is infinite."""

    height: float
    slope: np.ndarray


@dataclass(eq=False)
class _Search:
    """Evaluates worst cases at points of the unit cube, and keeps them."""

    analysis: Analysis
    scales: dict[str, _Scale]
    tried: dict[tuple[float, ...], _Tried] = field(default_factory=dict)

    @property
    def best(self) -> tuple[np.ndarray, float]:
        point, one = min(self.tried.items(), key=lambda pair: pair[1].height)
        return np.array(point), one.height

    def values(self, point: np.ndarray) -> Values:
        pairs = zip(self.scales.items(), point, strict=True)
        return {name: scale.value(float(share)) for (name, scale), share in pairs}

    def evaluate(self, point: np.ndarray) -> float:
        """Evaluates the worst case and its gradient at a point."""
        values = self.values(point)
        try:
            solved = self.analysis.solve(values)
        except ValueError:  # the solver fails if the method diverges
            tried = _Tried(math.inf, np.zeros(len(point)))
        else:
            slopes = [
                self.analysis.slope(solved, values, name) * scale.slope(float(share))
                for (name, scale), share in zip(self.scales.items(), point, strict=True)
            ]
            tried = _Tried(solved.solution.value, np.array(slopes))
        self.tried[tuple(map(float, point))] = tried
        return tried.height


def _descend(search: _Search, radius: float) -> None:
    """Minimizes the maximum of tangents, within a radius that follows from their quality."""
    most = len(search.tried) + _STEPS
    while len(search.tried) < most and radius > _NARROW:
        height = search.best[1]
        new, predicted = _lowest(search, radius)
        if height - predicted <= _ACCURACY * abs(height):
            radius /= 4  # tangents at points that are nearer may predict an improvement
            continue
        gained = height - search.evaluate(new)
        radius *= 2 if gained > 0.5 * (height - predicted) else 0.5


def _lowest(search: _Search, radius: float) -> tuple[np.ndarray, float]:
    """Returns the minimum of the maximum of tangents within the radius, and its value.

    The worst case need not be convex: tangents at points farther than twice the radius, and those
    that exceed the smallest value at its point, are left out.
    """
    best, height = search.best
    tangents = [
        (one.slope, one.height + one.slope @ (best - np.array(point)))
        for point, one in search.tried.items()
        if math.isfinite(one.height) and np.abs(np.array(point) - best).max() <= 2 * radius
    ]
    slopes, at_best = map(np.array, zip(*(t for t in tangents if t[1] <= height), strict=True))
    # Variables are the step and the height z >= at_best + slope . step.
    bounds = [(max(-radius, -at), min(radius, 1 - at)) for at in best]
    solved = scipy.optimize.linprog(
        np.append(np.zeros(len(best)), 1.0),
        A_ub=np.column_stack([slopes, -np.ones(len(slopes))]),
        b_ub=-at_best,
        bounds=[*bounds, (None, None)],
    )
    return np.clip(best + solved.x[:-1], 0, 1), float(solved.x[-1])
