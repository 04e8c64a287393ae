"""The door of `run`, `sweep` and `compile_round`: what does not fit together is refused, and what is let in is Python's own."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dsgd import array_likes, checks, workers
from dsgd.base import Algorithm, Problem
from dsgd.clusters import Cluster, presence
from dsgd.engine import loop, protocol
from dsgd.machines import forks

_ROOM = 1 << 14  # records of all runs in one chunk
MOST_ROUNDS = (1 << 31) - 1  # `State.step` is an int32
_MEAN = 1e-5  # what the weights' mean may differ from 1: rounding of float32
MOST_IN_CHUNK = 1 << 30  # rounds, so that sums of two such numbers are int32, too
GOING_ON = (
    "gradient_descent, minibatch_sgd, model_averaging_sgd, parameter_server_sgd, local_sgd, scaffold, stochastic_gradient_push,"
    " or decentralized_sgd, gradient_tracking, deepsqueeze on a symmetric topology"
)


@dataclass(frozen=True)
class Always:
    """A factory without hyperparameters. Equal where the algorithm is the same, so that a second run does not compile again."""

    algorithm: Algorithm

    def __call__(self, point: dict[str, jax.Array]) -> Algorithm:
        return self.algorithm


def make_plan(
    build: Any,
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
    """The static side of a run of `size` independent runs."""
    record_every = checks.positive_int("record_every", record_every, most=None)
    if record_every > MOST_IN_CHUNK:
        raise ValueError(f"record_every = {record_every}: need at most 2^30")
    evaluate_every = checks.positive_int("evaluate_every", evaluate_every, most=None)
    if record_every * evaluate_every > MOST_IN_CHUNK:
        raise ValueError(f"evaluate_every = {evaluate_every}, record_every = {record_every}: need at most 2^30 rounds between evaluations")
    if not isinstance(mesh, Mesh):
        mesh = workers.mesh(None if mesh is None else checks.positive_int("mesh", mesh))
    N = problem.workers
    if N % mesh.size:
        divisors = [d for d in range(1, mesh.size + 1) if N % d == 0]
        hint = f"mesh={divisors[-1]}, say"
        raise ValueError(f"{N} workers on {mesh.size} devices: need a number of devices that divides {N}: {hint}")
    capacity = max(1 << 8, _ROOM // (1 << (size - 1).bit_length()))
    return loop.Plan(build, loop.without_arrays(problem), mesh, N, runs, record_every, capacity, cluster, bool(train_loss), evaluate_every)


def check_steps(steps: Any, before: int = 0) -> int:
    """The number of rounds, after those `before`.

    Raises:
        ValueError: it is no positive integer, or `State.step` could not count so many.
    """
    steps = checks.positive_int("steps", steps, most=None)
    if before + steps > MOST_ROUNDS:
        after = f" after round {before}" if before else ""
        raise ValueError(f"steps = {steps}{after}: need fewer than 2^31 rounds in all, which are counted in int32")
    return steps


def check_runnable(algorithm: Algorithm, problem: Problem, key: jax.Array, cluster: Cluster | None = None) -> None:
    """Raises a ValueError where they do not fit together: the method or the cluster is for another N, the method cannot go on without those
    that are away, leaves of the data differ in N, weights that are not those of its workers, or parameters are not floating point; a
    RuntimeError where JAX cannot compute."""
    forks.need_threads()
    N = problem.workers
    if algorithm.workers not in (None, N):
        raise ValueError(f"{algorithm.name} is built for {algorithm.workers} workers, {problem.name} has {N}; need the same number")
    if cluster is not None:
        cluster.need_workers(N)
        _need_away(algorithm, cluster)
    for path, leaf in jax.tree_util.tree_leaves_with_path(problem.data):
        if np.ndim(leaf) < 1 or np.shape(leaf)[0] != N:
            where = jax.tree_util.keystr(path)
            raise ValueError(f"{problem.name}: data{where} has shape {np.shape(leaf)}; need the leading axis of the {N} workers")
    _need_kept(problem)
    _need_weights(problem, N)
    params = protocol.parameters(problem)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            where = jax.tree_util.keystr(path) or "they"
            raise ValueError(f"{problem.name}: parameters must be floating point, but {where} has dtype {leaf.dtype}")


def _need_kept(problem: Problem) -> None:
    """Raises a ValueError where JAX would change values of the data on their way to the devices, or cannot take them."""
    for path, leaf in jax.tree_util.tree_leaves_with_path({"data": problem.data, "shared": problem.shared}):
        where = f"{problem.name}: {path[0].key}{jax.tree_util.keystr(path[1:])}"
        if isinstance(leaf, jax.Array):
            continue
        array_likes.kept(where, array_likes.numbers(where, leaf))
        if not isinstance(leaf, np.ndarray | np.generic | bool | int | float):
            raise ValueError(f"{where} is a {type(leaf).__name__}; expected an array of numpy or JAX: pass numpy.asarray(...)")


def _need_weights(problem: Problem, N: int) -> None:
    """Raises a ValueError where the workers' weights are not N numbers, at least 0 and of mean 1."""
    if problem.weights is None:
        return
    given = np.asarray(problem.weights) if checks.is_numeric(problem.weights) else np.empty(0)
    numbers = given.astype(float) if given.dtype.kind in "iuf" else np.empty(0)
    if numbers.shape != (N,) or not np.isfinite(numbers).all() or (numbers < 0).any() or abs(numbers.mean() - 1) > _MEAN:
        shown = checks.shown(problem.weights)
        raise ValueError(f"{problem.name}: weights = {shown}; expected {N} finite numbers, at least 0, of mean 1: w / w.mean()")


def warn_of_periods(methods: Iterable[Algorithm], N: int, steps: int, before: int, cluster: Cluster | None) -> None:
    """Warns where nothing is sent in the whole run, where workers are drawn again between two rounds with messages, or only once.

    Args:
        methods: that run, with periods that are not traced.
        N: number of workers.
        steps: of the run.
        before: rounds that it goes on from.
        cluster: on which it runs.
    """
    periods: dict[int, str] = {int(method.pattern.period): method.name for method in methods}
    for words in (*_silent(periods, steps, before), *_drawn_again(periods, N, steps, before, cluster)):
        warnings.warn(words, stacklevel=4)  # of the caller of `run` or `sweep`


def _silent(periods: dict[int, str], steps: int, before: int) -> Iterator[str]:
    for period, name in periods.items():
        if not before and steps < period:
            yield f"{name} sends messages every {period} rounds, but the run has steps = {steps}: nothing is sent; pass steps >= {period}"


def _drawn_again(periods: dict[int, str], N: int, steps: int, before: int, cluster: Cluster | None) -> Iterator[str]:
    if cluster is None or cluster.present is None:
        return
    rounds = cluster.present_for
    others = {period: name for period, name in periods.items() if period not in (1, rounds)}
    once = not before and steps < rounds
    if not (others or once) or not presence.drawn(cluster.present, N):
        return
    for period, name in others.items():
        remedy = f"others take part in the rounds between; pass Cluster(..., present_for={period})"
        yield f"{name} sends messages every {period} rounds, but workers are drawn for present_for = {rounds} rounds: {remedy}"
    if once and not others:
        yield f"workers are drawn for present_for = {rounds} rounds: the same take part in all steps = {steps}; pass a smaller present_for"


def _need_away(algorithm: Algorithm, cluster: Cluster) -> None:
    """Raises a ValueError where workers can be away, or messages lost, and the method cannot go on without them."""
    if callable(algorithm.away) or (cluster.present is None and cluster.delivered is None):
        return
    where = "workers are away" if cluster.present else "messages are lost"
    raise ValueError(f"{algorithm.name} on a cluster where {where}: {algorithm.away}; need a method that goes on: {GOING_ON}")
