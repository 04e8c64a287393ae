"""Studies: cases that run at their best step sizes, and are compared in tables and figures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
import optax
from rich.table import Table

import dsgd
from dsgd import clusters, records
from dsgd.runs import tuning as search
from experiments.shared import commands, resuming, statistics, tuning

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
Build = Callable[..., dsgd.Algorithm]
History = dict[str, np.ndarray]  # with all seeds, [seeds, records]

RATE = "learning_rate"
SHARE = 0.5  # last part of a run on which step sizes are compared


class Case(NamedTuple):
    """A method; its step size is tuned.

    Args:
        build: (learning_rate, and the other names of `grid`) -> method.
        problem: the problem; its workers are distributed over as many devices as divide their
            number.
        cluster: the cluster; its clock is recorded in the history.
        steps, seeds: numbers of rounds and of independent runs; None: those of the flags.
        records: approximate number of records of a run; each evaluates the full objective.
        share: the last part of the run, over which losses are averaged.
        grid: candidates of hyperparameters by name, of which all combinations are tried;
            `learning_rate` is by default that of the flags.
        over: names in `grid` and `learning_rate` whose grids, of at least two numbers, are extended
            until the best value is at no edge, as by `dsgd.tune`: with the first seed, before the
            others run at the best values.
        cost: history -> what the best combination minimizes; None: the mean loss of the last part.
        convert: history -> the history that is kept.
    """

    build: Build
    problem: dsgd.Problem
    cluster: clusters.Cluster | None = None
    steps: int | None = None
    seeds: int | None = None
    records: int = 200
    share: float = SHARE
    grid: Mapping[str, Sequence[float]] = {}
    over: Sequence[str] = ()
    cost: Callable[[History], Any] | None = None
    convert: Callable[[History], History] = dict


class Tuned(NamedTuple):
    """A case at its best hyperparameters.

    Args:
        values: the hyperparameters by name.
        history: of all seeds, `[seeds, records]`.
        grid: the candidates of each hyperparameter.
    """

    values: Mapping[str, float]
    history: History
    grid: Mapping[str, Sequence[float]]

    def edge(self, name: str = RATE) -> str:
        """Returns a star if a hyperparameter is at an edge of its grid."""
        return statistics.edge(self.values[name], self.grid[name])

    def cell(self, name: str = RATE) -> str:
        """Returns a table's cell of a hyperparameter, with a star at an edge of its grid."""
        return f"{self.edge(name)}{self.values[name]:g}"

    @property
    def loss(self) -> float:
        """The mean loss over seeds and the last tenth of the run."""
        return float(dsgd.history.tail_mean(self.history["loss"]).mean())


def with_sgd(method: Build, *settings: Any, **options: Any) -> Build:
    """Returns the function learning_rate -> method with SGD.

    Args:
        method: (optimizer, settings, options) -> method.
        settings, options: its other arguments.
    """
    return lambda learning_rate: method(optax.sgd(learning_rate), *settings, **options)


def name_methods(*rows: tuple[Any, ...]) -> dict[str, Build]:
    """Returns methods with SGD by the names of their functions.

    Args:
        rows: the function of each method, and its arguments after the optimizer.
    """
    return {method.__name__: with_sgd(method, *settings) for method, *settings in rows}


def run(args: Any, what: str, cases: Mapping[K, Case], file: str = "history.csv") -> dict[K, Tuned]:
    """Starts a command, runs each case at its best step size, and writes their histories; cases
    that diverged at every step size are left out.

    Args:
        args: a command's arguments.
        what: label of the progress bar.
        cases: by key, of which `name` makes the names of the histories; two keys with one case
            share its runs.
        file: name of the file with the histories.

    Raises:
        ValueError: if a method refuses its arguments, problem or cluster, before anything runs; or
            if all cases diverged.
    """
    check(args, cases)
    commands.begin(args, (case.problem for case in cases.values()))
    return commands.collect(args, what, cases, partial(tune, args), write, args.out / file)


def check(args: Any, cases: Mapping[K, Case]) -> None:
    """Raises a ValueError if a method refuses its arguments, problem or cluster; nothing runs."""
    for case in cases.values():
        first = {name: values[0] for name, values in candidates(args, case).items()}
        dsgd.exchanges(case.build(**first), case.problem, cluster=case.cluster)


def candidates(args: Any, case: Case) -> dict[str, Sequence[float]]:
    """Returns the candidates of each hyperparameter."""
    return {RATE: args.learning_rates, **case.grid}


def tune(args: Any, case: Case) -> Tuned | None:
    """Runs a case at all its candidates, and returns the best; None if all diverged.

    Args:
        args: of a command, with the candidates `learning_rates`, `steps`, `seeds` (number of
            independent runs) and `seed` (of all random numbers).
        case: the case.
    """
    steps, grid = args.steps if case.steps is None else case.steps, candidates(args, case)
    key, seeds = jax.random.key(args.seed), args.seeds if case.seeds is None else case.seeds
    run = partial(
        resuming.sweep,
        case.build,
        case.problem,
        steps=steps,
        cluster=case.cluster,
        record_every=max(1, steps // case.records),
        mesh=tuning.devices_for(case.problem.workers),
    )
    if case.over:
        return _search(case, grid, run, jax.random.split(key, seeds))
    sweep = run(key=key, seeds=seeds, **grid)
    losses = dsgd.history.tail_mean(sweep.history["loss"], case.share)
    points = np.argwhere(np.isfinite(losses).all(axis=-1))
    found = [(sweep.point(at), sweep.at(at)) for at in map(tuple, points.tolist())]
    cost = case.cost or (lambda history: dsgd.history.tail_mean(history["loss"], case.share).mean())
    values, history = min(found, key=lambda each: cost(each[1]), default=({}, None))
    return None if history is None else Tuned(values, case.convert(history), grid)


def _search(
    case: Case, grid: Mapping[str, Sequence[float]], run: Callable[..., dsgd.Sweep], keys: jax.Array
) -> Tuned | None:
    """Returns a case at the best hyperparameters of a search beyond its grid; None if all diverged.
    Each run has one point and one seed, so that all of them share one program.

    Args:
        case: the case.
        grid: its first candidates.
        run: makes a sweep of the case.
        keys: of the seeds.
    """

    def each(grids: dict[str, np.ndarray]) -> list[dsgd.Sweep]:
        points = itertools.product(*grids.values())
        return [
            run(key=keys[0], **{name: [value] for name, value in zip(grids, point, strict=True)})
            for point in points
        ]

    costs = partial(search.costs_of, metric="loss", share=case.share, cost=case.cost)
    start = {name: np.array(values) for name, values in grid.items()}
    try:
        found = search.search(each, start, case.over, costs, pairs=False)
    except search.AllDiverged:
        return None
    fixed = {name: [value] for name, value in found.values.items()}
    histories = [found.history, *(run(key=key, **fixed).at((0,) * len(fixed)) for key in keys[1:])]
    joined = {
        column: values if column == "step" else np.concatenate([one[column] for one in histories])
        for column, values in found.history.items()
    }
    tried = {name: found.tried[name].tolist() for name in grid}
    return Tuned(found.values, case.convert(joined), tried)


def name(key: Any) -> str:
    """Returns the name of a case in files: its labels, separated by commas."""
    return ", ".join(key) if isinstance(key, tuple) else str(key)


def write(path: Path, found: Mapping[Any, Tuned]) -> None:
    """Writes the histories by the names of the cases, with columns of the hyperparameters."""
    records.write_histories(
        path,
        {
            name(key): one.history
            | {column: np.full(one.history["loss"].shape, x) for column, x in one.values.items()}
            for key, one in found.items()
        },
    )


def lines(
    found: Mapping[str, Tuned | None], x: str, y: str = "loss"
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns the lines of a figure, x `[records]` and y `[seeds, records]` by name.

    Args:
        found: outcomes by the names of the lines; None: it diverged, and its line has no points, so
            that the other lines keep their colours.
        x: a quantity of `statistics.COSTS`, or a column of the history, averaged over seeds.
        y: a column of the history.
    """
    cost = statistics.COSTS.get(x, lambda history: history[x].mean(axis=0))
    return {
        label: (cost(one.history), one.history[y]) if one else (np.ones(1), np.full((1, 1), np.nan))
        for label, one in found.items()
    }


def fill(table: Table, rows: Mapping[Any, T | None], cells: Callable[[T], Sequence[str]]) -> None:
    """Adds rows to a table.

    Args:
        table: the table.
        rows: outcome by label, or by labels; None: it diverged.
        cells: outcome -> the cells after the labels.
    """
    for key, one in rows.items():
        labels = key if isinstance(key, tuple) else (key,)
        rest = len(table.columns) - len(labels) - 1
        table.add_row(*labels, *(("diverged", *["-"] * rest) if one is None else cells(one)))
