"""`sweep` runs a grid of hyperparameters with several seeds as one compiled program."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dsgd import array_likes, causes, checks, modes, sameness
from dsgd.base import Algorithm, Key, Params, Problem, PyTree, State
from dsgd.clusters import Cluster
from dsgd.engine import loop
from dsgd.machines import arrays, forks
from dsgd.runs import chunks, plans, traced
from dsgd.runs.feed import Feed
from dsgd.runs.history import History, evaluated_records, require_column, tail_mean
from dsgd.runs.interrupts import Interrupted
from dsgd.runs.observers import Observers, OnRecord
from dsgd.runs.results import Result, Settings, describe
from dsgd.runs.run_spec import RunSpec

if TYPE_CHECKING:
    import pandas as pd


class Sweep(NamedTuple):
    """Result of a sweep.

    A run whose loss becomes infinite or NaN keeps its history, and the sweep continues.

    Args:
        grid: values by hyperparameter name, in the order of the leading axes.
        history: as in `Result`, with arrays `[grid ..., seeds, records]`
            (`[grid ..., seeds, records, N]` for series with one number per worker).
        state: the last states, with leaves `[grid ..., seeds, ...]`.
        params: the final models, with leaves `[grid ..., seeds, ...]`.
        tape, settings: as in `Result`.
    """

    grid: dict[str, np.ndarray]
    history: History
    state: State
    params: Params
    tape: Any = None
    settings: Settings = Settings()

    def __repr__(self) -> str:
        grid = ", ".join(f"{name} [{len(values)}]" for name, values in self.grid.items())
        return f"Sweep({grid}; {describe(self.history, self.settings)})"

    @checks.arguments
    def best(
        self,
        metric: str | None = None,
        share: float = 0.1,
        *,
        largest: bool | None = None,
        until: float | None = None,
    ) -> tuple[int, ...]:
        """Returns the index of the grid point with the best `metric`.

        The metric is averaged over the seeds and over the last evaluated records, because a single
        record would favour a lucky step at the verge of divergence. Points that diverged are
        excluded. A warning is issued if the best value is the smallest or largest of its grid (for
        grids of three or more values), since a value outside the grid may be better; `dsgd.tune`
        extends the grid instead.

        Args:
            metric: a name in the history; None: "objective", f + r, if the problem has a
                regularizer r, else "loss".
            share: fraction of the records over which to average, counted from the end.
            largest: True: the largest value is best; False: the smallest. None: the largest for
                accuracies ("accuracy", "test_accuracy"), and the smallest for losses, errors,
                gaps, distances, squared norms, bits, counts and the clock. It is required for all
                other metrics.
            until: a value of the metric: the best point is the one that reaches it in the fewest
                rounds, averaged over the seeds; of equal ones that with the best metric at the end.
                None: the metric at the end counts.

        Raises:
            ValueError: if the metric is unknown or has no default direction, `share` is outside (0,
                1], every point diverged, or none reaches `until` with all seeds.
        """
        if metric is None:
            metric = default_metric("objective" in self.history)
        costs = point_costs("best", self.history, metric, share, largest, until)
        if not np.isfinite(costs[-1]).any():
            raise ValueError(
                f"best: every point of the grid {self._grid_text()} diverged; expected at least "
                "one finite result; try smaller step sizes"
            )
        if not np.isfinite(costs[0]).any():
            raise ValueError(
                f"best: no point of the grid {self._grid_text()} reaches {metric} = {until:g} with "
                f"all seeds in {self.history['step'][-1]} rounds; expected another target, more "
                "steps or another grid"
            )
        order = np.lexsort([cost.ravel() for cost in costs[::-1]])
        best = tuple(int(i) for i in np.unravel_index(order[0], costs[0].shape))
        self._warn_at_edges(metric, costs[0], best)
        return best

    @checks.arguments
    def point(self, index: Sequence[int]) -> dict[str, float]:
        """Returns the hyperparameters of the grid point with this index.

        Raises:
            ValueError: if the index is not in the grid.
        """
        return {
            name: values[i].item()
            for (name, values), i in zip(self.grid.items(), self._index(index), strict=True)
        }

    @checks.arguments
    def at(self, index: Sequence[int]) -> History:
        """Returns the history of the grid point with this index, as in `Result`.

        Raises:
            ValueError: if the index is not in the grid.
        """
        index = self._index(index)
        return {
            name: np.array(values if name == "step" else values[index])
            for name, values in self.history.items()
        }

    @checks.arguments
    def result(self, index: Sequence[int]) -> Result:
        """Returns the result of the grid point with this index, with all seeds.

        Raises:
            ValueError: if the index is not in the grid.
        """
        index = self._index(index)
        history = self.at(index)
        state, params = jax.tree.map(lambda leaf: leaf[index], (self.state, self.params))
        tape = self.tape and self.tape.grid_point(index)
        settings = Settings(self.settings, hyperparameters=self.point(index))
        return Result(state, history, params, tape, settings)

    def save(self, path: str | Path) -> None:
        """Writes the history, the final model, the grid and the settings to a file (.npz), which is
        replaced atomically; `dsgd.load_result` reads it. `state` and `tape` are not saved.

        Args:
            path: the file.
        """
        from dsgd.runs import saved  # noqa: PLC0415 (it imports this module)

        saved.save(self, path)

    def frame(self) -> pd.DataFrame:
        """Returns the history as a pandas frame, as `dsgd.frame` does."""
        from dsgd import frames  # noqa: PLC0415 (it imports this module)

        return frames.frame(self)

    def report(self, path: str | Path, *, title: str | None = None) -> None:
        """Writes a report as an HTML page, as `dsgd.report` does."""
        from dsgd import frames  # noqa: PLC0415 (it imports this module)

        frames.report(self, path, title=title)

    def _index(self, index: Sequence[int]) -> tuple[int, ...]:
        """Returns the index of a grid point as a tuple."""
        shape = tuple(map(len, self.grid.values()))
        fits = len(index) == len(shape) and all(
            checks.is_integer(i) and -n <= i < n for i, n in zip(index, shape, strict=True)
        )
        if not fits:
            raise ValueError(
                f"index = {checks.show(index)}; expected one integer per axis of the grid of "
                f"shape {shape}"
            )
        return tuple(index)  # numpy would select rows by a list

    def _warn_at_edges(self, metric: str, score: np.ndarray, best: tuple[int, ...]) -> None:
        for axis, ((name, values), i) in enumerate(zip(self.grid.items(), best, strict=True)):
            along = score[(*best[:axis], slice(None), *best[axis + 1 :])]
            if np.count_nonzero(along == score[best]) > 1:
                # The metric does not depend on this hyperparameter.
                continue
            which = f"best: {self.settings['method']}" if "method" in self.settings else "best"
            for side, edge in (("smallest", values.min()), ("largest", values.max())):
                if len(values) > 2 and values[i] == edge:
                    beyond = "smaller" if side == "smallest" else "larger"
                    warnings.warn(
                        f"{which}: {name} = {edge:g} has the best {metric} and is the {side} "
                        f"value of its grid; a {beyond} value may be better; extend the grid on "
                        "this side",
                        stacklevel=4,
                    )

    def _grid_text(self) -> str:
        return ", ".join(f"{name} = {values.tolist()}" for name, values in self.grid.items())


_SMALLEST = {
    "loss",
    "train_loss",
    "test_loss",
    "error",
    "test_error",
    "test_bits_per_byte",
    "grad_sqnorm",
    "objective",
    "prox_grad_sqnorm",
    "consensus",
    "gap",
    "distance",
    "bits",
    "bits_up",
    "bits_down",
    "communications",
    "gradients",
    "epochs",
    "clock",
}
_LARGEST = {"accuracy", "test_accuracy"}


def point_costs(
    where: str,
    history: History,
    metric: str,
    share: float,
    largest: bool | None,
    until: float | None,
) -> list[np.ndarray]:
    """Returns what the best point of a sweep minimizes, `[grid ...]`, in the order of importance:
    the mean number of rounds to a value of a metric if it is given, and the metric at the end.
    Points that diverged are infinite, and so are the rounds if a seed does not reach the value.

    Args:
        where: beginning of error messages.
        history: `[grid ..., seeds, records]`.
        metric, share, largest, until: as in `Sweep.best`.
    """
    require_column(f"{where}: metric", metric, history)
    records = evaluated_records(history)
    values, loss = records[metric], records["loss"]
    if values.ndim != loss.ndim:
        raise ValueError(
            f"{where}: metric = {metric!r} has one number per worker; expected a metric with one "
            "number per record, such as the loss"
        )
    sign = -1 if largest_is_best(metric, largest, where) else 1
    end, last_loss = (tail_mean(each, share).mean(axis=-1) for each in (values, loss))
    counts = np.isfinite(end) & np.isfinite(last_loss)
    costs = [np.where(counts, sign * end, np.inf)]
    if until is not None:
        reached = sign * values <= sign * until
        rounds = np.where(reached.any(axis=-1), records["step"][reached.argmax(axis=-1)], np.inf)
        costs.insert(0, np.where(counts, rounds.mean(axis=-1), np.inf))
    return costs


def default_metric(regularized: bool) -> str:
    """Returns the name of the objective in the history, which includes a regularizer."""
    return "objective" if regularized else "loss"


def largest_is_best(metric: str, given: bool | None, where: str = "best") -> bool:
    """Whether the largest value of a metric is the best; `where` begins the error message."""
    if given is None and metric not in _SMALLEST | _LARGEST:
        raise ValueError(
            f"{where}: metric = {metric!r}, for which the better direction is not known; pass "
            "largest=False or largest=True"
        )
    return metric in _LARGEST if given is None else given


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
    cluster: Cluster | Callable[..., Cluster] | None = None,
    record_every: int = 1,
    evaluate_every: int = 1,
    mesh: Mesh | int | None = None,
    checkpoint: str | Path | None = None,
    train_loss: bool = False,
    progress: bool | None = None,
    taped: bool = False,
    on_record: OnRecord = (),
    **grids: Any,
) -> Sweep:
    """Runs every combination of hyperparameters with every seed, as one compiled program.

    The factory is called inside the trace, so twenty step sizes are compiled once. All grid points
    use the same seeds.

        dsgd.sweep(
            lambda learning_rate: algorithms.minibatch_sgd(optax.sgd(learning_rate)),
            problem, steps=1_000, key=key, seeds=4, learning_rate=np.logspace(-3, 0, 20),
        )

    A function of numbers as `cluster` runs on many clusters, for methods with iterates that depend
    on the cluster, such as asynchronous ones (for others `dsgd.replay` is faster):

        dsgd.sweep(
            lambda learning_rate: algorithms.asynchronous_sgd(optax.sgd(learning_rate)),
            problem, steps=1_000, key=key, learning_rate=[0.1, 0.3], latency=[1e-4, 1e-2],
            cluster=lambda latency: clusters.Cluster(clusters.exponential(0.01), latency=latency),
        )

    Args:
        factory: keyword arguments -> Algorithm. It receives traced scalars, so it must not branch
            on their values, and integers that determine a shape (bits, a number of workers) cannot
            be swept.
        problem, steps, key, batches: as in `dsgd.run`.
        cluster: as in `dsgd.run`; or keyword arguments -> cluster, which receives those of `grids`
            that its signature names, and the factory the others. The latency, `clusters.constant`
            and multiples of quantities accept traced numbers.
        record_every, evaluate_every, mesh, checkpoint, train_loss: as in `dsgd.run`.
        progress, taped, on_record: as in `dsgd.run`.
        seeds: R runs for each grid point, with the keys `jax.random.split(key, R)`.
        grids: values by argument name, each a sequence of numbers.

    Raises:
        ValueError: if there is no grid, a grid is empty or contains non-finite numbers, the factory
            rejects a value, or a hyperparameter is used as a Python value; `cluster` is a function
            without a grid, returns clusters that differ in who participates, or the run is taped;
            otherwise as in `dsgd.run`.
        Interrupted, OSError, PeerLost, PeerFailed: as in `dsgd.run`.
    """
    forks.require_threads()
    grid = {name: grid_values(name, values) for name, values in grids.items()}
    if not grid:
        raise ValueError(
            "sweep: no grid given; expected at least one, such as learning_rate=[0.1, 0.01]"
        )
    steps, seeds = plans.check_steps(steps), checks.positive_int("seeds", seeds)
    return _sweep(
        factory,
        problem,
        grid,
        key,
        jax.random.split(key, seeds),
        steps=steps,
        batches=batches,
        cluster=cluster,
        record_every=record_every,
        evaluate_every=evaluate_every,
        mesh=mesh,
        checkpoint=checkpoint,
        train_loss=train_loss,
        progress=progress,
        taped=taped,
        on_record=on_record,
    )


@modes.outermost
def sweep_pairs(
    factory: Callable[..., Algorithm],
    problem: Problem,
    values: dict[str, np.ndarray],
    keys: jax.Array,
    *,
    key: Key,
    **options: Any,
) -> Sweep:
    """Runs pairs of hyperparameters and a key as one compiled program, which serves all pairs, if
    there are as many: those of other points, and of other seeds.

    Args:
        factory, problem: as in `sweep`.
        values: those of the hyperparameters by name, `[pairs]` each.
        keys: of the runs, `[pairs]`.
        key: from which the keys are derived, for the settings.
        options: as in `sweep`.

    Returns:
        The sweep, in which the pairs are the axis of the grid, with one seed each.
    """
    return _sweep(factory, problem, values, key, keys[:, None], pairs=True, **options)


def _sweep(
    factory: Callable[..., Algorithm],
    problem: Problem,
    grid: dict[str, np.ndarray],
    key: Key,
    keys: jax.Array,
    *,
    steps: int,
    pairs: bool = False,
    batches: Iterable[PyTree] | None = None,
    cluster: Cluster | Callable[..., Cluster] | None = None,
    record_every: int = 1,
    evaluate_every: int = 1,
    mesh: Mesh | int | None = None,
    checkpoint: str | Path | None = None,
    train_loss: bool = False,
    progress: bool | None = None,
    taped: bool = False,
    on_record: OnRecord = (),
) -> Sweep:
    """Returns the sweep of valid grids, or of pairs."""
    seeds = keys.shape[-1]
    on = (
        None if cluster is None or isinstance(cluster, Cluster) else _clusters(cluster, grid, taped)
    )
    build: FromPoint | Part = FromPoint("sweep: factory", factory, Algorithm)
    if on is not None:
        build = Part(build, tuple(name for name in grid if name not in on.names))
    distinct = {
        name: np.array(list(dict.fromkeys(x.tolist())), x.dtype) for name, x in grid.items()
    }
    methods = examples(build, distinct if pairs else grid)
    shape = tuple(len(values) for values in grid.values())[: 1 if pairs else None]
    points = jax.tree.map(arrays.from_host, grid if pairs else all_points(grid))
    size = int(np.prod(shape)) * seeds
    options: dict[str, Any] = {
        "record_every": record_every,
        "cluster": cluster if on is None else _first_cluster(on, grid, problem),
        "train_loss": train_loss,
        "evaluate_every": evaluate_every,
        "taped": taped,
    }
    options |= {"methods": methods, "streamed": batches is not None}
    plan = plans.make_plan(build, methods[0], problem, mesh, runs=2, size=size, **options)
    plan = plan._replace(place=on)
    feed = None if batches is None else Feed(plan, batches, steps)
    job = RunSpec(plan, methods, problem, points, keys, steps, feed, progress=progress)
    plans.warn_if_drawn_again(job)

    def unfold(leaf):
        return leaf.reshape(*shape, *leaf.shape[1:])

    def unfold_history(history):
        return {
            name: values if name == "step" else unfold(values) for name, values in history.items()
        }

    settings = Settings(
        job.settings(key), grid={name: values.tolist() for name, values in grid.items()}
    )
    job = job._replace(observers=Observers(job.name, on_record, settings, unfold_history))
    try:
        result = chunks.execute(job, checkpoint)
    except Interrupted as stopped:
        raise Interrupted(str(stopped), unfold_history(stopped.history)) from None
    except (TypeError, ValueError) as error:

        def trace(values, **changes):
            part = plan._replace(place=None)._replace(runs=2 if values else 1, **changes)
            points = jax.tree.map(jnp.asarray, values)
            part = job._replace(plan=part, points=points, keys=keys.ravel()[:seeds])
            jax.eval_shape(partial(loop.advance, part.plan), *part.shapes())

        def of_factory(build, values):
            trace(values, build=build)

        def of_cluster(place, values):
            trace(values, build=plans.ConstantFactory(methods[0]), place=place)

        of = {name: grid[name] for name in grid if on is None or name not in on.names}
        traced.require_arithmetic("sweep", factory, of, of_factory, error)
        if on is not None:
            of = {name: grid[name] for name in on.names}
            traced.require_arithmetic("sweep", on.build.factory, of, of_cluster, error)
        raise
    plans.warn_if_silent(job, result.history["bits"])
    plans.warn_if_stalled(job, result)
    return Sweep(
        grid,
        unfold_history(result.history),
        jax.tree.map(unfold, result.state),
        jax.tree.map(unfold, result.params),
        result.tape and result.tape._replace(shape=(*shape, seeds)),
        settings,
    )


@dataclass(frozen=True, eq=False)
class FromPoint(sameness.Compared):
    """A function that calls the user's factory with a point's values as keyword arguments.

    Args:
        where: name of the factory, for messages.
        factory: keyword arguments -> an object of type `kind`.
        kind: the type.
    """

    where: str
    factory: Callable[..., Any]
    kind: type

    def __call__(self, point: dict[str, Any]) -> Any:
        numbers = ", ".join(f"{name} = {checks.show(value)}" for name, value in point.items())
        numbers = numbers or "no numbers"
        with causes.error_context(f"{self.where} with {numbers}"):
            made = self.factory(**point)
        if not isinstance(made, self.kind):
            raise ValueError(
                f"{self.where} returned {checks.show(made)}; expected "
                f"{checks.describe_kind(self.kind)}, for {numbers}"
            )
        return made


@dataclass(frozen=True, eq=False)
class Part(sameness.Compared):
    """A function of a point's values that uses some of them.

    Args:
        build: the function.
        names: the names of its values.
    """

    build: FromPoint
    names: tuple[str, ...]

    def __call__(self, point: dict[str, Any]) -> Any:
        return self.build({name: point[name] for name in self.names})


def _clusters(cluster: Callable[..., Cluster], grid: dict[str, np.ndarray], taped: bool) -> Part:
    """Returns the function from a point's values to its cluster."""
    accepted = inspect.signature(cluster).parameters
    names = tuple(name for name in grid if name in accepted)
    if not names:
        raise ValueError(
            f"sweep: cluster is a function of ({', '.join(accepted)}), but the grids are "
            f"{', '.join(grid)}; expected values of one of its arguments"
        )
    if taped:
        raise ValueError(
            "sweep: taped, with a function that returns clusters; expected one of both, since "
            "dsgd.replay computes the seconds of a taped run on all clusters"
        )
    return Part(FromPoint("sweep: cluster", cluster, Cluster), names)


def _first_cluster(on: Part, grid: dict[str, np.ndarray], problem: Problem) -> Cluster:
    """Returns the cluster of the first grid point, after validation of the others."""
    first, *others = examples(on, {name: grid[name] for name in on.names})
    for other in others:
        other.require_workers(problem.workers)
        if other.participation != first.participation:
            raise ValueError(
                f"sweep: cluster returns clusters with another participation, message loss or "
                f"noise, {first.name} and {other.name}; expected the same"
            )
    return first


def examples(build: FromPoint | Part, grid: dict[str, np.ndarray]) -> tuple[Any, ...]:
    """Returns the factory's result for the first grid point, and one for each other value, varied
    one at a time.

    Inside the trace the values are unknown, so a factory could not reject any of them there.
    """
    if isinstance(build, Part):
        return examples(build.build, {name: grid[name] for name in build.names})
    checks.require_call(build.where, build.factory, keywords=list(grid))
    first = {name: values[0].item() for name, values in grid.items()}
    others = [
        {**first, name: value} for name, values in grid.items() for value in values[1:].tolist()
    ]
    return tuple(map(build, (first, *others)))


def all_points(grid: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the values of every grid point along one axis, by name."""
    axes = np.meshgrid(*grid.values(), indexing="ij")
    return {name: axis.ravel() for name, axis in zip(grid, axes, strict=True)}


def grid_values(name: str, values: Any) -> np.ndarray:
    """Returns the values of a grid as an array of numbers of JAX's default types.

    Raises:
        ValueError: if they are not a non-empty sequence of finite numbers.
    """
    array = np.array(array_likes.numbers(f"grid {name}", values))
    if array.dtype.kind == "b":
        raise ValueError(
            f"grid {name} = {checks.show(values)}, but all values are traced in one program, in "
            f"which Python cannot branch on them; expected numbers; run one sweep for each value "
            f"of {name}"
        )
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise ValueError(
            f"grid {name} = {checks.show(values)}; expected a non-empty sequence of finite numbers"
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
            f"grid {name} = {checks.show(values)}: {array[~rounded][0]} is out of range for "
            f"{kept.dtype}; expected numbers that {kept.dtype} can represent"
        )
    return array
