"""Runs of a candidate at several settings, as one compiled program."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dsgd import causes, checks, sameness
from dsgd.base import Algorithm, Key, Problem, PyTree
from dsgd.clusters import Cluster
from dsgd.engine import queries
from dsgd.planning.candidates import RATE, Candidate
from dsgd.planning.forecasts import count_elements, scale
from dsgd.runs import dry_runs, plans, replays
from dsgd.runs.history import evaluated_records
from dsgd.runs.sweeps import Sweep, grid_values, sweep, sweep_pairs

TOGETHER = 10  # runs of a compiled program
Point = dict[str, float]  # the step size and the candidate's hyperparameters, by name


class Setting(NamedTuple):
    """What all runs of a plan share.

    Args:
        problem, cluster, key, seeds, mesh: as in `dsgd.run`.
        optimizer: step size -> optimizer, of candidates that have none of their own.
        every: rounds between two evaluations.
        folder: of the checkpoints, or None.
        model: shapes of another model, which determine the messages; None: those of the problem.
    """

    problem: Problem
    cluster: Cluster
    key: Key
    seeds: int
    mesh: Mesh | int | None
    optimizer: Callable[..., Any]
    every: int
    folder: Path | None
    model: PyTree | None = None


class Contender(NamedTuple):
    """A candidate with the points at which it is still considered.

    Args:
        candidate: the candidate.
        points: its points.
        periods: the number of rounds from one exchange to the next at each point.
        times: the number of rounds that compute N gradients, and count as one: N, if a round is one
            gradient, else 1.
        on_cluster: whether the rounds depend on the cluster, so that each cluster needs runs of its
            own.
    """

    candidate: Candidate
    points: tuple[Point, ...]
    periods: tuple[int, ...]
    times: int = 1
    on_cluster: bool = False

    def take(self, points: Iterable[int]) -> Contender:
        """Returns the contender at some of its points, by their numbers."""
        chosen = list(points)
        return self._replace(
            points=tuple(self.points[p] for p in chosen),
            periods=tuple(self.periods[p] for p in chosen),
        )

    def add(self, other: Contender) -> Contender:
        """Returns the contender with the points of another one of the same candidate, too."""
        return self._replace(
            points=self.points + other.points, periods=self.periods + other.periods
        )


class Trained(NamedTuple):
    """The runs of a contender.

    Args:
        contender: the candidate and its points.
        history: the evaluated records, `[points, *grids, seeds, records]`.
        sweep: the taped runs; if the rounds depend on the cluster, those on the plan's cluster.
            Those of `train_in_blocks` have no states and no tape.
        workers: N.
        blocks: the taped runs of `train_in_blocks`, `TOGETHER` in each; the last one is repeated.
        models: the rounds of all seeds with the messages of another model, at each point; (): the
            messages are those of the runs.
    """

    contender: Contender
    history: dict[str, np.ndarray]
    sweep: Sweep
    workers: int
    blocks: tuple[Sweep, ...] = ()
    models: tuple[dry_runs.Records, ...] = ()

    @property
    def bits(self) -> np.ndarray:
        """Mean bits that a worker has sent and received after each round,
        `[points, seeds, 1 + rounds]`.
        """
        found = self.sweep.history["bits"]
        if not self.models:
            return found
        sent = np.cumsum([each.up + each.down for each in self.models], axis=1)
        return np.broadcast_to(np.pad(sent, ((0, 0), (1, 0)))[:, None], found.shape)

    def replay(self, cluster: Callable[..., Cluster], **grids: np.ndarray) -> np.ndarray:
        """Returns `dsgd.replay` of the runs; of those in blocks, by programs that all numbers of
        points and seeds share.
        """
        if self.models:
            tapes = [each.tape for each in self.models if each.tape is not None]
            once = {id(tape): tape for tape in tapes}
            seconds = {at: replays.seconds_of(tape, cluster, **grids) for at, tape in once.items()}
            return np.stack([seconds[id(tape)] for tape in tapes], axis=len(grids))
        if not self.blocks:
            return replays.replay(self.sweep, cluster, **grids)
        found = [replays.replay(each, cluster, **grids)[..., 0, :] for each in self.blocks]
        shape = self.sweep.history["loss"].shape[:2]
        whole = np.concatenate(found, axis=-2)[..., : shape[0] * shape[1], :]
        return whole.reshape(*whole.shape[:-2], *shape, whole.shape[-1])

    @property
    def ends(self) -> np.ndarray:
        """The round after which the workers have the model of each record, `[points, records]`:
        that of the next exchange, since the model is the mean of the workers' models. It may be
        after the last round.
        """
        step, period = self.history["step"], np.array(self.contender.periods)[:, None]
        return -(-step // period) * period

    @property
    def rounds(self) -> np.ndarray:
        """`ends` in rounds of N gradients."""
        return self.ends / self.contender.times

    def take_ends(self, series: np.ndarray) -> np.ndarray:
        """Selects the `ends` in a series of the history, `[..., points, seeds, rounds]` to
        `[..., points, seeds, records]`; infinite for those after the last round.
        """
        step = self.sweep.history["step"]
        ends = np.broadcast_to(self.ends[:, None], (*series.shape[:-1], self.ends.shape[-1]))
        at = np.searchsorted(step, np.minimum(ends, step[-1]))
        return np.where(ends <= step[-1], np.take_along_axis(series, at, axis=-1), np.inf)

    def on(self, index: tuple[int, ...]) -> Trained:
        """Returns the runs on one of the clusters, by its index in the grids."""

        def take(history: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            at = (slice(None), *index)
            return {name: x if name == "step" else x[at] for name, x in history.items()}

        sweep = self.sweep._replace(history=take(self.sweep.history))
        return self._replace(history=take(self.history), sweep=sweep)


def all_points(
    setting: Setting, candidate: Candidate, rates: Sequence[float], steps: int
) -> tuple[Contender, dict[str, str]]:
    """Returns a candidate at all combinations of its hyperparameters and the step sizes, without
    those that the cluster excludes; and the reasons of the excluded ones, by name.

    Args:
        setting: what all runs share.
        candidate: the candidate.
        rates: step sizes, if it has none of its own.
        steps: largest number of rounds of N gradients.

    Raises:
        ValueError: if the method refuses a combination or the problem on every cluster.
    """
    rates = candidate.rates(rates)
    found, refused = list[tuple[Point, Rounds]](), dict[str, str]()
    for each in itertools.product(*candidate.swept.values()):
        values = dict(zip(candidate.swept, each, strict=True))
        rounds = find_rounds(setting, candidate, rates[0], values, steps)
        if isinstance(rounds, Rounds):
            found.append((values, rounds))
        else:
            name = ", ".join([str(candidate), *(f"{key} = {x}" for key, x in values.items())])
            refused[name] = rounds
    pairs = [({RATE: rate, **values}, each.period) for rate in rates for values, each in found]
    points, periods = zip(*pairs, strict=True) if pairs else ((), ())
    times = max((each.times for _, each in found), default=1)
    on_cluster = any(each.on_cluster for _, each in found)
    return Contender(candidate, points, periods, times, on_cluster), refused


class Rounds(NamedTuple):
    """What a method does in its rounds; see `Contender`."""

    period: int
    times: int
    on_cluster: bool


def rounds_of(
    candidate: Candidate,
    optimizer: Any,
    problem: Problem,
    cluster: Cluster,
    values: Mapping[str, Any],
) -> Rounds:
    """Returns what a candidate does in its rounds.

    Raises:
        ValueError: if the method refuses its settings, the problem or the cluster.
    """
    N = problem.workers
    found = plans.probe_on(candidate.build(optimizer, N, **values), problem, cluster)
    asked = [each.workers for each in queries.each(found.asked)]
    gradients = max(N if workers is None else len(workers) for workers in asked)
    return Rounds(
        int(max([1, *(each.period for each in found.sendings)])),
        max(1, N // gradients),
        bool(found.reads) or found.own_time,
    )


def find_rounds(
    setting: Setting, candidate: Candidate, rate: float, values: Point, steps: int
) -> Rounds | str:
    """Returns what a candidate does in its rounds; or why it cannot run for this number of rounds
    of N gradients on the cluster.

    Raises:
        ValueError: if the method refuses its settings or the problem on every cluster.
    """
    with _name_errors(candidate):
        found = _rounds(setting, candidate, rate, values)
    if isinstance(found, Rounds) and found.period > steps * found.times:
        return f"it exchanges every {found.period} rounds, but steps = {steps}"
    return found


def _rounds(setting: Setting, candidate: Candidate, rate: float, values: Point) -> Rounds | str:
    """Returns what a candidate does in its rounds; if only its cluster excludes it, the reason."""
    faultless: dict[str, Any] = {"present": None, "delivered": None, "message_noise": None}
    everyone = replace(setting.cluster, participation_period=1, **faultless)
    refusal, optimizer = "", candidate.optimizer or setting.optimizer
    for each in (setting.cluster, everyone):
        try:
            found = rounds_of(candidate, optimizer(rate), setting.problem, each, values)
        except ValueError as error:
            if refusal:
                raise
            refusal = str(error)
        else:
            return refusal or found
    raise AssertionError("the second cluster is refused only after the first")


@contextmanager
def _name_errors(candidate: Candidate, what: str = "") -> Iterator[None]:
    """Converts errors of the block, also those of the user's functions, to ValueErrors that begin
    with the candidate. Errors of files and processes, and warnings, keep their type.
    """
    where = f"plan: candidate {candidate}{what}"
    try:
        yield
    except (OSError, RuntimeError, Warning) as error:
        error.add_note(where)
        raise
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    except Exception as error:
        cause = causes.note_on(error) or f"{type(error).__name__}: {causes.remedy(error)}"
        raise ValueError(f"{where}: {cause}") from error


def train(
    setting: Setting,
    contender: Contender,
    rounds: int,
    name: str,
    place: Callable[..., Cluster] | None = None,
    **grids: Sequence[float] | np.ndarray,
) -> Trained:
    """Runs a contender at all its points, with all seeds.

    Args:
        setting: what all runs share.
        contender: the candidate and its points.
        rounds: number of rounds of N gradients.
        name: of the checkpoint's folder.
        place: numbers by name -> cluster, if the rounds depend on it; None: that of the plan.
        grids: values of the arguments of `place`.
    """
    candidate, options = contender.candidate, _options(setting, contender, rounds)
    if place is not None and contender.on_cluster:
        options["cluster"] = place
    with _name_errors(candidate, f", points of {', '.join((RATE, *candidate.swept))}"):
        found = sweep(
            _Factory(setting.optimizer, setting.problem.workers, contender),
            setting.problem,
            key=setting.key,
            seeds=setting.seeds,
            checkpoint=setting.folder and setting.folder / name,
            point=range(len(contender.points)),
            **grids,
            **options,
        )
    return _trained(setting, contender, found)


def train_in_blocks(setting: Setting, contender: Contender, rounds: int, name: str) -> Trained:
    """Runs a contender at all its points, with all seeds, `TOGETHER` runs at a time. All blocks of
    a candidate, also those of other calls, are one compiled program. The last run of an incomplete
    block is repeated.

    Args:
        setting, contender, rounds, name: as in `train`.
    """
    points, seeds = contender.points, setting.seeds
    count = len(points) * seeds
    values = {each: grid_values(each, [point[each] for point in points]) for each in points[0]}
    key = checks.typed_key(setting.key)
    keys = jax.random.split(key, seeds)
    of_points, of_seeds = np.divmod(np.arange(count), seeds)
    found = list[Sweep]()
    with _name_errors(contender.candidate, f", points of {', '.join(values)}"):
        for start in range(0, count, TOGETHER):
            at = np.minimum(np.arange(start, start + TOGETHER), count - 1)
            found.append(
                sweep_pairs(
                    _Build(setting.optimizer, setting.problem.workers, contender.candidate),
                    setting.problem,
                    {each: x[of_points[at]] for each, x in values.items()},
                    keys[of_seeds[at]],
                    key=key,
                    checkpoint=setting.folder and setting.folder / name / f"{len(found)}",
                    **_options(setting, contender, rounds),
                )
            )

    def join(series: Sequence[np.ndarray]) -> np.ndarray:
        whole = np.concatenate(series)[:count]
        return whole.reshape(len(points), seeds, *whole.shape[2:])

    history = {
        column: x if column == "step" else join([each.history[column] for each in found])
        for column, x in found[0].history.items()
    }
    without = {"state": None, "params": None, "tape": None}
    whole = found[0]._replace(grid=values, history=history, **without)
    blocks = tuple(each._replace(state=None, params=None) for each in found)
    return _trained(setting, contender, whole, blocks)


def _trained(
    setting: Setting, contender: Contender, runs: Sweep, blocks: tuple[Sweep, ...] = ()
) -> Trained:
    """Returns the runs of a contender, with the messages of the setting's model."""
    found = Trained(
        contender, evaluated_records(runs.history), runs, setting.problem.workers, blocks
    )
    if setting.model is None:
        return found
    if contender.on_cluster:  # their messages were sent on a network that is as much faster
        larger = runs.history["bits"] / _share(setting)
        return found._replace(sweep=runs._replace(history={**runs.history, "bits": larger}))
    return found._replace(models=_model_rounds(setting, contender, int(runs.history["step"][-1])))


def _model_rounds(
    setting: Setting, contender: Contender, steps: int
) -> tuple[dry_runs.Records, ...]:
    """Returns the rounds of all seeds with the messages of the setting's model, at each point."""
    candidate, N = contender.candidate, setting.problem.workers
    made_by = candidate.optimizer or setting.optimizer
    problem = dry_runs.on_model(setting.problem, setting.model, N)
    keys = jax.random.split(checks.typed_key(setting.key), setting.seeds)
    found, by_point = dict[tuple[float, ...], dry_runs.Records](), list[dry_runs.Records]()
    for point in contender.points:
        # periods and numbers of gradients are Python integers there
        values = {name: int(x) if x == int(x) else x for name, x in point.items() if name != RATE}
        of_point = tuple(values.values())
        if of_point not in found:
            with _name_errors(candidate, ", with the messages of the model"):
                method = candidate.build(made_by(point[RATE]), N, **values)
                one = dry_runs.record(method, problem, setting.cluster, keys[0], steps)
            found[of_point] = one._replace(tape=one.tape and one.tape.repeat(keys))
        by_point.append(found[of_point])
    return tuple(by_point)


def _share(setting: Setting) -> float:
    """Returns the number of elements of the problem's parameters, relative to that of the model."""
    own = jax.eval_shape(setting.problem.init, jax.random.key(0))
    return count_elements(own) / count_elements(setting.model)


def _options(setting: Setting, contender: Contender, rounds: int) -> dict[str, Any]:
    """Returns the arguments of the sweeps of a number of rounds of N gradients."""
    times, on_cluster = contender.times, contender.on_cluster
    return {
        "steps": rounds * times,
        "mesh": setting.mesh,
        "evaluate_every": min(setting.every, rounds) * (1 if on_cluster else times),
        "record_every": times if on_cluster else 1,
        "cluster": _own_cluster(setting) if on_cluster else _participation(setting.cluster),
        "taped": not on_cluster,
        "progress": False,
    }


def _own_cluster(setting: Setting) -> Cluster:
    """Returns the cluster of runs that depend on it: that of the plan, on which the messages of the
    problem take as long as those of the model.
    """
    if setting.model is None:
        return setting.cluster
    return scale(setting.cluster, _share(setting))


def _participation(cluster: Cluster) -> Cluster | None:
    """Returns the cluster of taped runs: that of the plan, if workers or messages may be absent, or
    messages have noise.
    """
    faults = cluster.present, cluster.delivered, cluster.message_noise
    return cluster if any(each is not None for each in faults) else None


@dataclass(frozen=True, eq=False)
class _Factory(sameness.Compared):
    """The method at a point, by its index, which a sweep traces. Runs with other keys have an equal
    one, so that they share a compiled program.
    """

    optimizer: Callable[..., Any]
    workers: int
    contender: Contender

    def __call__(self, point: Any) -> Algorithm:
        values = {
            name: select(np.array([each[name] for each in self.contender.points]), point)
            for name in self.contender.points[0]
        }
        return _Build(self.optimizer, self.workers, self.contender.candidate)(**values)


@dataclass(frozen=True, eq=False)
class _Build(sameness.Compared):
    """The method with values of the step size and of the hyperparameters, which a sweep traces."""

    optimizer: Callable[..., Any]
    workers: int
    candidate: Candidate

    def __call__(self, **values: Any) -> Algorithm:
        of = self.candidate.optimizer or self.optimizer
        return self.candidate.build(of(values.pop(RATE)), self.workers, **values)


def select(numbers: np.ndarray, index: Any) -> Any:
    """Returns the number at an index that a sweep or a replay may trace."""
    return jnp.asarray(numbers)[index] if isinstance(index, jax.Array) else numbers[index].item()
