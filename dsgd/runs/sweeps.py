"""`sweep`: a grid of hyperparameters times seeds as one compiled program."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dsgd import array_likes, checks, modes, sameness
from dsgd.base import Algorithm, Key, Params, Problem, PyTree, State
from dsgd.clusters import Cluster
from dsgd.machines import arrays, forks
from dsgd.runs import chunks, plans, traced
from dsgd.runs.feed import Feed
from dsgd.runs.history import History, evaluated
from dsgd.runs.interrupts import Interrupted
from dsgd.runs.jobs import Job


class Sweep(NamedTuple):
    """What a sweep gives back. A run whose loss became infinite or NaN keeps its history; the sweep
    goes on.

    Args:
        grid: the values by name, in the order of the leading axes.
        history: as in `Result`, `[grid ..., seeds, records]` (of one number a worker,
            `[grid ..., seeds, records, N]`).
        state: leaves `[grid ..., seeds, ...]`.
        params: likewise, the models to take home.
    """

    grid: dict[str, np.ndarray]
    history: History
    state: State
    params: Params

    @checks.arguments
    def best(
        self, metric: str = "loss", share: float = 0.1, *, largest: bool | None = None
    ) -> tuple[int, ...]:
        """Index of the grid point whose `metric`, averaged over seeds and over the last records
        that were evaluated, is best.

        One record would favour a lucky step on the verge of divergence. Points that diverged do not
        count. A warning says where the best value is the smallest or the largest of its grid, of
        three or more values: one outside may be better.

        Args:
            metric: a name in the history.
            share: of the records to average over, from the end.
            largest: whether the largest is best, else the smallest; None: the largest of accuracies
                ("accuracy", "test_accuracy"), the smallest of losses, errors, "grad_sqnorm",
                "consensus", "bits" and "clock". Of other metrics it has to be given.

        Raises:
            ValueError: an unknown metric, one of unknown direction, a share outside (0, 1], or
                every point diverged.
        """
        if metric not in self.history:
            raise ValueError(f"unknown metric {metric!r}: need one of {', '.join(self.history)}")
        values = evaluated(self.history)[metric]
        if values.ndim != self.history["loss"].ndim:
            raise ValueError(
                f"best: metric = {metric!r} is no series of each run: need one number a record, "
                "as the loss has"
            )
        sign = -1 if _largest(metric, largest) else 1
        score, loss = (
            tail_mean(each, share).mean(axis=-1)
            for each in (values, evaluated(self.history)["loss"])
        )
        counts = np.isfinite(score) & np.isfinite(loss)
        if not counts.any():
            raise ValueError(
                f"every point of the grid {self._shown()} diverged; need smaller step sizes, say"
            )
        best = tuple(
            int(i)
            for i in np.unravel_index(
                np.argmin(np.where(counts, sign * score, np.inf)), score.shape
            )
        )
        self._warn_at_edges(metric, score, best)
        return best

    @checks.arguments
    def point(self, index: tuple[int, ...]) -> dict[str, float]:
        """The hyperparameters at that index; a ValueError where it is none."""
        self._check(index)
        return {
            name: values[i].item()
            for (name, values), i in zip(self.grid.items(), index, strict=True)
        }

    @checks.arguments
    def at(self, index: tuple[int, ...]) -> History:
        """The history of that grid point, as in `Result`; a ValueError where it is none."""
        self._check(index)
        return {
            name: np.array(values if name == "step" else values[index])
            for name, values in self.history.items()
        }

    def _check(self, index: tuple[int, ...]) -> None:
        shape = tuple(map(len, self.grid.values()))
        fits = len(index) == len(shape) and all(
            checks.is_integer(i) and -n <= i < n for i, n in zip(index, shape, strict=True)
        )
        if not fits:
            raise ValueError(
                f"index = {checks.shown(index)}: need a point of the grid of shape {shape}"
            )

    def _warn_at_edges(self, metric: str, score: np.ndarray, best: tuple[int, ...]) -> None:
        for axis, ((name, values), i) in enumerate(zip(self.grid.items(), best, strict=True)):
            along = score[(*best[:axis], slice(None), *best[axis + 1 :])]
            if np.count_nonzero(along == score[best]) > 1:  # the metric does not depend on it
                continue
            for side, edge in (("smallest", values.min()), ("largest", values.max())):
                if len(values) > 2 and values[i] == edge:
                    beyond = f"a {'smaller' if side == 'smallest' else 'larger'} one may be better; extend the grid on this side"
                    warnings.warn(
                        f"best: {name} = {edge:g} has the best {metric} and is the {side} of its "
                        f"grid; {beyond}",
                        stacklevel=4,
                    )

    def _shown(self) -> str:
        return ", ".join(f"{name} = {values.tolist()}" for name, values in self.grid.items())


_SMALLEST = {
    "loss",
    "train_loss",
    "test_loss",
    "error",
    "test_error",
    "test_bits_per_byte",
    "grad_sqnorm",
    "consensus",
    "bits",
    "clock",
}
_LARGEST = {"accuracy", "test_accuracy"}


def _largest(metric: str, given: bool | None) -> bool:
    """Whether the largest value of a metric is best."""
    if given is None and metric not in _SMALLEST | _LARGEST:
        raise ValueError(
            f"best: metric = {metric!r} may be best where it is smallest or largest; pass "
            "largest=False or largest=True"
        )
    return metric in _LARGEST if given is None else given


@checks.arguments
def tail_mean(values: np.ndarray, share: float = 0.1) -> np.ndarray:
    """The mean of the last tenth (`share`) of the records, at least of one: `[..., records]` to
    `[...]`.

    Where not all were evaluated (`evaluate_every`), it is to have those that were:
    `tail_mean(dsgd.evaluated(history)["loss"])`.

    Raises:
        ValueError: no records, or a share outside (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(f"share = {share}: need a part of the records, in (0, 1]")
    if not np.ndim(values) or not values.size:
        raise ValueError(f"tail_mean: values of shape {np.shape(values)}: need [..., records]")
    return values[..., -max(1, int(share * values.shape[-1])) :].mean(axis=-1)


@checks.arguments
def mean_and_error(values: np.ndarray) -> tuple[Any, Any]:
    """Mean over seeds and its standard error, `[seeds, ...]` to two `[...]`, of `[seeds]` to two
    numbers; the error of one seed is 0.

    Raises:
        ValueError: no seeds.
    """
    if not np.ndim(values) or not len(values):
        raise ValueError(f"mean_and_error: values of shape {np.shape(values)}: need [seeds, ...]")
    seeds = values.shape[0]
    with np.errstate(invalid="ignore"):  # of infinite values, it is not a number
        error = (
            values.std(axis=0, ddof=1) / np.sqrt(seeds) if seeds > 1 else np.zeros(values.shape[1:])
        )
    return values.mean(axis=0), error


@checks.arguments
@modes.outermost
def sweep(
    factory: Callable[..., Algorithm],
    problem: Problem,
    *,
    steps: int,
    key: Key,
    seeds: int = 1,
    batches: Iterable[PyTree] | None = None,
    cluster: Cluster | None = None,
    record_every: int = 1,
    evaluate_every: int = 1,
    mesh: Mesh | int | None = None,
    checkpoint: str | Path | None = None,
    train_loss: bool = False,
    progress: bool = False,
    **grids: Any,
) -> Sweep:
    """Runs every combination of hyperparameters with every seed, as one compiled program.

    The factory is called inside the trace: twenty step sizes compile once. All grid points share
    their seeds.

        dsgd.sweep(lambda learning_rate: algorithms.minibatch_sgd(optax.sgd(learning_rate)),
        problem,
                   steps=1_000, key=key, seeds=4, learning_rate=np.logspace(-3, 0, 20))

    Args:
        factory: keyword arguments -> Algorithm. It sees scalars of the trace: it must not branch on
            their values, and an integer that sets a shape (bits, a number of workers) cannot be
            swept.
        problem, steps, key, batches, cluster, record_every, evaluate_every, mesh, checkpoint,
            train_loss, progress: as in `dsgd.run`.
        seeds: R runs for each point, with the keys `jax.random.split(key, R)`.
        grids: values by argument name, each a sequence of numbers.

    Raises:
        ValueError: no grid, a grid that is empty or not of finite numbers, a value that the factory
            refuses, a hyperparameter that is used as a Python value, or as `dsgd.run`.
        Interrupted, OSError, Lost, Elsewhere: as `dsgd.run`.
    """
    forks.need_threads()
    grid = {name: _values(name, values) for name, values in grids.items()}
    if not grid:
        raise ValueError(
            "a sweep without a grid: need at least one, learning_rate=[0.1, 0.01], say"
        )
    steps, seeds = plans.check_steps(steps), checks.positive_int("seeds", seeds)
    methods = _built(factory, grid)
    shape = tuple(len(values) for values in grid.values())
    points = {
        name: arrays.from_host(axis.ravel())
        for name, axis in zip(grid, np.meshgrid(*grid.values(), indexing="ij"), strict=True)
    }
    size = int(np.prod(shape)) * seeds
    options: dict[str, Any] = {
        "record_every": record_every,
        "cluster": cluster,
        "train_loss": train_loss,
        "evaluate_every": evaluate_every,
    }
    plan = plans.make_plan(
        _FromPoint(factory), methods[0], problem, mesh, runs=2, size=size, **options
    )
    feed = None if batches is None else Feed(plan, batches, steps)
    job = Job(
        plan, methods, problem, points, jax.random.split(key, seeds), steps, feed, progress=progress
    )
    plans.warn_if_drawn_again(job)

    def unfold(leaf):
        return leaf.reshape(*shape, *leaf.shape[1:])

    def unfolded(history):
        return {
            name: values if name == "step" else unfold(values) for name, values in history.items()
        }

    try:
        result = chunks.execute(job, checkpoint)
    except Interrupted as stopped:
        raise Interrupted(str(stopped), unfolded(stopped.history)) from None
    except (TypeError, ValueError) as error:
        for name in traced.used_as_python_values(job, factory, grid, error):
            raise ValueError(
                f"sweep: {name} is used as a Python value (in an if, a loop, an index or a "
                "shape), but all values of a grid are traced"
                f" in one program; expected arithmetic on {name}, jnp.where for an if; or make "
                f"one sweep for each value of {name}"
            ) from error
        raise
    plans.warn_if_silent(job, result.history["bits"])
    return Sweep(
        grid,
        unfolded(result.history),
        jax.tree.map(unfold, result.state),
        jax.tree.map(unfold, result.params),
    )


def _built(factory: Callable[..., Algorithm], grid: dict[str, np.ndarray]) -> tuple[Algorithm, ...]:
    """The method of the first point, and those of all other values, one changed at a time: in the
    trace, where values are not known, none could be refused."""
    checks.need_call("sweep: factory", factory, keywords=list(grid))
    first = {name: values[0].item() for name, values in grid.items()}
    others = [
        {**first, name: value} for name, values in grid.items() for value in values[1:].tolist()
    ]
    methods = tuple(factory(**point) for point in (first, *others))
    for method in methods:
        if not isinstance(method, Algorithm):
            raise ValueError(
                f"sweep: factory gave {checks.shown(method)}: need a function that returns a "
                "dsgd.Algorithm"
            )
    return methods


@dataclass(frozen=True, eq=False)
class _FromPoint(sameness.Compared):
    """Calls the factory with a point's values as keyword arguments."""

    factory: Callable[..., Algorithm]

    def __call__(self, point: dict[str, jax.Array]) -> Algorithm:
        return self.factory(**point)


def _values(name: str, values: Any) -> np.ndarray:
    array = np.array(array_likes.numbers(f"grid {name}", values))
    if array.dtype.kind == "b":
        need = f"numbers, or one sweep for each value of {name}"
        raise ValueError(
            f"grid {name} = {checks.shown(values)}: all values are traced in one program, where "
            f"no if sees them; need {need}"
        )
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise ValueError(
            f"grid {name} = {checks.shown(values)}: need a non-empty sequence of finite numbers"
        )
    with np.errstate(over="ignore", under="ignore"):
        kept = array.astype(jnp.result_type(array))
    rounded = (
        np.isfinite(kept) & ((kept != 0) == (array != 0))
        if kept.dtype.kind == "f"
        else kept == array
    )
    if not rounded.all():
        raise ValueError(
            f"grid {name} = {checks.shown(values)}: {array[~rounded][0]} does not fit "
            f"{kept.dtype}; need numbers that do"
        )
    return array
