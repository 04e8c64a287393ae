"""R-FAST: gradient tracking on directed graphs without rounds."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from scipy.sparse import coo_array

import topologies
from algorithms import gossip, methods, optimizers
from algorithms.facts import method
from algorithms.mechanisms.arrivals import NO_ROUNDS, begin_after, earliest, with_cluster
from algorithms.mechanisms.pairs import put_rows
from algorithms.mechanisms.tracking import Tracking, track
from dsgd import Algorithm, Query, Round, State, Topology, checks, communication, network, workers
from dsgd.extend import Params, PyTree


class Message(NamedTuple):
    """What each link carries, leaves `[E, ...]`.

    Args:
        model: v, the sender's model after its step.
        total: rho, the sum of all shares of its trackers for the receiver.
    """

    model: Params
    total: Params


class Links(NamedTuple):
    """Pending events of N workers and E links; times in seconds after the last update.

    Args:
        began, ready: when each worker's computation begins and ends, `[N]`.
        arrives: when the message under way on each link arrives, `[E]`; inf: there is none.
        total: rho, the sum of all shares of the sender, leaves `[E, ...]`.
        under_way: the last message that was sent.
        arrived: the last message that arrived.
        taken: the part of rho that the receiver has added to its tracker, leaves `[E, ...]`.
    """

    began: jax.Array
    ready: jax.Array
    arrives: jax.Array
    total: Params
    under_way: Message
    arrived: Message
    taken: Params


@method(
    sends="models and running sums of trackers, to the neighbours after each gradient",
    exact="any data",
    needs=("one W", "all workers"),
    paper="R-FAST: Zhu et al., 2023",
    page="how_to/clusters/asynchronous.md",
    graph=topologies.exponential,
)
@checks.arguments
def r_fast(optimizer: optax.GradientTransformation, pull: Topology, push: Topology) -> Algorithm:
    r"""R-FAST: Push-Pull without rounds. A worker i that has computed a gradient adds what has
    arrived of its neighbours' trackers to its own, makes a step, sends, averages the last models
    that arrived, and computes the next gradient at once.

    $$ u = z_i + \sum_j \big(\rho_{ij} - \tilde\rho_{ij}\big) + g_i(x_i) - g_i^{\text{last}}, \qquad
       \tilde\rho_{ij} \leftarrow \rho_{ij} \qquad (1) $$
    $$ z_i \leftarrow P_{ii} u, \qquad \rho_{ji} \leftarrow \rho_{ji} + P_{ji} u, \qquad
       v_i \leftarrow x_i - \gamma z_i, \qquad
       x_i \leftarrow R_{ii} v_i + \sum_j R_{ij} v_j \qquad (2) $$

    $\rho_{ij}$ and $v_j$ in the sums are those of the last message from j to i that arrived. A
    message has the sum of all shares so far, so that nothing is lost with a message that is not
    sent: trackers and shares that are not yet added, $\sum_i z_i + \sum_{ij} (\rho_{ij} -
    \tilde\rho_{ij})$, are always the sum of the last gradients. With exact gradients and a small
    step size, all models converge to the minimizer of f, for any data, speeds and delays that are
    bounded.

    A round is one gradient. Links work at the same time: each takes the latency and the time of its
    message at the slower of the two ports, and carries one message at a time; a worker sends
    nothing on a link with a message that is under way. Models and shares travel together on links
    that belong to both graphs. The history has `worker` and, on a cluster, `began`, `ended` and
    `resumed`.

    The state has six models for each of the E links, on every device, and, for each worker, a
    model, a tracker, a gradient and the optimizer's state.

    Args:
        optimizer: each worker's step along its tracker; `optax.sgd(gamma)` gives the equations.
        pull: R, with rows that sum to 1, as in `push_pull`; one matrix for all rounds.
        push: P, with columns that sum to 1, as in `push_pull`; one matrix for all rounds.

    Raises:
        ValueError: if the rows of R or the columns of P do not sum to 1, one of the topologies is a
            schedule, or they have different workers or no common root.

    Source: Zhu, Tian, Huang, Xu and Ying, "R-FAST: robust fully-asynchronous stochastic gradient
    tracking over general topology", 2023, algorithm 1. The step follows the gradient here, so that
    messages have the newest model.
    """
    name = f"r_fast({pull.name}, {push.name})"
    optimizers.require_descent(optimizer)
    gossip.require_pull_and_push("r_fast", pull, push, fixed=True)
    graph = _graph(pull, push)
    E = len(graph.senders)
    pattern = network.Asynchronous(
        name,
        # No worker waits for a message.
        lambda N, latency, transfer, convention: 0.0,
        lambda N: float(graph.vectors.sum()) / N**2,
    )

    def init(params, N):
        pull.require_workers(name, N)
        models = optimizers.init_local(optimizer, params, N)
        zero = optax.tree.zeros_like(params)
        sums, seconds = workers.replicate(zero, E), jnp.zeros(N, jnp.float32)
        # The initial models are known to all workers at time 0.
        known = Message(workers.replicate(params, E), sums)
        links = Links(seconds, seconds, jnp.full(E, jnp.inf, jnp.float32), sums, known, known, sums)
        return State(links, Tracking(*models, *[workers.replicate(zero, N)] * 2))

    def begin(links: Links, round: Round) -> Links:
        """Returns the links, in the first round with the first gradients' seconds."""

        def first(ready):
            return round.cluster.seconds(round, jnp.arange(round.workers))

        return links._replace(ready=lax.cond(round.step == 0, first, lambda x: x, links.ready))

    def query(state, round):
        ready = begin(state.server, with_cluster(round)).ready
        return Query(state.workers.params, workers=earliest(ready)[None])

    def update(state, gradients, round):
        round.require_all(NO_ROUNDS)
        placed = with_cluster(round)
        links = begin(state.server, placed)
        i = earliest(links.ready)
        now, g = links.ready[i], methods.first(gradients)
        here, row = workers.locate(i[None], round.workers)
        with round.unrecorded():
            own = workers.collect(here, jax.tree.map(lambda leaf: leaf[row], state.workers))
        own = methods.first(own)
        into, out = jnp.asarray(graph.into)[i], jnp.asarray(graph.out)[i]
        links = _deliver(links, jnp.concatenate([into, out]), now)

        received, taken = _at(links.arrived, into), _at(links.taken, into)
        y = jax.tree.map(
            lambda z, rho, old: z + jnp.sum(rho - old, axis=0), own.tracker, received.total, taken
        )
        u = track(y, g, own.gradient)
        kept, weight = jnp.asarray(graph.kept)[i], jnp.asarray(graph.own)[i]
        z = jax.tree.map(lambda one: _times(kept, one[None])[0].astype(one.dtype), u)
        change, memory = optimizers.update(optimizer, z, own.optimizer, own.params)
        v = optax.apply_updates(own.params, change)
        given = _at(jnp.asarray(graph.push), out)
        total = jax.tree.map(
            lambda rho, one: rho + _times(given, one[None]), _at(links.total, out), u
        )
        averaged = _at(jnp.asarray(graph.pull), into)
        x = _weighted_sum(v, weight, received.model, averaged)

        free = out < E
        free &= jnp.isinf(links.arrives.at[out].get(mode="fill", fill_value=0))
        sends = jnp.where(free, out, E)
        bits = communication.bits.row_bits(state.workers.params)
        seconds = _seconds(placed, graph, out, bits, now)
        ready = now + placed.cluster.seconds(begin_after(placed, now), i[None])[0]
        message = Message(workers.replicate(v, len(out)), total)
        after = Links(
            links.began.at[i].set(now) - now,
            links.ready.at[i].set(ready) - now,
            links.arrives.at[sends].set(now + seconds, mode="drop") - now,
            put_rows(links.total, out, total),
            put_rows(links.under_way, sends, message),
            links.arrived,
            put_rows(links.taken, into, received.total),
        )
        place = jnp.where(here, row, workers.ids(round.workers).shape[0])
        rows = jax.tree.map(lambda leaf: leaf[None], Tracking(x, memory, z, g))
        ends = jnp.stack([_at(jnp.asarray(each), sends) for each in graph[:2]], axis=1)
        pairs = [
            jnp.where((free & _at(jnp.asarray(part), out))[:, None], ends, -1)
            for part in (graph.pulls, graph.pushes)
        ]
        round.event(state.workers.params, jnp.concatenate(pairs), now, pattern)
        round.log(worker=i)
        if round.now:
            times = {"began": links.began[i], "ended": now, "resumed": now}
            round.log(**{column: round.clock + time for column, time in times.items()})
        return State(after, put_rows(state.workers, place, rows))

    return Algorithm(name, init, query, update, lambda state: state.workers.params)


class _Graph(NamedTuple):
    """The links of both graphs.

    Args:
        senders, receivers: the workers of each link, int32 `[E]`.
        pulls, pushes: whether it carries models, and shares of trackers, bool `[E]`.
        pull, push: R_ij and P_ij, from j to i, `[E]`; 0 if it does not carry them.
        own, kept: R_ii and P_ii, `[N]`.
        into, out: numbers of each worker's links, padded with E, int32 `[N, K]`.
    """

    senders: np.ndarray
    receivers: np.ndarray
    pulls: np.ndarray
    pushes: np.ndarray
    pull: np.ndarray
    push: np.ndarray
    own: np.ndarray
    kept: np.ndarray
    into: np.ndarray
    out: np.ndarray

    @property
    def vectors(self) -> np.ndarray:
        """Number of vectors of a message, `[E]`."""
        return self.pulls.astype(np.int32) + self.pushes


def _graph(pull: Topology, push: Topology) -> _Graph:
    """Returns the links of R and P."""
    links = np.unique(np.concatenate([pull.links[0], push.links[0]]), axis=0).astype(np.int32)
    senders, receivers = links.T
    (r, own), (p, kept) = (_weights(topology, links) for topology in (pull, push))
    into, out = (_numbers(ends, pull.n) for ends in (receivers, senders))
    return _Graph(senders, receivers, r != 0, p != 0, r, p, own, kept, into, out)


def _weights(topology: Topology, links: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the entries of W of the links, which are sorted, `[E]`, and its diagonal, `[N]`."""
    W = coo_array(topology.matrices[0])
    other, found = W.row != W.col, np.zeros(len(links))
    numbers, entries = (
        senders.astype(np.int64) * topology.n + receivers
        for senders, receivers in (links.T, (W.col[other], W.row[other]))
    )
    found[np.searchsorted(numbers, entries)] = W.data[other]
    return found, W.diagonal()


def _numbers(ends: np.ndarray, N: int) -> np.ndarray:
    """Returns the numbers of the links with each worker at this end, padded with E, `[N, K]`."""
    each = [np.flatnonzero(ends == n) for n in range(N)]
    found = np.full((N, max(map(len, each))), len(ends), np.int32)
    for row, numbers in zip(found, each, strict=True):
        row[: len(numbers)] = numbers
    return found


def _deliver(links: Links, touched: jax.Array, now: jax.Array) -> Links:
    """Delivers the messages that have arrived on the given links."""
    arrives = links.arrives.at[touched].get(mode="fill", fill_value=jnp.inf)
    landed = jnp.where(arrives <= now, touched, len(links.arrives))
    return links._replace(
        arrives=links.arrives.at[landed].set(jnp.inf, mode="drop"),
        arrived=put_rows(links.arrived, landed, _at(links.under_way, landed)),
    )


def _seconds(round: Round, graph: _Graph, links: jax.Array, bits: int, now: jax.Array) -> jax.Array:
    """Returns the seconds of messages that are sent on these links now, `[k]`."""
    senders, receivers, vectors = (
        _at(jnp.asarray(each), links) for each in (*graph[:2], graph.vectors)
    )
    latency, size = jnp.float32(round.cluster.latency), vectors * jnp.float32(bits)
    return latency + jnp.maximum(
        round.cluster.sending(round, senders, size, now),
        round.cluster.receiving(round, receivers, size, now + latency),
    )


def _times(weights: jax.Array, rows: jax.Array) -> jax.Array:
    """Returns rows, `[k, ...]` or `[1, ...]`, times weights, `[k]`, in the type of the rows or
    float32.
    """
    wide = jnp.promote_types(rows.dtype, jnp.float32)
    return weights.astype(wide).reshape(-1, *[1] * (rows.ndim - 1)) * rows.astype(wide)


def _weighted_sum(own: Params, weight: jax.Array, others: Params, weights: jax.Array) -> Params:
    """Returns a vector, leaves `[...]`, times its weight, plus others, leaves `[k, ...]`, times
    theirs.
    """

    def add(one, rows):
        total = _times(weight, one[None])[0] + _times(weights, rows).sum(axis=0)
        return total.astype(one.dtype)

    return jax.tree.map(add, own, others)


def _at(tree: PyTree, rows: jax.Array) -> PyTree:
    """Returns these rows; zeros if the index is too large."""
    return jax.tree.map(lambda leaf: leaf.at[rows].get(mode="fill", fill_value=0), tree)
