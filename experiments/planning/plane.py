"""Seconds of methods to a target on a plane of networks, by replaying their runs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

import dsgd
from dsgd import Candidate, clusters
from dsgd.planning import training
from dsgd.planning.candidates import RATE
from experiments.shared import tuning


class Runs(NamedTuple):
    """Runs of a method with all step sizes and settings.

    Args:
        trained: the taped runs.
        participation: the arguments of `clusters.Cluster` that determine which workers participate;
            {}: all.
    """

    trained: training.Trained
    participation: Mapping[str, Any]


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
) -> list[Runs]:
    """Runs a candidate with all step sizes and settings, taped.

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

    def run(participation: Mapping[str, Any], period: int | None = None) -> list[Runs]:
        """Runs the points with this period; None: all."""
        cluster = dataclasses.replace(setting.cluster, **participation)
        with_cluster = setting._replace(cluster=cluster)
        found, _ = training.all_points(with_cluster, candidate, args.learning_rates, args.steps)
        pairs = zip(found.points, found.periods, strict=True)
        kept = [(point, each) for point, each in pairs if period in (None, each)]
        if not kept:
            return []
        contender = training.Contender(candidate, *zip(*kept, strict=True))
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


def choose(runs: Runs, target: float) -> list[Chosen]:
    """Returns, for each choice of the settings other than the step size, the runs at the step size
    that reaches the target in the fewest rounds with every seed; none if there is no such step
    size.
    """
    trained, participation = runs
    candidate, points, *_ = trained.contender
    rounds = count_rounds(trained, target)
    mean = np.where(rounds <= trained.history["step"][-1], rounds, np.inf).mean(axis=-1)
    by_settings: dict[tuple[float, ...], list[int]] = {}
    for i, point in enumerate(points):
        by_settings.setdefault(tuple(point[name] for name in candidate.swept), []).append(i)
    best = [min(group, key=lambda i: mean[i]) for group in by_settings.values()]
    return [
        Chosen(
            candidate, points[i], trained.sweep.result((i,)), rounds[i].astype(int), participation
        )
        for i in best
        if np.isfinite(mean[i])
    ]


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
    cluster: Callable[..., clusters.Cluster], participation: Mapping[str, Any], **numbers: Any
) -> clusters.Cluster:
    """Returns the cluster with these numbers, in which workers participate as in the runs."""
    return dataclasses.replace(cluster(**numbers), **participation)


class Best(NamedTuple):
    """The best settings of each method on each cluster, arrays `[methods, *grids]`.

    Args:
        mean: mean seconds over seeds; inf for methods that do not reach the target.
        error: their standard errors.
        choice: index of the settings among those of all methods.
    """

    mean: np.ndarray
    error: np.ndarray
    choice: np.ndarray


def best_of_each(methods: list[str], chosen: list[Chosen], found: list[np.ndarray]) -> Best:
    """Returns the settings with the fewest mean seconds of each method on each cluster.

    Args:
        methods: names of the methods.
        chosen: settings of all methods.
        found: the seconds of each, `[*grids, seeds]`.
    """
    shape = (len(methods), *found[0].shape[:-1])
    best = Best(np.full(shape, np.inf), np.zeros(shape), np.full(shape, -1))
    for i, (each, seconds) in enumerate(zip(chosen, found, strict=True)):
        at = methods.index(each.candidate.name)
        mean, error = dsgd.history.mean_and_error(np.moveaxis(seconds, -1, 0))
        better = mean < best.mean[at]
        for into, values in zip(best, (mean, error, i), strict=True):
            into[at] = np.where(better, values, into[at])
    return best
