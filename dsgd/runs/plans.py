"""The door of `run`, `sweep` and `compile_round`: what does not fit together is refused, and what is let in is Python's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dsgd import checks, workers
from dsgd.base import Algorithm, Problem
from dsgd.clusters import Cluster
from dsgd.engine import loop, protocol
from dsgd.workers.axis import automatic

_ROOM = 1 << 14  # records of all runs in one chunk
MOST_ROUNDS = (1 << 31) - 1  # `State.step` is an int32
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
    record_every = checks.positive_int("record_every", record_every)
    if record_every > MOST_IN_CHUNK:
        raise ValueError(f"record_every = {record_every}: need at most 2^30")
    evaluate_every = checks.positive_int("evaluate_every", evaluate_every)
    if record_every * evaluate_every > MOST_IN_CHUNK:
        raise ValueError(f"evaluate_every = {evaluate_every}, record_every = {record_every}: need at most 2^30 rounds between evaluations")
    mesh = automatic(mesh) if isinstance(mesh, Mesh) else workers.mesh(None if mesh is None else checks.positive_int("mesh", mesh))
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
    steps = checks.positive_int("steps", steps)
    if before + steps > MOST_ROUNDS:
        after = f" after round {before}" if before else ""
        raise ValueError(f"steps = {steps}{after}: need fewer than 2^31 rounds in all, which are counted in int32")
    return steps


def check_runnable(algorithm: Algorithm, problem: Problem, key: jax.Array, cluster: Cluster | None = None) -> None:
    """Raises a ValueError where they do not fit together: the method or the cluster is for another N, the method cannot go on without those
    that are away, leaves of the data differ in N, or parameters are not floating point."""
    N = problem.workers
    if N == 0:
        raise ValueError(f"{problem.name}: data of 0 workers, but expected arrays [N, ...] with N >= 1")
    if algorithm.workers not in (None, N):
        raise ValueError(f"{algorithm.name} is built for {algorithm.workers} workers, {problem.name} has {N}; need the same number")
    if cluster is not None:
        cluster.need_workers(N)
        _need_away(algorithm, cluster)
    for path, leaf in jax.tree_util.tree_leaves_with_path(problem.data):
        if np.ndim(leaf) < 1 or np.shape(leaf)[0] != N:
            where = jax.tree_util.keystr(path)
            raise ValueError(f"{problem.name}: data{where} has shape {np.shape(leaf)}; need the leading axis of the {N} workers")
    with protocol.noted(f"init of {problem.name}"):
        params = protocol.parameters(problem)
    if not jax.tree.leaves(params):
        raise ValueError(f"{problem.name}: init gives parameters without an array, but expected at least one floating-point array")
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            where = jax.tree_util.keystr(path) or "they"
            raise ValueError(f"{problem.name}: parameters must be floating point, but {where} has dtype {leaf.dtype}")


def _need_away(algorithm: Algorithm, cluster: Cluster) -> None:
    """Raises a ValueError where workers can be away, or messages lost, and the method cannot go on without them."""
    if callable(algorithm.away) or (cluster.present is None and cluster.delivered is None):
        return
    where = "workers are away" if cluster.present else "messages are lost"
    raise ValueError(f"{algorithm.name} on a cluster where {where}: {algorithm.away}; need a method that goes on: {GOING_ON}")
