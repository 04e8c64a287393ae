"""Seconds of methods to a target on a plane of networks, by replaying their runs."""

from __future__ import annotations

import dataclasses
import functools
import itertools
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


class Trained(NamedTuple):
    """Runs of a method with all step sizes.

    Args:
        candidate: the method.
        sweep: the taped runs.
        periods: rounds from one exchange to the next, for each combination of the settings other
            than the step size.
        participation: the arguments of `clusters.Cluster` that determine which workers participate;
            {}: all.
    """

    candidate: Candidate
    sweep: dsgd.Sweep
    periods: np.ndarray
    participation: Mapping[str, Any]


class Chosen(NamedTuple):
    """A method with settings at its best step size.

    Args:
        candidate: the method.
        settings: the step size and the other swept hyperparameters, by name.
        result: the taped runs, `[seeds]`.
        rounds: those of each seed until the workers have a model with a loss of at most the target,
            `[seeds]`: the first exchange after the first evaluation with such a loss, since the
            model is the mean of the workers' models.
        participation: as in `Trained`.
    """

    candidate: Candidate
    settings: Mapping[str, float]
    result: dsgd.Result
    rounds: np.ndarray
    participation: Mapping[str, Any] = {}


def described(fixed: str, values: Mapping[str, float]) -> str:
    """Describes the settings of a method besides the step size.

    Args:
        fixed: its topology and compressors.
        values: the step size and its other hyperparameters, by name.
    """
    swept = [f"{name} = {value:g}" for name, value in values.items() if name != RATE]
    return ", ".join(filter(None, [fixed, *swept]))


def train(
    args: Any, problem: dsgd.Problem, candidate: Candidate, participants: int | None = None
) -> list[Trained]:
    """Runs a candidate with all step sizes and settings, taped.

    Args:
        args: the command's arguments.
        problem: the problem.
        candidate: the method.
        participants: number of workers that participate in each round, drawn once per period of
            the method; None: all.

    Returns:
        One sweep. If workers are drawn, one for each combination of the other hyperparameters,
        because the period is a property of the cluster; none if the method requires all workers.
    """
    if participants is None:
        return [_train(args, problem, candidate, candidate.swept, {})]
    present = clusters.sampled(participants, of=problem.workers)
    trained = []
    for values in itertools.product(*candidate.swept.values()):
        point = dict(zip(candidate.swept, values, strict=True))
        every = training.period(candidate, optax.sgd(1.0), problem, None, point)
        participation = {"present": present, "participation_period": every}
        try:
            training.period(candidate, optax.sgd(1.0), problem, _cluster(participation), point)
        except ValueError:  # the method requires all workers
            continue
        grids = {name: (value,) for name, value in point.items()}
        trained.append(_train(args, problem, candidate, grids, participation))
    return trained


def _cluster(participation: Mapping[str, Any]) -> clusters.Cluster | None:
    """Returns the cluster of taped runs."""
    return clusters.Cluster(clusters.constant(0.0), **participation) if participation else None


def _train(
    args: Any,
    problem: dsgd.Problem,
    candidate: Candidate,
    grids: Mapping[str, Any],
    participation: Mapping[str, Any],
) -> Trained:
    def build(learning_rate, **swept):
        return candidate.build(optax.sgd(learning_rate), problem.workers, **swept)

    sweep = dsgd.sweep(
        build,
        problem,
        steps=args.steps,
        key=jax.random.key(args.seed),
        seeds=args.seeds,
        cluster=_cluster(participation),
        evaluate_every=args.every,
        mesh=tuning.devices_for(problem.workers),
        taped=True,
        learning_rate=args.learning_rates,
        **grids,
    )
    points = (dict(zip(grids, each, strict=True)) for each in itertools.product(*grids.values()))
    periods = [training.period(candidate, optax.sgd(1.0), problem, None, each) for each in points]
    shape = tuple(map(len, grids.values()))
    return Trained(candidate, sweep, np.reshape(periods, shape), participation)


def choose(trained: Trained, target: float) -> list[Chosen]:
    """Returns, for each choice of the settings other than the step size, the runs at the step size
    that reaches the target in the fewest rounds with every seed; none if there is no such step
    size.
    """
    candidate, sweep, periods, participation = trained
    history = dsgd.history.evaluated_records(sweep.history)
    rounds = rounds_to(history, target)
    # the model is known to the workers after the next exchange of the run
    rounds = np.ceil(rounds / periods[..., None]) * periods[..., None]
    mean = np.where(rounds <= history["step"][-1], rounds, np.inf).mean(axis=-1)
    chosen = []
    for others in np.ndindex(mean.shape[1:]):
        best = int(np.argmin(mean[(slice(None), *others)]))
        index = (best, *others)
        if np.isfinite(mean[index]):
            chosen.append(
                Chosen(
                    candidate,
                    sweep.point(index),
                    sweep.result(index),
                    rounds[index].astype(int),
                    participation,
                )
            )
    return chosen


def rounds_to(history: dict[str, np.ndarray], target: float) -> np.ndarray:
    """Returns the first round with a loss of at most the target, `[..., records]` to `[...]`; inf
    if there is none.
    """
    reached = history["loss"] <= target
    first = history["step"][np.argmax(reached, axis=-1)].astype(float)
    return np.where(reached.any(axis=-1), first, np.inf)


def seconds(
    chosen: Chosen, cluster: Callable[..., clusters.Cluster], **grids: np.ndarray
) -> np.ndarray:
    """Returns the seconds to the target on all clusters, `[*grids, seeds]`, with the participation
    of the runs.
    """

    # Partial functions of equal parts are equal, so that settings share a compiled program.
    on = functools.partial(_with_participation, cluster, chosen.participation)
    return dsgd.replay(chosen.result, on, rounds=chosen.rounds, **grids)


def _with_participation(
    cluster: Callable[..., clusters.Cluster], participation: Mapping[str, Any], **numbers: Any
) -> clusters.Cluster:
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
        at = methods.index(each.candidate.method)
        mean, error = dsgd.history.mean_and_error(np.moveaxis(seconds, -1, 0))
        better = mean < best.mean[at]
        for into, values in zip(best, (mean, error, i), strict=True):
            into[at] = np.where(better, values, into[at])
    return best
