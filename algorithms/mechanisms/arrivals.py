"""Order and staleness of the gradients that arrive at an asynchronous server, event by event (the
survey's section 4.1).

A worker computes, sends its gradient to the server, receives the current model, and starts again.
The server's ports are those of `dsgd.network`: each port handles one message at a time, in the
order in which the messages are ready. With P servers, each server owns one shard of the model. A
worker sends the shards of its gradient one after the other, and the shards of the model return in
the same order, so that all servers receive the gradients in the same order
(`network.asynchronous_server_messages` lists the messages). One update is then one gradient; but
each shard is updated and read at its own time, and so has its own staleness.

Times are in seconds after the last update. The server keeps every model at which a worker computes,
in a buffer of N models; a worker's `slot` is the index of the model that it has read.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dsgd import Now, Round, clusters

# used if a run has no cluster: a gradient takes one second, and messages take no time
UNIT = clusters.Cluster(clusters.constant(1.0))

NO_ROUNDS = (
    "it has no rounds in which a worker could be absent; use longer compute times for slow workers"
)
# up to this number of servers the exchange is unrolled, since a loop would cost more than its body
_UNROLLED = 8


class Events(NamedTuple):
    """Pending events of the servers and workers; times in seconds after the last update.

    Args:
        ready: when each worker's gradient is computed, `[N]`.
        blocked_until: until when bounded staleness keeps the servers from accepting it, `[N]`.
        read: when each server starts to send its shard to each worker, `[N, P]`.
        version: number of updates of the shard before it was read, int32 `[N, P]`.
        slot: index of the shard that was read in the buffer, int32 `[N, P]`.
        into: when the servers' receiving ports are free, which is the time of their last update,
            `[P]`.
        out: when the servers' sending ports are free, `[P]`.
    """

    ready: jax.Array
    blocked_until: jax.Array
    read: jax.Array
    version: jax.Array
    slot: jax.Array
    into: jax.Array
    out: jax.Array


class Arrival(NamedTuple):
    """One gradient and the update that it makes.

    Args:
        worker: the worker that computed it, int32 scalar.
        staleness: number of updates of each shard since it was read, int32 `[P]`.
        slots: buffer indices of the shards at which it was computed, int32 `[P]`.
        write: buffer indices to which the updated shards are written, int32 `[P]`.
        elapsed: seconds since the last update; None: the run has no clock.
        events: the pending events after it; () if the staleness is given.
    """

    worker: jax.Array
    staleness: jax.Array
    slots: jax.Array
    write: jax.Array
    elapsed: jax.Array | None
    events: Events | tuple[()]


def first_events(N: int, servers: int) -> Events:
    """Returns the initial events: all workers have the initial model at time 0."""
    times, numbers = jnp.zeros((N, servers), jnp.float32), jnp.zeros((N, servers), jnp.int32)
    return Events(times[:, 0], times[:, 0], times - 1, numbers, numbers, times[0], times[0])


def with_cluster(round: Round) -> Round:
    """Returns the round, on the cluster `UNIT` if the run has none."""
    return round if round.now else round._replace(now=Now(UNIT))


def begin_after(round: Round, seconds: jax.Array) -> Round:
    """Returns the round as seen by a gradient that starts `seconds` after it, with a key that
    differs from that of the first round's own gradients.
    """
    assert round.now is not None
    return round._replace(
        key=jax.random.fold_in(round.key, 1), now=round.now._replace(clock=round.clock + seconds)
    )


def _start_first(events: Events, round: Round) -> Events:
    """Starts every worker's first gradient in the first round."""

    def compute(ready):
        return round.cluster.seconds(round, jnp.arange(round.workers))

    return events._replace(
        ready=lax.cond(round.step == 0, compute, lambda ready: ready, events.ready)
    )


def next_arrival(events: Events, round: Round, bits: float, bound: int | None) -> Arrival:
    """Returns the next update.

    Args:
        events: pending events before it.
        round: on a cluster. If its `work` is set, it determines the seconds of the gradients that
            start in this round.
        bits: size of one shard of the model.
        bound: tau of bounded staleness; None: unbounded.
    """
    events = _start_first(events, round)
    may = allowed_workers(events.version, round.step, bound)
    worker = jnp.argmin(jnp.where(may, events.ready, jnp.inf)).astype(jnp.int32)
    applied, read, received, out = _times_of_exchange(events, worker, round, bits)
    computing = begin_after(round, received)
    ready = events.ready.at[worker].set(
        received + round.cluster.seconds(computing, worker[None])[0]
    )
    reads = events.read.at[worker].set(read)
    # the pairs (worker, shard) that will read this update, or a later one
    fresh = (reads > applied[None]).at[worker].set(True)
    write = _free_index(events.slot, fresh)
    slot, version = (
        jnp.where(fresh, write[None], events.slot),
        jnp.where(fresh, round.step + 1, events.version),
    )
    elapsed = applied[-1]
    held = jnp.where(may, events.blocked_until, applied[0])
    after = Events(
        ready - elapsed,
        held - elapsed,
        reads - elapsed,
        version,
        slot,
        applied - elapsed,
        out - elapsed,
    )
    return Arrival(
        worker, round.step - events.version[worker], events.slot[worker], write, elapsed, after
    )


def _times_of_exchange(
    events: Events, worker: jax.Array, round: Round, bits: float
) -> tuple[jax.Array, ...]:
    """Returns the times at which a gradient reaches the servers and the model returns.

    Returns:
        When each shard is updated `[P]`, when each is read `[P]`, when the worker has received the
        last one (scalar), and until when the servers' sending ports are busy `[P]`.
    """
    cluster, latency = round.cluster, jnp.float32(round.cluster.latency)
    pipelined = cluster.convention == "pipelined"

    def exchange_part(busy, part):
        (sent, received), (into, out) = busy, part
        leaving = jnp.maximum(sent, into - (latency if pipelined else 0))
        sent = leaving + latency + cluster.sending(round, worker[None], bits, leaving)[0]
        reading = jnp.maximum(jnp.maximum(sent, received), out)
        down = cluster.receiving(round, worker[None], bits, reading + latency)[0]
        received = reading + latency + down
        return (sent, received), (sent, reading, reading + down if pipelined else received)

    begun = jnp.maximum(events.ready[worker], events.blocked_until[worker]), jnp.float32(-jnp.inf)
    few = events.into.shape[0] <= _UNROLLED
    (_, received), (applied, read, free) = lax.scan(
        exchange_part, begun, (events.into, events.out), unroll=few or 1
    )
    return applied, read, received, free


def allowed_workers(version: jax.Array, t: jax.Array, bound: int | None) -> jax.Array:
    """Returns the workers whose gradient may be update t, such that no staleness will ever exceed
    the bound, bool `[N]`.

    A gradient computed at version v must be one of the updates up to v + tau. Sorted by these
    deadlines, the k-th deadline must be at least t + k; if it equals t + k for some k, no worker
    with a later deadline may go first.
    """
    N = version.shape[0]
    if bound is None:
        return jnp.ones(N, bool)
    deadline = jnp.min(version, axis=1) + bound
    in_order = jnp.sort(deadline)
    urgent = in_order <= t + jnp.arange(N)
    return deadline <= jnp.min(jnp.where(urgent, in_order, jnp.iinfo(jnp.int32).max))


def _free_index(slot: jax.Array, fresh: jax.Array) -> jax.Array:
    """Returns, for each shard, a buffer index that is free: every worker that reads from it will
    read this update or a later one; int32 `[P]`.
    """
    N = slot.shape[0]
    taken = jnp.any((slot[:, :, None] == jnp.arange(N)[None, None]) & ~fresh[:, :, None], axis=0)
    return jnp.argmin(taken, axis=1).astype(jnp.int32)
