"""Pairs of workers on a graph that meet when one of them has computed a gradient, without
synchronized rounds (AD-PSGD, pair averaging and SWARM-SGD).

A worker computes a gradient, meets one neighbour, and computes the next gradient at once. A meeting
is atomic: it begins when the gradient is computed and both workers are free, and occupies their
ports for the latency plus the time of one model at the slowest bandwidth that it uses. The
neighbour continues its computation. After some gradients, a worker may meet nobody.

Times are in seconds after the last update.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from algorithms import gossip, methods, optimizers, weights
from algorithms.mechanisms.arrivals import NO_ROUNDS, begin_after, with_cluster
from dsgd import Algorithm, Query, Round, State, Topology, communication, network, workers
from dsgd.extend import Params, PyTree

# (gradient, the worker's state, that of its partner, whether they meet) -> both states afterwards
Meeting = Callable[[Params, Any, Any, jax.Array], tuple[Any, Any]]
# (key, numbers of gradients [k] that workers have computed) -> whether they meet a neighbour after
# the next one, bool [k]
Meets = Callable[[jax.Array, jax.Array], jax.Array]


class Events(NamedTuple):
    """Pending events of the workers.

    Args:
        ready: when each worker's gradient is computed, `[N]`.
        partner: the neighbour that it then meets, or itself, int32 `[N]`.
        free: when its ports are free, `[N]`.
        version: number of updates before it began its gradient, int32 `[N]`.
        gradients: number of gradients that it has computed, int32 `[N]`.
    """

    ready: jax.Array
    partner: jax.Array
    free: jax.Array
    version: jax.Array
    gradients: jax.Array


class Exchange(NamedTuple):
    """The meeting with which the next update begins.

    Args:
        worker, partner: the two workers, int32 scalars; equal if nobody is met.
        elapsed: seconds since the last update.
        events: the pending events after it.
    """

    worker: jax.Array
    partner: jax.Array
    elapsed: jax.Array
    events: Events


def pairwise(
    name: str,
    optimizer: optax.GradientTransformation,
    topology: Topology,
    start: Callable[[optimizers.Model], Any],
    meet: Meeting,
    meets: Meets | None = None,
    *,
    pulls: bool = False,
) -> Algorithm:
    """Returns the method in which workers meet after their gradients. A round is one gradient.

    Args:
        name: for tables and error messages, with the options in brackets.
        optimizer: each worker's step.
        topology: determines the neighbours, one of which is drawn uniformly; its weights are not
            used.
        start: `optimizers.Model` of equal models, leaves `[N, ...]` -> the workers' states, with
            fields `params` and `read`, the model at which a worker computes.
        meet: what changes after a gradient; on single rows.
        meets: after which gradients a worker meets a neighbour; None: after each.
        pulls: whether only the neighbour sends its model.

    Raises:
        ValueError: if the topology is a schedule or a directed graph.
    """
    method = name.partition("(")[0]
    optimizers.require_descent(optimizer)
    gossip.require_topology(method, topology, symmetric=True, fixed=True)
    topology.require_one_exchange(method)
    neighbours = neighbours_of(topology)

    def draw(key, ids, gradients):
        partners = neighbours.draw(key, ids)
        return (
            partners
            if meets is None
            else jnp.where(meets(jax.random.fold_in(key, 1), gradients), partners, ids)
        )

    def init(params, N):
        topology.require_workers(name, N)
        times, numbers = jnp.zeros(N, jnp.float32), jnp.zeros(N, jnp.int32)
        return State(
            Events(times, numbers, times, numbers, numbers),
            start(optimizers.init_local(optimizer, params, N)),
        )

    def next_exchange(state: State, round: Round) -> Exchange:
        bits = communication.bits.row_bits(state.workers.params)
        return _following(state.server, with_cluster(round), draw, bits, pulls)

    def query(state, round):
        weights.warn_if_cancelled(method, optimizer, round)
        return Query(state.workers.read, workers=next_exchange(state, round).worker[None])

    def update(state, gradients, round):
        round.require_all(NO_ROUNDS)
        now = next_exchange(state, round)
        pair = jnp.stack([now.worker, now.partner])
        here, rows = workers.locate(pair, round.workers)
        with round.unrecorded():
            both = workers.collect(here, jax.tree.map(lambda leaf: leaf[rows], state.workers))
        one, other = (jax.tree.map(lambda leaf, i=i: leaf[i], both) for i in range(2))
        one, other = meet(methods.first(gradients), one, other, now.worker != now.partner)
        # an index past the end on devices that do not store the row, which is not written
        own, partners = jnp.where(here, rows, workers.ids(round.workers).shape[0])
        # in this order, because a worker that meets nobody is its own partner
        after = put_rows(put_rows(state.workers, partners, other), own, one)
        among = jnp.where(now.worker == now.partner, -1, pair[::-1][None] if pulls else pair)
        round.event(state.workers.params, among, now.elapsed, network.asynchronous_gossip)
        round.log(staleness=round.step - state.server.version[now.worker], worker=now.worker)
        return State(now.events, after)

    return Algorithm(name, init, query, update, lambda state: state.workers.params)


class Neighbours(NamedTuple):
    """The workers' neighbours.

    Args:
        lists: neighbours of each worker, padded by repetition, `[N, K]`; a worker without
            neighbours has itself.
        degrees: number of valid entries of each row, `[N]`.
    """

    lists: np.ndarray
    degrees: np.ndarray

    def draw(self, key: jax.Array, ids: jax.Array) -> jax.Array:
        """Draws the next partners of these workers, int32 `[k]`."""
        return jnp.asarray(self.lists)[
            ids, jax.random.randint(key, ids.shape, 0, jnp.asarray(self.degrees)[ids])
        ]


def neighbours_of(topology: Topology) -> Neighbours:
    """Returns the neighbours of all workers."""
    links = topology.links[0]
    each = [
        links[links[:, 0] == worker, 1] if (links[:, 0] == worker).any() else np.array([worker])
        for worker in range(topology.n)
    ]
    degrees = np.array([len(some) for some in each], np.int32)
    return Neighbours(
        np.stack([np.resize(some, degrees.max()) for some in each]).astype(np.int32), degrees
    )


def _following(
    events: Events, round: Round, draw: Callable[..., jax.Array], bits: int, pulls: bool
) -> Exchange:
    """Returns the next update.

    Args:
        events: pending events before it.
        round: on a cluster. If its `work` is set, it determines the seconds of the gradients that
            start in this round.
        draw: (key, workers, numbers of their gradients) -> their partners.
        bits: size of a model.
        pulls: whether only the neighbour sends its model.
    """

    def begin(events: Events):
        ids = jnp.arange(round.workers, dtype=jnp.int32)
        return events._replace(
            ready=round.cluster.seconds(round, ids),
            partner=draw(jax.random.fold_in(round.key, 2), ids, events.gradients),
        )

    events = lax.cond(round.step == 0, begin, lambda events: events, events)
    meets = events.partner != jnp.arange(round.workers)
    free = jnp.maximum(events.free, events.free[events.partner])
    start = jnp.where(meets, jnp.maximum(events.ready, free), events.ready)
    # Among the exchanges that can start first, that of the worker that was ready first.
    worker = jnp.argmin(jnp.where(start == jnp.min(start), events.ready, jnp.inf)).astype(jnp.int32)
    pair = jnp.stack([worker, events.partner[worker]])
    latency, begun = jnp.float32(round.cluster.latency), start[worker]
    senders, receivers = (pair[1:], pair[:1]) if pulls else (pair, pair)
    ports = (
        round.cluster.sending(round, senders, bits, begun),
        round.cluster.receiving(round, receivers, bits, begun + latency),
    )
    end = begun + jnp.where(meets[worker], latency + jnp.max(jnp.concatenate(ports)), 0.0)
    computing = begin_after(round, end)
    elapsed = jnp.maximum(end, 0)
    gradients = events.gradients.at[worker].add(1)
    following = draw(jax.random.fold_in(round.key, 3), worker[None], gradients[worker][None])[0]
    busy = jnp.where(meets[worker], end, events.free[pair])
    after = Events(
        events.ready.at[worker].set(end + round.cluster.seconds(computing, worker[None])[0])
        - elapsed,
        events.partner.at[worker].set(following),
        events.free.at[pair].set(busy) - elapsed,
        events.version.at[worker].set(round.step + 1),
        gradients,
    )
    return Exchange(worker, pair[1], elapsed, after)


def put_rows(tree: PyTree, places: jax.Array, rows: PyTree) -> PyTree:
    """Writes rows to places of a tree, but to those past its end.

    Args:
        tree: leaves `[n, ...]`.
        places: int32 `[k]`, or a scalar.
        rows: leaves `[k, ...]`, or `[...]`.
    """
    return jax.tree.map(
        lambda leaf, new: leaf.at[places].set(new.astype(leaf.dtype), mode="drop"), tree, rows
    )
