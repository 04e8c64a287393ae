r"""Whose gradient arrives next at an asynchronous server, computed at which model: the survey's
section 4.1, event by event.

A worker computes, sends its gradient to the server, receives the model as it then is, and begins
again. The server's ports are those of `dsgd.network`: each takes one message at a time, the first
that is ready first. With P servers, each has one part of the model; a worker sends its parts one
after the other, and they come back in the same order, so that all servers see the gradients in one
order (`network.asynchronous_server_messages` lists the messages). Then one update is one gradient;
but it is applied to each part, and each part is read, at its own time, so that each has its own
staleness.

Times are seconds after the last update. The server keeps each model that somebody computes at: a
buffer of N, where a worker's `slot` says which is the one that it has read.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dsgd import clusters
from dsgd.base import Now, Round

# where a run has no cluster: everybody computes for a second, and messages take no time
UNIT = clusters.Cluster(clusters.constant(1.0))

NO_ROUNDS = "it has no rounds; a worker that does not participate is a slow one, with longer seconds of compute"
# servers up to which the trip is one expression, whose loop would cost more than it does
_UNROLLED = 8


class Events(NamedTuple):
    """What the servers and workers are about to do.

    Args:
        ready: when each worker's gradient is computed, `[N]`.
        held: until when the server would not take it, of bounded staleness, `[N]`.
        read: when each server begins to send each worker its part, `[N, P]`.
        version: how many updates had been made to the part then, int32 `[N, P]`.
        slot: where that part is in the buffer, int32 `[N, P]`.
        into: when the servers' receiving ports are free, which is when the last update was, `[P]`.
        out: when their sending ports are free, `[P]`.
    """

    ready: jax.Array
    held: jax.Array
    read: jax.Array
    version: jax.Array
    slot: jax.Array
    into: jax.Array
    out: jax.Array


class Arrival(NamedTuple):
    """One gradient, and the update that it makes.

    Args:
        worker: whose, int32 scalar.
        staleness: updates that were made to each part since it was read, int32 `[P]`.
        slots: where the parts that it was computed at are in the buffer, int32 `[P]`.
        write: where the updated parts belong, int32 `[P]`.
        elapsed: seconds since the last update; None: there is no time.
        events: after it; () where the staleness is given.
    """

    worker: jax.Array
    staleness: jax.Array
    slots: jax.Array
    write: jax.Array
    elapsed: jax.Array | None
    events: Events | tuple[()]


def first_events(N: int, servers: int) -> Events:
    """Everybody has the first model at 0."""
    times, numbers = jnp.zeros((N, servers), jnp.float32), jnp.zeros((N, servers), jnp.int32)
    return Events(times[:, 0], times[:, 0], times - 1, numbers, numbers, times[0], times[0])


def on_cluster(round: Round) -> Round:
    """The same round, on `UNIT` where the run has no cluster."""
    return round if round.now else round._replace(now=Now(UNIT))


def begun_after(round: Round, seconds: jax.Array) -> Round:
    """The round as a gradient sees it that is begun so many seconds after it; its key is another
    one than in the first round.
    """
    assert round.now is not None
    return round._replace(
        key=jax.random.fold_in(round.key, 1), now=round.now._replace(clock=round.clock + seconds)
    )


def _begin(events: Events, round: Round) -> Events:
    """In the first round, everybody's first gradient is begun."""

    def compute(ready):
        return round.cluster.seconds(round, jnp.arange(round.workers))

    return events._replace(
        ready=lax.cond(round.step == 0, compute, lambda ready: ready, events.ready)
    )


def following(events: Events, round: Round, bits: float, bound: int | None) -> Arrival:
    """The next update.

    Args:
        events: before it.
        round: on a cluster; its `work`, where it has one, sets the seconds of the gradients that
            are begun in it.
        bits: of one part of the model.
        bound: tau of bounded staleness; None: there is none.
    """
    events = _begin(events, round)
    may = allowed(events.version, round.step, bound)
    worker = jnp.argmin(jnp.where(may, events.ready, jnp.inf)).astype(jnp.int32)
    applied, read, received, out = _trip(events, worker, round, bits)
    computing = begun_after(round, received)
    ready = events.ready.at[worker].set(
        received + round.cluster.seconds(computing, worker[None])[0]
    )
    reads = events.read.at[worker].set(read)
    # who will read this update, or a later one
    fresh = (reads > applied[None]).at[worker].set(True)
    write = _unused(events.slot, fresh)
    slot, version = (
        jnp.where(fresh, write[None], events.slot),
        jnp.where(fresh, round.step + 1, events.version),
    )
    elapsed = applied[-1]
    held = jnp.where(may, events.held, applied[0])
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


def _trip(events: Events, worker: jax.Array, round: Round, bits: float) -> tuple[jax.Array, ...]:
    """A gradient's way to the servers, and the model's way back.

    Returns:
        When each part is applied `[P]`, when each is read `[P]`, when the last has been received,
        and until when servers send `[P]`.
    """
    cluster, latency = round.cluster, jnp.float32(round.cluster.latency)
    pipelined = cluster.convention == "pipelined"

    def trip_of_part(busy, part):
        (sent, received), (into, out) = busy, part
        leaving = jnp.maximum(sent, into - (latency if pipelined else 0))
        sent = leaving + latency + cluster.sending(round, worker[None], bits, leaving)[0]
        reading = jnp.maximum(jnp.maximum(sent, received), out)
        down = cluster.receiving(round, worker[None], bits, reading + latency)[0]
        received = reading + latency + down
        return (sent, received), (sent, reading, reading + down if pipelined else received)

    begun = jnp.maximum(events.ready[worker], events.held[worker]), jnp.float32(-jnp.inf)
    few = events.into.shape[0] <= _UNROLLED
    (_, received), (applied, read, free) = lax.scan(
        trip_of_part, begun, (events.into, events.out), unroll=few or 1
    )
    return applied, read, received, free


def allowed(version: jax.Array, t: jax.Array, bound: int | None) -> jax.Array:
    """Whose gradient the server may take as update t, so that no staleness will ever exceed the
    bound, bool `[N]`.

    A gradient computed at version v must be one of the updates up to v + tau. Sorted by these
    deadlines, the k-th must not be before t + k, and where one of them is exactly that, nobody
    later may go first.
    """
    N = version.shape[0]
    if bound is None:
        return jnp.ones(N, bool)
    deadline = jnp.min(version, axis=1) + bound
    in_order = jnp.sort(deadline)
    urgent = in_order <= t + jnp.arange(N)
    return deadline <= jnp.min(jnp.where(urgent, in_order, jnp.iinfo(jnp.int32).max))


def _unused(slot: jax.Array, fresh: jax.Array) -> jax.Array:
    """Of each part, a place in the buffer that nobody computes at who does not read this update,
    int32 `[P]`.
    """
    N = slot.shape[0]
    taken = jnp.any((slot[:, :, None] == jnp.arange(N)[None, None]) & ~fresh[:, :, None], axis=0)
    return jnp.argmin(taken, axis=1).astype(jnp.int32)
