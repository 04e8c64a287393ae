"""Seconds of methods to a target on a plane of networks, by replaying their runs; those of methods
whose rounds depend on the network, by runs on each of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

import dsgd
from dsgd import Candidate, clusters
from dsgd.planning import estimates, training
from dsgd.planning.candidates import RATE
from experiments.shared import statistics, tuning


class Runs(NamedTuple):
    """Runs of a method with all step sizes and settings.

    Args:
        trained: the taped runs.
        participation: the arguments of `clusters.Cluster` that determine which workers participate;
            {}: all.
    """

    trained: training.Trained
    participation: Mapping[str, Any]


class OnEach(NamedTuple):
    """A method whose rounds depend on the cluster, so that it runs on each of the networks.

    Args:
        setting: what all runs share.
        contender: the method with all step sizes and settings.
        steps: number of rounds of N gradients.
        participation: as in `Runs`.
    """

    setting: training.Setting
    contender: training.Contender
    steps: int
    participation: Mapping[str, Any]

    def cost(self, networks: int) -> str:
        """Describes the work on so many networks."""
        runs = networks * len(self.contender.points) * self.setting.seeds
        gradients = self.steps * self.setting.problem.workers
        return f"{self.contender.candidate}, {runs:,} runs of {gradients:,} gradients"


class Chosen(NamedTuple):
    """A method with settings at its best step size.

    Args:
        candidate: the method.
        settings: the step size and the other swept hyperparameters, by name.
        result: the taped runs, `[seeds]`.
        rounds: number of rounds to the target, `[seeds]`. The loss is that of the mean of the
            workers' models, which they have after the next exchange: rounds are counted up to it.
        participation: as in `Runs`.
    """

    candidate: Candidate
    settings: Mapping[str, float]
    result: dsgd.Result
    rounds: np.ndarray
    participation: Mapping[str, Any] = {}


class Ran(NamedTuple):
    """A method that ran on each of the networks.

    Args:
        candidate, settings: as in `Chosen`.
    """

    candidate: Candidate
    settings: Mapping[str, float]


def describe(fixed: str, values: Mapping[str, float]) -> str:
    """Describes the settings of a method besides the step size.

    Args:
        fixed: its topology and compressors.
        values: the step size and its other hyperparameters, by name.
    """
    swept = [f"{name} = {value:g}" for name, value in values.items() if name != RATE]
    return ", ".join(filter(None, [fixed, *swept]))


def train(
    args: Any, problem: dsgd.Problem, candidate: Candidate, participants: int | None = None
) -> list[Runs | OnEach]:
    """Runs a candidate with all step sizes and settings, taped; if its rounds depend on the
    cluster, it runs later.

    Args:
        args: the command's arguments.
        problem: the problem.
        candidate: the method.
        participants: number of workers that participate in each round, drawn once per period of
            the method; None: all.

    Returns:
        One result; if workers are drawn, one for each period of the method, for which they stay the
        same. No result if the method requires all workers.
    """
    setting = training.Setting(
        problem,
        clusters.Cluster(clusters.constant(0.0)),
        jax.random.key(args.seed),
        args.seeds,
        tuning.devices_for(problem.workers),
        optax.sgd,
        args.every,
        None,
    )

    def run(participation: Mapping[str, Any], period: int | None = None) -> list[Runs | OnEach]:
        """Runs the points with this period; None: all."""
        cluster = dataclasses.replace(setting.cluster, **participation)
        with_cluster = setting._replace(cluster=cluster)
        found, _ = training.all_points(with_cluster, candidate, args.learning_rates, args.steps)
        pairs = zip(found.points, found.periods, strict=True)
        kept = [(point, each) for point, each in pairs if period in (None, each)]
        if not kept:
            return []
        points, periods = zip(*kept, strict=True)
        contender = found._replace(points=points, periods=periods)
        if contender.on_cluster:
            return [OnEach(with_cluster, contender, args.steps, participation)]
        return [Runs(training.train(with_cluster, contender, args.steps, ""), participation)]

    if participants is None:
        return run({})
    present = clusters.sampled(participants, of=problem.workers)
    found, _ = training.all_points(setting, candidate, args.learning_rates, args.steps)
    return [
        runs
        for period in dict.fromkeys(found.periods)
        for runs in run({"present": present, "participation_period": period}, period)
    ]


def replayed(runs: Iterable[Runs | OnEach]) -> list[Runs]:
    """Returns the runs that do not depend on the network."""
    return [each for each in runs if isinstance(each, Runs)]


def choose(runs: Runs, target: float) -> list[Chosen]:
    """Returns, for each choice of the settings other than the step size, the runs at the step size
    that reaches the target in the fewest rounds with every seed; none if there is no such step
    size.
    """
    trained, participation = runs
    candidate, points, *_ = trained.contender
    return [
        Chosen(candidate, points[i], trained.sweep.result((i,)), rounds, participation)
        for i, rounds in best_points(trained, target)
    ]


def best_points(trained: training.Trained, target: float) -> list[tuple[int, np.ndarray]]:
    """Returns the indices of the points of `choose`, each with the rounds to the target,
    `[seeds]`.
    """
    candidate, points, *_ = trained.contender
    rounds = count_rounds(trained, target)
    mean = np.where(rounds <= trained.history["step"][-1], rounds, np.inf).mean(axis=-1)
    by_settings: dict[tuple[float, ...], list[int]] = {}
    for i, point in enumerate(points):
        by_settings.setdefault(tuple(point[name] for name in candidate.swept), []).append(i)
    best = [min(group, key=lambda i: mean[i]) for group in by_settings.values()]
    return [(i, rounds[i].astype(int)) for i in best if np.isfinite(mean[i])]


def default_target(history: dict[str, np.ndarray]) -> float:
    """Returns the smallest mean loss that a step size reaches in a third of the rounds, rounded up
    to two digits.
    """
    third = history["loss"][..., : 1 + len(history["step"]) // 3].mean(axis=-2)
    return statistics.round_up(np.nanmin(third[..., -1]))


def count_rounds(trained: training.Trained, target: float) -> np.ndarray:
    """Returns the rounds until the workers have a model with a loss of at most the target,
    `[points, seeds]`; inf if there is none.
    """
    reached = trained.history["loss"] <= target
    ends = np.broadcast_to(trained.ends[:, None], reached.shape)
    return np.where(reached, ends, np.inf).min(axis=-1)


def seconds(
    chosen: Chosen, cluster: Callable[..., clusters.Cluster], **grids: np.ndarray
) -> np.ndarray:
    """Returns the seconds to the target on all clusters, `[*grids, seeds]`, with the participation
    of the runs.
    """

    # Partial functions of equal parts are equal, so that settings share a compiled program.
    on = functools.partial(_place, cluster, chosen.participation)
    return dsgd.replay(chosen.result, on, rounds=chosen.rounds, **grids)


def _place(
    cluster: Callable[..., clusters.Cluster],
    participation: Mapping[str, Any],
    latency: Any,
    bandwidth: Any,
) -> clusters.Cluster:
    """Returns the cluster with these numbers, in which workers participate as in the runs."""
    return dataclasses.replace(cluster(latency=latency, bandwidth=bandwidth), **participation)


def run_on_each(
    method: OnEach,
    target: float,
    cluster: Callable[..., clusters.Cluster],
    grids: Mapping[str, np.ndarray],
) -> list[tuple[Ran, np.ndarray]]:
    """Runs a method on all clusters, in one compiled program.

    Returns:
        For each of its step sizes and settings, itself and the seconds to the target, `[*grids,
        seeds]`; inf for runs that do not reach it.
    """
    contender, on = method.contender, functools.partial(_place, cluster, method.participation)
    trained = training.train(method.setting, contender, method.steps, "", on, **grids)
    shape = tuple(map(len, grids.values()))
    found = np.empty((len(contender.points), *shape, method.setting.seeds))
    for index in np.ndindex(shape):
        here = trained.on(index)
        clock = here.take_ends(here.sweep.history["clock"])
        reached = here.history["loss"] <= target
        found[(slice(None), *index)] = np.where(reached, clock, np.inf).min(axis=-1)
    settings = [Ran(contender.candidate, point) for point in contender.points]
    return list(zip(settings, found, strict=True))


class Best(NamedTuple):
    """The best settings of each method on each cluster, arrays `[methods, *grids]`.

    Args:
        mean: mean seconds over seeds; inf for methods that do not reach the target.
        error: their standard errors.
        choice: index of the settings among those of all methods.
        close: whether settings are the best ones of their method, or not significantly slower: the
            95 % interval of the mean difference over the seeds contains 0, `[settings, *grids]`.
    """

    mean: np.ndarray
    error: np.ndarray
    choice: np.ndarray
    close: np.ndarray


def best_of_each(
    methods: list[str], chosen: Sequence[Chosen | Ran], found: list[np.ndarray]
) -> Best:
    """Returns the settings with the fewest mean seconds of each method on each cluster.

    Args:
        methods: names of the methods.
        chosen: settings of all methods.
        found: the seconds of each, `[*grids, seeds]`.
    """
    shape = (len(methods), *found[0].shape[:-1])
    close = np.zeros((len(found), *shape[1:]), bool)
    best = Best(np.full(shape, np.inf), np.zeros(shape), np.full(shape, -1), close)
    for i, (each, seconds) in enumerate(zip(chosen, found, strict=True)):
        at = methods.index(each.candidate.name)
        mean, error = dsgd.history.mean_and_error(np.moveaxis(seconds, -1, 0))
        better = mean < best.mean[at]
        for into, values in zip(best[:3], (mean, error, i), strict=True):
            into[at] = np.where(better, values, into[at])
    every = np.stack(found)
    for i, each in enumerate(chosen):
        choice = best.choice[methods.index(each.candidate.name)][None, ..., None]
        with np.errstate(invalid="ignore"):  # the difference of infinite values
            more = every[i] - np.take_along_axis(every, choice, axis=0)[0]
            mean = more.mean(axis=-1)
        close[i] = np.isfinite(mean) & (mean <= estimates.half_width(more, np.zeros_like(more)))
    return best


def tied(best: Best, chosen: Sequence[Chosen | Ran], at: tuple[int, ...]) -> list[Chosen | Ran]:
    """Returns the other settings of a method on a network that are not significantly slower than
    its best ones.

    Args:
        best: the best settings.
        chosen: settings of all methods.
        at: index of the method and of the network.
    """
    choice = int(best.choice[at])
    close = np.flatnonzero(best.close[(slice(None), *at[1:])]).tolist()
    method = chosen[choice].candidate.name
    return [chosen[i] for i in close if i != choice and chosen[i].candidate.name == method]
