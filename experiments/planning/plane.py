"""Seconds of methods to a target on a plane of networks, by replaying their runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

import dsgd
from dsgd import clusters
from experiments.planning.candidates import Candidate
from experiments.shared import tuning


class Chosen(NamedTuple):
    """A method with settings at its best step size.

    Args:
        candidate: the method.
        settings: the step size and the other swept hyperparameters, by name.
        result: the taped runs, `[seeds]`.
        rounds: the first evaluated round of each seed with a loss of at most the target, `[seeds]`.
    """

    candidate: Candidate
    settings: Mapping[str, float]
    result: dsgd.Result
    rounds: np.ndarray


def train(args: Any, problem: dsgd.Problem, candidate: Candidate) -> dsgd.Sweep:
    """Runs a candidate with all step sizes and settings, taped and without a cluster."""

    def build(learning_rate, **swept):
        return candidate.build(optax.sgd(learning_rate), problem.workers, **swept)

    return dsgd.sweep(
        build,
        problem,
        steps=args.steps,
        key=jax.random.key(args.seed),
        seeds=args.seeds,
        evaluate_every=args.every,
        mesh=tuning.devices_for(problem.workers),
        taped=True,
        learning_rate=args.learning_rates,
        **dict[str, Any](candidate.swept),
    )


def choose(candidate: Candidate, sweep: dsgd.Sweep, target: float) -> list[Chosen]:
    """Returns, for each choice of the settings other than the step size, the runs at the step size
    that reaches the target in the fewest rounds with every seed; none if there is no such step
    size.
    """
    rounds = rounds_to(dsgd.evaluated(sweep.history), target)
    mean = rounds.mean(axis=-1)
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
    """Returns the seconds to the target on all clusters, `[*grids, seeds]`."""
    return dsgd.replay(chosen.result, cluster, rounds=chosen.rounds, **grids)


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
        mean, error = dsgd.mean_and_error(np.moveaxis(seconds, -1, 0))
        better = mean < best.mean[at]
        for into, values in zip(best, (mean, error, i), strict=True):
            into[at] = np.where(better, values, into[at])
    return best
