"""Asynchronous gossip (AD-PSGD)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import topologies
from algorithms import gossip, methods, optimizers, weights
from algorithms.facts import method
from algorithms.mechanisms.arrivals import NO_ROUNDS, begin_after, with_cluster
from dsgd import Algorithm, Query, Round, State, Topology, checks, communication, network, workers
from dsgd.extend import Params, PyTree


class Local(NamedTuple):
    """A worker's state, leaves `[n, ...]`.

    Args:
        params: its model.
        optimizer: its optimizer's state.
        read: the model at which it computes.
    """

    params: Params
    optimizer: PyTree
    read: Params


class Events(NamedTuple):
    """Pending events of the workers; times in seconds after the last update.

    Args:
        ready: when each worker's gradient is computed, `[N]`.
        partner: the neighbour with which it then averages, int32 `[N]`.
        free: when its ports are free, `[N]`.
        version: number of updates before it read its model, int32 `[N]`.
    """

    ready: jax.Array
    partner: jax.Array
    free: jax.Array
    version: jax.Array


class Exchange(NamedTuple):
    """The exchange with which the next update begins.

    Args:
        worker, partner: the two workers that average, int32 scalars.
        elapsed: seconds since the last update.
        events: the pending events after it.
    """

    worker: jax.Array
    partner: jax.Array
    elapsed: jax.Array
    events: Events


@method(
    sends="models, with one neighbour whenever a gradient is ready",
    needs=("symmetric W", "one W", "all workers"),
    paper="AD-PSGD: Lian et al., 2018, Algorithm 1",
    page="how_to/clusters/asynchronous.md",
    aliases=("ad_psgd",),
    graph=topologies.ring,
)
@checks.arguments
def asynchronous_gossip_sgd(
    optimizer: optax.GradientTransformation, topology: Topology
) -> Algorithm:
    r"""AD-PSGD: a worker that has computed a gradient averages its model with one neighbour, drawn
    uniformly, and makes its step, without synchronized rounds.

    $$ X_{t+1} = X_t W_t - \gamma\, g_{i_t}(\hat x_t^{(i_t)})\, e_{i_t}^\top, \qquad
       \hat x_t^{(i)} = x_s^{(i)} \text{ after its last update, } s \le t $$

    W_t averages the models of i_t and j_t.

    A round is one update, by the worker whose exchange starts next on the run's cluster (without a
    cluster, every gradient takes one second). An exchange is atomic: it occupies the ports of both
    workers for the latency plus the time of one model at the slowest of the four bandwidths. The
    partner continues its computation.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation.
        topology: determines the neighbours; its weights are not used.

    Raises:
        ValueError: if the topology is a schedule or a directed graph.

    Source: Lian et al., "Asynchronous decentralized parallel stochastic gradient descent", 2018,
    algorithm 1.
    """
    name = f"asynchronous_gossip_sgd({topology.name})"
    optimizers.require_descent(optimizer)
    gossip.require_topology("asynchronous_gossip_sgd", topology, symmetric=True, fixed=True)
    topology.require_one_exchange("asynchronous_gossip_sgd")
    neighbours = _neighbours(topology)

    def init(params, N):
        topology.require_workers(name, N)
        local = optimizers.init_local(optimizer, params, N)
        times, numbers = jnp.zeros(N, jnp.float32), jnp.zeros(N, jnp.int32)
        return State(
            Events(times, numbers, times, numbers),
            Local(local.params, local.optimizer, local.params),
        )

    def next_exchange(state: State, round: Round) -> Exchange:
        return _following(
            state.server,
            with_cluster(round),
            neighbours,
            communication.bits.row_bits(state.workers.params),
        )

    def query(state, round):
        weights.warn_if_cancelled("asynchronous_gossip_sgd", optimizer, round)
        return Query(state.workers.read, workers=next_exchange(state, round).worker[None])

    def update(state, gradients, round):
        round.require_all(NO_ROUNDS)
        now = next_exchange(state, round)
        local: Local = state.workers
        pair = jnp.stack([now.worker, now.partner])
        here, rows = workers.locate(pair, round.workers)
        with round.unrecorded():
            models, memories = workers.collect(
                here, jax.tree.map(lambda leaf: leaf[rows], (local.params, local.optimizer))
            )
        middle = jax.tree.map(lambda leaf: gossip.midpoint(leaf[0], leaf[1]), models)
        first = methods.first((gradients, models, memories))
        change, memory = optimizers.update(optimizer, first[0], first[2], first[1])
        stepped = optax.apply_updates(middle, change)
        # an index past the end on devices that do not store the row, which is not written
        own, partners = jnp.where(here, rows, workers.ids(round.workers).shape[0])
        # in this order, because a worker without neighbours is its own partner
        params = _put(own, stepped, _put(partners, middle, local.params))
        after = Local(params, _put(own, memory, local.optimizer), _put(own, stepped, local.read))
        # a worker without neighbours sends nothing
        among = jnp.where(now.worker == now.partner, -1, pair)
        round.event(local.params, among, now.elapsed, network.asynchronous_gossip)
        round.log(staleness=round.step - state.server.version[now.worker], worker=now.worker)
        return State(now.events, after)

    return Algorithm(name, init, query, update, lambda state: state.workers.params)


class _Neighbours(NamedTuple):
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


def _neighbours(topology: Topology) -> _Neighbours:
    links = topology.links[0]
    each = [
        links[links[:, 0] == worker, 1] if (links[:, 0] == worker).any() else np.array([worker])
        for worker in range(topology.n)
    ]
    degrees = np.array([len(some) for some in each], np.int32)
    return _Neighbours(
        np.stack([np.resize(some, degrees.max()) for some in each]).astype(np.int32), degrees
    )


def _begin(events: Events, round: Round, neighbours: _Neighbours) -> Events:
    """Starts every worker's first gradient in the first round."""

    def compute(events):
        ids = jnp.arange(round.workers)
        return events._replace(
            ready=round.cluster.seconds(round, ids),
            partner=neighbours.draw(jax.random.fold_in(round.key, 2), ids),
        )

    return lax.cond(round.step == 0, compute, lambda events: events, events)


def _following(events: Events, round: Round, neighbours: _Neighbours, bits: int) -> Exchange:
    """Returns the next update.

    Args:
        events: pending events before it.
        round: on a cluster. If its `work` is set, it determines the seconds of the gradients that
            start in this round.
        neighbours: from which the next partner is drawn.
        bits: size of a model.
    """
    events = _begin(events, round, neighbours)
    start = jnp.maximum(events.ready, jnp.maximum(events.free, events.free[events.partner]))
    # Among the exchanges that can start first, that of the worker that was ready first.
    worker = jnp.argmin(jnp.where(start == jnp.min(start), events.ready, jnp.inf)).astype(jnp.int32)
    pair = jnp.stack([worker, events.partner[worker]])
    latency = jnp.float32(round.cluster.latency)
    ports = (
        round.cluster.sending(round, pair, bits, start[worker]),
        round.cluster.receiving(round, pair, bits, start[worker] + latency),
    )
    # A worker without neighbours sends nothing.
    end = start[worker] + jnp.where(pair[0] == pair[1], 0.0, latency + jnp.max(jnp.stack(ports)))
    computing = begin_after(round, end)
    elapsed = jnp.maximum(end, 0)
    after = Events(
        events.ready.at[worker].set(end + round.cluster.seconds(computing, worker[None])[0])
        - elapsed,
        events.partner.at[worker].set(
            neighbours.draw(jax.random.fold_in(round.key, 3), worker[None])[0]
        ),
        events.free.at[pair].set(end) - elapsed,
        events.version.at[worker].set(round.step + 1),
    )
    return Exchange(worker, pair[1], elapsed, after)


def _put(place: jax.Array, row: PyTree, rows: PyTree) -> PyTree:
    """Writes `row`, with leaves `[...]`, to index `place` of `rows`, with leaves `[n, ...]`; for
    index n nothing is written.
    """
    return jax.tree.map(
        lambda one, leaf: leaf.at[place].set(one.astype(leaf.dtype), mode="drop"), row, rows
    )
