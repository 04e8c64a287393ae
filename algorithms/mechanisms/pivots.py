"""Steps of one worker on a graph, the pivot: gradients reach it along shortest paths, and its
models reach the workers along shortest paths (Fragile SGD and Amelie SGD).

Every worker computes one gradient after the other, each at the last model that it has received, and
finishes each computation. A gradient counts if it was computed at the pivot's current model; the
others are ignored. Messages that would wait for each other on a link are added up, so a message
needs the latency and the time of one vector on each link of its path, whatever else is sent.

Times are in seconds after the last arrival at the pivot.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from scipy.sparse.csgraph import shortest_path

from algorithms import gossip, methods, optimizers
from algorithms.mechanisms.arrivals import NO_ROUNDS, begin_after, earliest, with_cluster
from dsgd import Algorithm, Query, Round, State, Topology, checks, communication, network, workers
from dsgd.extend import Params


class Paths(NamedTuple):
    """Shortest paths between the workers and the pivot.

    Args:
        up: seconds of a vector from each worker to the pivot, `[N]`.
        down: seconds of a vector from the pivot to each worker, `[N]`.
        following: the next worker on the path to the pivot, int32 `[N]`; N for the pivot.
        parent: the last worker on the path from the pivot, int32 `[N]`; N for the pivot.
    """

    up: jax.Array
    down: jax.Array
    following: jax.Array
    parent: jax.Array


class Pivot(NamedTuple):
    """The pivot's state and the pending events.

    Args:
        model: what `start` and `collect` return.
        paths: the paths of messages.
        ready: when each worker's gradient is computed, `[N]`.
        fresh: whether it is computed at the pivot's current model, bool `[N]`.
        stepped: when the pivot made its last step.
    """

    model: Any
    paths: Paths
    ready: jax.Array
    fresh: jax.Array
    stepped: jax.Array


class Arrival(NamedTuple):
    """A gradient that arrives at the pivot.

    Args:
        worker: the worker that computed it, int32 scalar.
        elapsed: seconds since the last arrival.
        events: the pivot's state with the pending events before it.
    """

    worker: jax.Array
    elapsed: jax.Array
    events: Pivot


def pivot_steps(
    name: str,
    optimizer: optax.GradientTransformation,
    topology: Topology,
    pivot: int | None,
    start: Callable[[optimizers.Model, int], Any],
    collect: Callable[[Any, Params, jax.Array], Any],
) -> Algorithm:
    """Returns the method in which the pivot collects the gradients at its current model. A round is
    one gradient that arrives at it.

    Args:
        name: for tables and error messages, ending with the options in brackets.
        optimizer: the pivot's step.
        topology: determines the neighbours; its weights are not used.
        pivot: number of the worker that makes the steps; None: the centre of the graph, the worker
            with the smallest largest number of links to another worker and back.
        start: (model, N) -> the pivot's model, with fields `params` and `steps`, the number of its
            steps.
        collect: (model, gradient, worker) -> the model after a gradient at the current model.

    Raises:
        ValueError: if the topology is a schedule, or the pivot is not one of its workers.
    """
    method = name.partition("(")[0]
    optimizers.require_descent(optimizer)
    gossip.require_topology(method, topology, doubly_stochastic=False, fixed=True)
    topology.require_one_exchange(method)
    lengths = _round_trips(topology)
    at = int(np.argmin(lengths.max(axis=1))) if pivot is None else _require(method, topology, pivot)
    hops = lengths[at].mean() / 2
    pattern = network.Asynchronous(
        f"pivot({topology.name}, {at})",
        lambda N, latency, transfer, convention: hops * (latency + transfer),
        lambda N: hops / N,
    )

    def init(params, N):
        topology.require_workers(name, N)
        seconds, numbers = jnp.zeros(N, jnp.float32), jnp.zeros(N, jnp.int32)
        paths = Paths(seconds, seconds, numbers, numbers)
        model = start(optimizers.init(optimizer, params), N)
        # The initial model is known to all workers at time 0, however far they are from the pivot.
        return State(Pivot(model, paths, seconds, jnp.ones(N, bool), jnp.float32(-jnp.inf)))

    def next_arrival(server: Pivot, round: Round) -> Arrival:
        def begin(server: Pivot):
            bits = communication.bits.row_bits(workers.replicate(server.model.params, 1))
            ready = round.cluster.seconds(round, jnp.arange(round.workers))
            return server._replace(paths=_paths(topology, at, bits, round), ready=ready)

        server = lax.cond(round.step == 0, begin, lambda server: server, server)
        arrives = server.ready + server.paths.up
        worker = earliest(arrives)
        return Arrival(worker, arrives[worker], server)

    def query(state, round):
        # A gradient that does not count is not used, so its model does not matter.
        worker = next_arrival(state.server, with_cluster(round)).worker
        return Query(state.server.model.params, workers=worker[None])

    def update(state, gradients, round):
        round.require_all(NO_ROUNDS)
        placed = with_cluster(round)
        worker, elapsed, server = next_arrival(state.server, placed)
        counted, begun, paths = server.fresh[worker], server.ready[worker], server.paths
        collected = collect(server.model, methods.first(gradients), worker)
        model = jax.tree.map(partial(jnp.where, counted), collected, server.model)
        steps = model.steps > server.model.steps
        stepped = jnp.where(steps, elapsed, server.stepped)
        seconds = placed.cluster.seconds(begin_after(placed, begun), worker[None])[0]
        after = Pivot(
            model,
            paths,
            server.ready.at[worker].set(begun + seconds) - elapsed,
            # The worker began its next gradient at once, at the last model that it had received.
            (server.fresh & ~steps).at[worker].set(stepped + paths.down[worker] <= begun),
            stepped - elapsed,
        )
        messages = _messages(paths, worker, at, steps)
        rows = workers.local_block(workers.replicate(model.params, round.workers), round.workers)
        round.event(rows, messages, elapsed, pattern)
        round.log(worker=worker, counted=counted, server_steps=model.steps)
        return State(after)

    return Algorithm(name, init, query, update, lambda state: state.server.model.params)


def _round_trips(topology: Topology) -> np.ndarray:
    """Returns the smallest number of links from each worker to each other one and back,
    `[N, N]`.
    """
    lengths = shortest_path(topology.matrices[0] != 0, unweighted=True)
    return lengths + lengths.T


def _require(method: str, topology: Topology, pivot: int) -> int:
    """Returns the pivot, or raises ValueError if it is not one of the topology's workers."""
    pivot = checks.natural(f"{method}: pivot", pivot)
    if pivot >= topology.n:
        raise ValueError(
            f"{method}: pivot = {pivot} on {topology.name}, which has {topology.n} workers; "
            f"expected a number from 0 to {topology.n - 1}"
        )
    return pivot


def _paths(topology: Topology, pivot: int, bits: int, round: Round) -> Paths:
    """Returns the shortest paths, with the bandwidths at the beginning of the round. Among equally
    short ones those with the fewest links are used, then those through the lowest numbers.
    """
    links, latency = topology.links[0].astype(np.int32), jnp.float32(round.cluster.latency)
    senders, receivers = links.T
    seconds = latency + jnp.maximum(
        round.cluster.sending(round, senders, bits),
        round.cluster.receiving(round, receivers, bits, latency),
    )
    up, following = _to_pivot(senders, receivers, seconds, pivot, topology.n)
    down, parent = _to_pivot(receivers, senders, seconds, pivot, topology.n)
    return Paths(up, down, following, parent)


def _to_pivot(
    tails: np.ndarray, heads: np.ndarray, seconds: jax.Array, pivot: int, N: int
) -> tuple[jax.Array, jax.Array]:
    """Returns the seconds of each worker's shortest path to the pivot along links from tails to
    heads, and its next worker, N for the pivot, `[N]`.
    """

    def smallest(each):
        return jax.ops.segment_min(each, tails, N)

    def distances(lengths):
        def relax(carry):
            before, _ = carry
            after = jnp.minimum(before, smallest(lengths + before[heads]))
            return after, jnp.any(after < before)

        first = jnp.where(jnp.arange(N) == pivot, 0.0, jnp.inf).astype(jnp.float32)
        return lax.while_loop(lambda carry: carry[1], relax, (first, jnp.bool_(True)))[0]

    total = distances(seconds)
    # Links that take no time could form a circle of shortest paths, so links are counted as well.
    shortest = seconds + total[heads] == total[tails]
    hops = distances(jnp.where(shortest, 1.0, jnp.inf).astype(jnp.float32))
    used = shortest & (1 + hops[heads] == hops[tails])
    return total, smallest(jnp.where(used, heads, N)).clip(max=N)


def _messages(paths: Paths, worker: jax.Array, pivot: int, steps: jax.Array) -> jax.Array:
    """Returns the sender and the receiver of each message of an arrival, int32 `[2 N, 2]`, N for
    none: the gradient's path to the pivot and, after a step, the model's to all workers.
    """
    N = len(paths.up)

    def hop(carry):
        at, links, pairs = carry
        to = paths.following[at]
        return to, links + 1, pairs.at[links].set(jnp.stack([at, to]))

    def goes_on(carry):
        at, links, _ = carry
        # A path has fewer than N links; there is none if the seconds of a link are NaN.
        return (at != pivot) & (links < N)

    first = worker, jnp.int32(0), jnp.full((N, 2), N, jnp.int32)
    gradient = lax.while_loop(goes_on, hop, first)[2]
    model = jnp.stack([paths.parent, jnp.arange(N, dtype=jnp.int32)], axis=1)
    model = jnp.where((steps & (paths.parent < N))[:, None], model, N)
    return jnp.concatenate([gradient, model])
