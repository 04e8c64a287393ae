"""`tune` searches the hyperparameters of a method beyond a grid."""

from __future__ import annotations

import bisect
import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsgd import checks, modes
from dsgd.base import Algorithm, Key, Problem
from dsgd.runs.history import History
from dsgd.runs.results import Result
from dsgd.runs.sweeps import (
    Sweep,
    default_metric,
    grid_values,
    largest_is_best,
    point_costs,
    sweep,
)

Point = tuple[float, ...]  # one value for each grid
Run = Callable[[dict[str, np.ndarray]], Iterable[Sweep]]


class AllDiverged(ValueError):
    """Every point of a search diverged."""


class Tuned(NamedTuple):
    """Result of `tune`.

    Args:
        values: the best hyperparameters by name.
        cost: what they minimize, averaged over the seeds: rounds, the metric at the end (its
            negative if the largest is best), or the given cost. It is infinite if no point reaches
            the target.
        result: the runs at the best hyperparameters, with all seeds.
        tried: the values of all points by name, and their `cost`, each `[points]`.
    """

    values: dict[str, float]
    cost: float
    result: Result
    tried: dict[str, np.ndarray]

    def __repr__(self) -> str:
        values = ", ".join(f"{name} = {value:.4g}" for name, value in self.values.items())
        return f"Tuned({values}; cost {self.cost:.6g}, {len(self.tried['cost'])} points)"

    @property
    def history(self) -> History:
        """The history at the best hyperparameters, with arrays `[seeds, records]`."""
        return self.result.history


@checks.arguments
@modes.outermost
def tune(
    factory: Callable[..., Algorithm],
    problem: Problem,
    *,
    steps: int,
    key: Key,
    over: str | Sequence[str] = "learning_rate",
    metric: str | None = None,
    largest: bool | None = None,
    share: float = 0.1,
    until: float | None = None,
    cost: Callable[[History], Any] | None = None,
    refinements: int = 0,
    extensions: int = 10,
    **options: Any,
) -> Tuned:
    r"""Runs a sweep, extends its grid until the best value is not at an edge, and then bisects
    around the best.

    A point is accepted if both neighbours of each of its values have been tried, at the best of the
    other hyperparameters. Beyond the edges of a grid, neighbours continue it with the ratio of its
    last two values. A refinement tries the geometric means of the best value and its neighbours, so
    that k refinements of a grid with the ratio r find the step size up to a factor $r^{2^{-k}}$, if
    the cost has one minimum.

        found = dsgd.tune(
            lambda learning_rate: algorithms.ef21(optax.sgd(learning_rate), compressors.top_k(0.1)),
            problem, steps=500, key=0, metric="gap", until=1e-6, refinements=5,
            learning_rate=step * 2.0 ** np.arange(4),  # factors of a theoretical step size
        )
        print(found.values, found.cost)

    Args:
        factory, problem, steps, key: as in `dsgd.sweep`.
        over: names of the grids that are extended and refined, of at least two positive numbers
            each. The others keep their values.
        metric, largest, share, until: as in `Sweep.best`.
        cost: (history of a point, arrays `[seeds, records]`) -> what the best point minimizes, a
            number or `[seeds]`, infinite to reject the point; None: the rounds to `until`, or the
            metric.
        refinements: number of bisections of each grid in `over`.
        extensions: largest number of sweeps beyond the grid, of two points each.
        options: other arguments of `dsgd.sweep`, and the grids.

    Returns:
        The best hyperparameters with their runs. If their neighbours were not tried within
        `extensions`, a warning is issued.

    Raises:
        ValueError: if a grid in `over` is not one of those given or has fewer than two values or
            numbers that are not positive; both `until` and `cost` are given; every point diverges;
            and as for `dsgd.sweep` and `Sweep.best`.
    """
    known = inspect.signature(sweep).parameters
    grid = {name: grid_values(name, given) for name, given in options.items() if name not in known}
    rest = {name: given for name, given in options.items() if name in known}
    names = [over] if isinstance(over, str) else list(over)
    for name in names:
        values = grid.get(name, np.zeros(0))
        if len(values) < 2 or not (values > 0).all() or values.dtype.kind != "f":
            given = checks.show(values.tolist()) if name in grid else "no grid"
            raise ValueError(
                f"tune: {given} of {name!r} in over; expected a grid of at least two positive "
                "numbers, such as learning_rate=[0.01, 0.1, 1.0]"
            )
    if until is not None and cost is not None:
        raise ValueError("tune: until and cost are given; expected one of them")
    refinements = checks.natural("tune: refinements", refinements)
    extensions = checks.natural("tune: extensions", extensions)
    metric = default_metric(problem.regularizer is not None) if metric is None else metric
    largest_is_best(metric, largest, "tune")

    def run(points: dict[str, np.ndarray]) -> list[Sweep]:
        given: dict[str, Any] = rest | points
        return [sweep(factory, problem, steps=steps, key=key, **given)]

    def costs(found: Sweep) -> list[np.ndarray]:
        return costs_of(found, metric, share, largest, until, cost)

    return search(run, grid, names, costs, refinements, extensions)


def costs_of(
    found: Sweep,
    metric: str,
    share: float = 0.1,
    largest: bool | None = None,
    until: float | None = None,
    cost: Callable[[History], Any] | None = None,
) -> list[np.ndarray]:
    """Returns what `tune` minimizes at the points of a sweep, as `point_costs` does."""
    ends = point_costs("tune", found.history, metric, share, largest, until)
    if cost is None:
        return ends
    given = np.full(ends[-1].shape, np.inf)
    for at in map(tuple, np.argwhere(np.isfinite(ends[-1])).tolist()):
        given[at] = np.mean(np.asarray(cost(found.at(at)), float))
    return [np.where(np.isnan(given), np.inf, given), ends[-1]]


def search(
    run: Run,
    grid: Mapping[str, np.ndarray],
    over: Sequence[str],
    costs: Callable[[Sweep], list[np.ndarray]],
    refinements: int = 0,
    extensions: int = 10,
    pairs: bool = True,
) -> Tuned:
    """Returns the outcome of `tune`.

    Args:
        run: grids by name -> sweeps of parts of all their points.
        grid: the first grids.
        over, refinements, extensions: as in `tune`.
        costs: as `costs_of`.
        pairs: whether a sweep beyond the grid always has two points, so that all of them share one
            program; False: only those that are needed.
    """
    axes = _Axes(grid, over, pairs)
    axes.add(run(dict(grid)), costs)
    left = extensions
    while left and (more := axes.missing()):
        axes.add(run(more), costs)
        left -= 1
    axes.warn_at_edges()
    for _ in range(refinements):
        for name in over:
            if more := axes.halves(name):
                axes.add(run(more), costs)
    return axes.best()


class _Axes:
    """The points that have been tried, and the values of each hyperparameter in order.

    Args:
        grid: the first values by name.
        over: names of the hyperparameters with values that can be extended.
        pairs: as in `search`.
    """

    def __init__(self, grid: Mapping[str, np.ndarray], over: Sequence[str], pairs: bool) -> None:
        self.pairs: bool = pairs
        self.names: list[str] = list(grid)
        self.over: Sequence[str] = over
        self.values: dict[str, list[float]] = {
            name: sorted(set(values.tolist())) for name, values in grid.items()
        }
        self.dtypes: dict[str, np.dtype] = {name: each.dtype for name, each in grid.items()}
        # ratios of the two smallest and of the two largest values
        self.ratios: dict[str, tuple[float, float]] = {
            name: (self.values[name][1] / self.values[name][0], self._last_ratio(name))
            for name in over
            if len(self.values[name]) > 1
        }
        self.tried: dict[Point, tuple[float, ...]] = {}
        self.kept: tuple[Point, Sweep, tuple[int, ...]] | None = None

    def _last_ratio(self, name: str) -> float:
        return self.values[name][-1] / self.values[name][-2]

    def add(self, sweeps: Iterable[Sweep], costs: Callable[[Sweep], list[np.ndarray]]) -> None:
        """Records the points of sweeps."""
        before = self._first()
        for found in sweeps:
            by_point = costs(found)
            for at in np.ndindex(by_point[0].shape):
                point = tuple(found.point(at)[name] for name in self.names)
                for name, value in zip(self.names, point, strict=True):
                    if value not in self.values[name]:
                        bisect.insort(self.values[name], value)
                self.tried[point] = tuple(float(cost[at]) for cost in by_point)
                if self._first() == point != before:
                    before, self.kept = point, (point, found, at)

    def _first(self) -> Point | None:
        """The best point; if all diverged, the one with the smallest values."""
        return min(self.tried, key=lambda point: (self.tried[point], point), default=None)

    def missing(self) -> dict[str, np.ndarray] | None:
        """Returns grids with two points next to the best one that have not been tried; None: its
        neighbours have been tried, or the cost does not depend on the values.
        """
        point = self._first()
        assert point is not None
        for i, name in enumerate(self.names):
            line = [
                cost
                for each, cost in self.tried.items()
                if each[:i] + each[i + 1 :] == point[:i] + point[i + 1 :]
            ]
            if len(line) > 2 and len(set(line)) == 1 and math.isfinite(line[0][-1]):
                continue
            sides = {side: self._beyond(name, point[i], side) for side in (-1, 1)}
            untried = {
                side: value
                for side, value in sides.items()
                if value is not None and self._at(point, i, value) not in self.tried
            }
            if self.pairs and len(untried) == 1 and name in self.over:
                # another step in the same direction
                ((side, value),) = untried.items()
                more = self._beyond(name, value, side)
                untried |= {2: more} if self._at(point, i, more) not in self.tried else {}
            if untried:
                return self._line(point, i, untried.values())
        return None

    def warn_at_edges(self) -> None:
        """Warns if the best point has neighbours that have not been tried."""
        first = self._first()
        if first is None or not math.isfinite(self.tried[first][-1]):
            return
        if more := self.missing():
            wanted = ", ".join(f"{name} = {values.tolist()}" for name, values in more.items())
            warnings.warn(
                f"tune: the best point is at an edge of those tried; {wanted} may be better; "
                "expected more extensions, or grids nearer to the best values",
                stacklevel=5,
            )

    def halves(self, name: str) -> dict[str, np.ndarray] | None:
        """Returns grids with the geometric means of the best value and its neighbours; None: it has
        no neighbours.
        """
        point = self._first()
        assert point is not None
        i = self.names.index(name)
        at = self.values[name].index(point[i])
        near = self.values[name][max(at - 1, 0) : at] + self.values[name][at + 1 : at + 2]
        means = [self._round(name, math.sqrt(point[i] * value)) for value in near]
        new = [mean for mean in means if self._at(point, i, mean) not in self.tried]
        return self._line(point, i, new) if new else None

    def best(self) -> Tuned:
        """Returns the best point.

        Raises:
            AllDiverged: if all points diverged.
        """
        point = self._first()
        if self.kept is None or point is None or not math.isfinite(self.tried[point][-1]):
            values = ", ".join(f"{name} = {self.values[name]}" for name in self.names)
            raise AllDiverged(
                f"tune: every point of {values} diverged; expected at least one finite result; try "
                "smaller step sizes"
            )
        _, found, at = self.kept
        points = np.array(list(self.tried))
        tried = {name: points[:, i] for i, name in enumerate(self.names)}
        tried["cost"] = np.array([cost[0] for cost in self.tried.values()])
        values = dict(zip(self.names, point, strict=True))
        return Tuned(values, self.tried[point][0], found.result(at), tried)

    def _beyond(self, name: str, value: float, side: int) -> Any:
        """Returns the next value on a side (1: larger); None: there is none."""
        values = self.values[name]
        beyond = [each for each in values if (each - value) * side > 0]
        if beyond:
            return min(beyond, key=lambda each: abs(each - value))
        if name not in self.ratios:
            return None
        low, high = self.ratios[name]
        return self._round(name, value * high if side > 0 else value / low)

    def _round(self, name: str, value: float) -> float:
        """Returns the value in the type of the grid, in which tried points are recognized."""
        return np.asarray(value, self.dtypes[name]).item()

    @staticmethod
    def _at(point: Point, i: int, value: float) -> Point:
        return (*point[:i], value, *point[i + 1 :])

    def _line(self, point: Point, i: int, values: Any) -> dict[str, np.ndarray]:
        """Returns grids with these values of hyperparameter i, and the others of a point."""
        return {
            name: np.array(sorted(values) if k == i else [point[k]], self.dtypes[name])
            for k, name in enumerate(self.names)
        }
