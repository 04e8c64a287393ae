"""The door of `run`, `sweep` and `compile_round`: what does not fit together is refused, and what
is let in is Python's own.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from dsgd import array_likes, causes, checks, sameness, workers
from dsgd.base import Algorithm, Problem
from dsgd.clusters import Cluster, presence
from dsgd.engine import leaves, loop
from dsgd.machines import forks
from dsgd.runs.jobs import Job
from dsgd.workers.axis import automatic

_ROOM = 1 << 14  # records of all runs in one chunk
MOST_ROUNDS = (1 << 31) - 1  # `State.step` is an int32
_MEAN = 1e-5  # what the weights' mean may differ from 1: rounding of float32
MOST_IN_CHUNK = 1 << 30  # rounds, so that sums of two such numbers are int32, too


@dataclass(frozen=True, eq=False)
class Always(sameness.Compared):
    """A factory without hyperparameters. Equal where the algorithm is the same, so that a second
    run does not compile again.
    """

    algorithm: Algorithm

    def __call__(self, point: dict[str, jax.Array]) -> Algorithm:
        return self.algorithm


def make_plan(
    build: Any,
    example: Algorithm,
    problem: Problem,
    mesh: Mesh | int | None,
    *,
    runs: int,
    size: int,
    record_every: int,
    cluster: Cluster | None = None,
    train_loss: bool = False,
    evaluate_every: int = 1,
) -> loop.Plan:
    """The static side of a run of `size` independent runs.

    Args:
        build: hyperparameters -> Algorithm.
        example: the method with some of them.
        others: as of `run`.

    Raises:
        ValueError: as of `run`; on a cluster or with weights, also what the method's update
            refuses.
    """
    check_runnable(problem, cluster)
    record_every = checks.positive_int("record_every", record_every, most=None)
    if record_every > MOST_IN_CHUNK:
        raise ValueError(f"record_every = {record_every}: need at most 2^30")
    evaluate_every = checks.positive_int("evaluate_every", evaluate_every, most=None)
    if record_every * evaluate_every > MOST_IN_CHUNK:
        raise ValueError(
            f"evaluate_every = {evaluate_every}, record_every = {record_every}: need at most 2^30 "
            "rounds between evaluations"
        )
    mesh = (
        automatic(mesh)
        if isinstance(mesh, Mesh)
        else workers.mesh(None if mesh is None else checks.positive_int("mesh", mesh))
    )
    N = problem.workers
    if N % mesh.size:
        largest = max(d for d in range(1, mesh.size + 1) if N % d == 0)
        raise ValueError(
            f"mesh of {mesh.size} devices for {N} workers: need a number of devices that divides "
            f"{N}: mesh={largest}, say"
        )
    capacity = max(1 << 8, _ROOM // (1 << (size - 1).bit_length()))
    functions = loop.without_arrays(problem)
    plan = loop.Plan(
        build,
        functions,
        mesh,
        N,
        runs,
        record_every,
        capacity,
        cluster,
        bool(train_loss),
        evaluate_every,
    )
    if cluster is None and problem.weights is None:
        return plan
    measures, weighs = _found(sameness.Key((plan, example)))
    return plan._replace(measures=measures, weighs=weighs)


@lru_cache(maxsize=64)
def _found(plan_and_method: sameness.Key) -> tuple[bool, bool]:
    """Whether a method reads what workers measured, and whether its means have the workers'
    weights; traced once for equal plans.
    """
    description = loop.describe(*plan_and_method.value)
    return description.measures, description.weighs


def check_steps(steps: Any, before: int = 0) -> int:
    """The number of rounds, after those `before`.

    Raises:
        ValueError: it is no positive integer, or `State.step` could not count so many.
    """
    steps = checks.positive_int("steps", steps, most=None)
    if before + steps > MOST_ROUNDS:
        after = f" after round {before}" if before else ""
        raise ValueError(
            f"steps = {steps}{after}: need fewer than 2^31 rounds in all, which are counted in "
            "int32"
        )
    return steps


def check_runnable(problem: Problem, cluster: Cluster | None = None) -> None:
    """Raises a ValueError if they do not fit together: the cluster is for another N, leaves of the
    data differ in N, weights that are not those of its workers, or no parameter can be trained; a
    RuntimeError if JAX cannot compute."""
    forks.need_threads()
    N = problem.workers
    if N == 0:
        raise ValueError(
            f"{problem.name}: data of 0 workers, but expected arrays [N, ...] with N >= 1"
        )
    if cluster is not None:
        cluster.need_workers(N)
    for path, leaf in jax.tree_util.tree_leaves_with_path(problem.data):
        if np.ndim(leaf) < 1 or np.shape(leaf)[0] != N:
            where = jax.tree_util.keystr(path)
            raise ValueError(
                f"{problem.name}: data{where} has shape {np.shape(leaf)}; need the leading axis "
                f"of the {N} workers"
            )
    _need_kept(problem)
    _need_weights(problem, N)
    with causes.noted(f"init of {problem.name}"):
        leaves.flags(problem)


def warn_if_drawn_again(job: Job) -> None:
    """Warns if workers are drawn again between two rounds with messages, or only once."""
    cluster = job.plan.cluster
    if (
        cluster is None
        or cluster.present is None
        or not presence.drawn(cluster.present, job.plan.N)
    ):
        return
    rounds = cluster.present_for
    others = {period: name for period, name in _periods(job).items() if period not in (1, rounds)}
    for period, name in others.items():
        remedy = f"others take part in the rounds between; pass Cluster(..., present_for={period})"
        _warn(
            f"{name} sends messages every {period} rounds, but workers are drawn for present_for "
            f"= {rounds} rounds: {remedy}"
        )
    if not job.before and job.steps < rounds and not others:
        same = f"the same take part in all steps = {job.steps}; pass a smaller present_for"
        _warn(f"workers are drawn for present_for = {rounds} rounds: {same}")


def warn_if_silent(job: Job, bits: np.ndarray) -> None:
    """Warns if nothing was sent in a run of methods that send messages every few rounds.

    Args:
        job: the run.
        bits: of the history, whose last axis are records.
    """
    if job.before or not bits.size or (bits[..., -1] > 0).all():
        return
    for period, name in _periods(job).items():
        if period > job.steps:
            remedy = f"nothing is sent; pass steps >= {period}"
            _warn(
                f"{name} sends messages every {period} rounds, but the run has steps = "
                f"{job.steps}: {remedy}"
            )


def _periods(job: Job) -> dict[int, str]:
    """Rounds from one exchange to the next, of exchanges with a fixed number of them, each with the
    name of a method that has it.
    """
    periods = {
        int(sending.period): method.name
        for method in job.methods
        for sending in loop.describe(job.plan, method).sendings
    }
    return {period: name for period, name in periods.items() if period}


def _warn(words: str) -> None:
    warnings.warn(words, stacklevel=6)  # the line of the caller of `run` or `sweep`


def _need_kept(problem: Problem) -> None:
    """Raises a ValueError where JAX would change values of the data on their way to the devices, or
    cannot take them.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(
        {"data": problem.data, "shared": problem.shared}
    ):
        where = f"{problem.name}: {path[0].key}{jax.tree_util.keystr(path[1:])}"
        if isinstance(leaf, jax.Array):
            continue
        array_likes.kept(where, array_likes.numbers(where, leaf))
        if not isinstance(leaf, np.ndarray | np.generic | bool | int | float):
            raise ValueError(
                f"{where} is a {type(leaf).__name__}; expected an array of numpy or JAX: pass "
                "numpy.asarray(...)"
            )


def _need_weights(problem: Problem, N: int) -> None:
    """Raises a ValueError where the workers' weights are not N numbers, at least 0 and of mean
    1.
    """
    if problem.weights is None:
        return
    given = np.asarray(problem.weights) if checks.is_numeric(problem.weights) else np.empty(0)
    numbers = given.astype(float) if given.dtype.kind in "iuf" else np.empty(0)
    if (
        numbers.shape != (N,)
        or not np.isfinite(numbers).all()
        or (numbers < 0).any()
        or abs(numbers.mean() - 1) > _MEAN
    ):
        shown = checks.shown(problem.weights)
        raise ValueError(
            f"{problem.name}: weights = {shown}; expected {N} finite numbers, at least 0, of mean "
            "1: w / w.mean()"
        )
