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
in a buffer; a `slot` is the index of the model that has been read.

There is one *job* for each worker: a model that was read, and the computation at it. A job ends
with a gradient that is sent; with `Options.steps`, it is a local run of several gradients, each of
which is an event, and only the last one sends something. A job ends with nothing to send if its
gradient takes longer than `Options.timeouts`, or if its worker leaves (`clusters.lifetimes`). The
server then says who begins (`proceed`): the worker of the job, by default; or another one, which
first ends the jobs that it has; or nobody, so that the job waits; and further jobs, which waited or
are stopped.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dsgd import Now, Round, clusters

# used if a run has no cluster: a gradient takes one second, and messages take no time
UNIT = clusters.Cluster(clusters.constant(1.0))

NO_ROUNDS = (
    "it has no rounds in which a worker could be absent; use longer compute times for slow workers"
)
# up to this number of servers the exchange is unrolled, since a loop would cost more than its body
_UNROLLED = 8


class Options(NamedTuple):
    """What jobs are and when they end.

    Args:
        bound: tau of bounded staleness; None: unbounded.
        steps: gradients of each worker's local runs, `[N]`; None: a job is one gradient.
        timeouts: seconds after which each worker's gradient is cut, `[N]`; None: never.
        concurrency: number of workers that compute from the start on; None: all.
    """

    bound: int | None = None
    steps: np.ndarray | None = None
    timeouts: np.ndarray | None = None
    concurrency: int | None = None


class Events(NamedTuple):
    """Pending events of the servers and of J = N jobs; times in seconds after the last update.

    Args:
        worker: the worker that computes each job, int32 `[J]`.
        began: when the computation of its gradient began, `[J]`.
        ready: when its gradient is computed, `[J]`; inf if it waits or never ends.
        lost: whether it then ends without a gradient, bool `[J]`.
        left: gradients left in its local run, int32 `[J]`.
        waiting: whether it waits for the server, bool `[J]`.
        blocked_until: until when bounded staleness keeps the servers from accepting it, `[J]`.
        read: when each server starts to send its shard for the job, `[J, P]`.
        version: number of updates of the shard before it was read, int32 `[J, P]`.
        slot: index of the shard that was read in the buffer, int32 `[J, P]`.
        into: when the servers' receiving ports are free, which is the time of their last update,
            `[P]`.
        out: when the servers' sending ports are free, `[P]`.
    """

    worker: jax.Array
    began: jax.Array
    ready: jax.Array
    lost: jax.Array
    left: jax.Array
    waiting: jax.Array
    blocked_until: jax.Array
    read: jax.Array
    version: jax.Array
    slot: jax.Array
    into: jax.Array
    out: jax.Array


class Arrival(NamedTuple):
    """The next event.

    Args:
        job, worker: the job and the worker that computed it, int32 scalars.
        staleness: number of updates of each shard since it was read, int32 `[P]`.
        slots: buffer indices of the shards at which it was computed, int32 `[P]`.
        sends: whether something arrives at the servers, bool scalar: not in the middle of a local
            run, and not if the gradient is lost.
        lost: whether there is no gradient.
        applied: when each shard is updated, `[P]`; None: the run has no clock.
    """

    job: jax.Array
    worker: jax.Array
    staleness: jax.Array
    slots: jax.Array
    sends: jax.Array | bool = True
    lost: jax.Array | bool = False
    applied: jax.Array | None = None


class After(NamedTuple):
    """The state after an event.

    Args:
        events: the pending events.
        write: buffer indices to which the updated shards are written, int32 `[P]`.
        elapsed: seconds since the last event.
        began, ready: when the computation of this event began and ended, seconds since the last
            event.
        resumed: when its job is computed again; NaN if it waits or will never be ready.
    """

    events: Events
    write: jax.Array
    elapsed: jax.Array
    began: jax.Array
    ready: jax.Array
    resumed: jax.Array


def first_events(N: int, servers: int, options: Options) -> Events:
    """Returns the initial events: all workers have the initial model at time 0."""
    times, numbers = jnp.zeros((N, servers), jnp.float32), jnp.zeros((N, servers), jnp.int32)
    return Events(
        jnp.arange(N, dtype=jnp.int32),
        times[:, 0],
        times[:, 0],
        jnp.zeros(N, bool),
        jnp.ones(N, jnp.int32) if options.steps is None else jnp.asarray(options.steps),
        jnp.arange(N) >= (N if options.concurrency is None else options.concurrency),
        times[:, 0],
        times - 1,
        numbers,
        numbers,
        times[0],
        times[0],
    )


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


def next_arrival(events: Events, round: Round, bits: float, options: Options) -> Arrival:
    """Returns the next event.

    Args:
        events: pending events before it, of `start_first`.
        round: on a cluster. If its `work` is set, it determines the seconds of the gradients that
            start in this round.
        bits: size of one shard of the model.
        options: what jobs are.
    """
    may = allowed_workers(events.version, round.step, options.bound)
    job = earliest(jnp.where(may, events.ready, jnp.inf))
    worker, lost, sends = events.worker[job], False, True
    if options.timeouts is not None or round.cluster.spells is not None:
        lost = events.lost[job]
        sends = ~lost
    if options.steps is not None:
        sends &= events.left[job] == 1
    begin = jnp.maximum(events.ready[job], events.blocked_until[job])
    begin = jnp.where(jnp.isinf(begin), 0, begin)  # no job will end, which the method refuses
    applied = _send_up(events.into, begin, worker, round, bits)
    return Arrival(
        job,
        worker,
        round.step - events.version[job],
        events.slot[job],
        sends,
        lost,
        jnp.where(sends, applied, jnp.maximum(begin, 0)),
    )


def proceed(
    events: Events,
    now: Arrival,
    orders: jax.Array | None,
    round: Round,
    bits: float,
    options: Options,
) -> After:
    """Returns the state after an event.

    Args:
        events: pending events before it, of `start_first`.
        now: the event.
        orders: for each job, the worker that receives the current model and computes the job; -1:
            the job goes on, or waits if it is that of the event; int32 `[J]`. None: the event's
            worker goes on with the current model.
        round, bits, options: as in `next_arrival`.
    """
    job, applied, jobs = now.job, now.applied, jnp.arange(round.workers)
    assert applied is not None
    may = allowed_workers(events.version, round.step, options.bound)
    after = events._replace(
        blocked_until=jnp.where(may, events.blocked_until, applied[0]),
        into=jnp.where(now.sends, applied, events.into),
    )
    if orders is None:
        new, unused = jobs == job, False
        after = _begin(after, job, now.worker, -jnp.inf, applied, round, bits, options)
    else:
        new = orders >= 0
        unused = (events.waiting | (jobs == job)) & ~new
        ready = jnp.where(jobs == job, jnp.inf, events.ready)
        after = after._replace(ready=ready, waiting=unused)
        after = _begin_all(after, orders, applied, round, bits, options)
    if options.steps is not None:
        inner = ~(now.sends | now.lost)  # the worker goes on with its own model
        free = _free_at(events, now.worker, jobs != job)
        begin = jnp.maximum(events.ready[job], free)
        same = _compute(events, job, now.worker, begin, round, options)
        same = same._replace(left=events.left.at[job].add(-1))
        after = jax.tree.map(partial(jnp.where, inner), same, after)
        new, unused = new & ~inner, unused & ~inner
    # the jobs and shards that will read this update, or a later one
    fresh = (after.read > applied[None]) | new[:, None]
    models = round.workers + (options.steps is not None)
    write = _free_index(after.slot, fresh | jnp.reshape(unused, (-1, 1)), models)
    elapsed = applied[-1]
    return After(
        after._replace(
            began=after.began - elapsed,
            ready=after.ready - elapsed,
            blocked_until=after.blocked_until - elapsed,
            read=after.read - elapsed,
            version=jnp.where(fresh, round.step + 1, after.version),
            slot=jnp.where(fresh, write[None], after.slot),
            into=after.into - elapsed,
            out=after.out - elapsed,
        ),
        write,
        elapsed,
        events.began[job],
        events.ready[job],
        jnp.where(jnp.isinf(after.ready[job]), jnp.nan, after.began[job]),
    )


def start_first(events: Events, round: Round, options: Options) -> Events:
    """Starts the first gradient of every worker that does not wait, in the first round."""

    def compute(events):
        everybody = jnp.arange(round.workers)
        began = jnp.zeros(round.workers, jnp.float32)
        ready, lost = _end(began, everybody, round, options)
        if options.concurrency is not None:
            ready = jnp.where(events.waiting, jnp.inf, ready)
        return events._replace(ready=ready, lost=lost)

    return lax.cond(round.step == 0, compute, lambda events: events, events)


def _begin(
    events: Events,
    job: jax.Array,
    worker: jax.Array,
    free: Any,
    applied: jax.Array,
    round: Round,
    bits: float,
    options: Options,
) -> Events:
    """Sends the current model to a worker, which begins a job when it has received the model and is
    free.
    """
    read, received, out = _send_down(events.out, applied, worker, round, bits)
    events = _compute(events, job, worker, jnp.maximum(received, free), round, options)
    if options.steps is not None:
        left = jnp.asarray(options.steps)[worker]
        events = events._replace(left=events.left.at[job].set(left))
    return events._replace(read=events.read.at[job].set(read), out=out)


def _begin_all(
    events: Events,
    orders: jax.Array,
    applied: jax.Array,
    round: Round,
    bits: float,
    options: Options,
) -> Events:
    """Begins the jobs with an order, one after the other; a worker first ends jobs that go on."""

    def begin_next(left):
        events, orders = left
        job = _first(orders >= 0)
        free = _free_at(events, orders[job], orders < 0)
        own = round._replace(key=jax.random.fold_in(round.key, job))
        events = _begin(events, job, orders[job], free, applied, own, bits, options)
        return events, orders.at[job].set(-1)

    return lax.while_loop(lambda left: jnp.any(left[1] >= 0), begin_next, (events, orders))[0]


def _free_at(events: Events, worker: jax.Array, jobs: jax.Array) -> jax.Array:
    """Returns until when the worker computes some of the given jobs, bool `[J]`."""
    going_on = jobs & (events.worker == worker) & jnp.isfinite(events.ready)
    return jnp.max(events.ready, where=going_on, initial=-jnp.inf)


def _compute(
    events: Events,
    job: jax.Array,
    worker: jax.Array,
    begin: jax.Array,
    round: Round,
    options: Options,
) -> Events:
    """Starts the computation of a gradient at the time `begin`."""
    ready, lost = _end(begin[None], worker[None], begin_after(round, begin), options)
    return events._replace(
        worker=events.worker.at[job].set(worker),
        began=events.began.at[job].set(begin),
        ready=events.ready.at[job].set(ready[0]),
        lost=events.lost.at[job].set(lost[0]),
    )


def _end(
    begin: jax.Array, ids: jax.Array, round: Round, options: Options
) -> tuple[jax.Array, jax.Array]:
    """Returns when computations end, and whether without a gradient, `[k]` each.

    Args:
        begin: when they begin, seconds after the last event, `[k]`.
        ids: their workers, `[k]`.
        round: its clock and key are those of the gradients.
        options: the time-outs.
    """
    seconds = round.cluster.seconds(round, ids)
    lost = jnp.zeros(seconds.shape, bool)
    if options.timeouts is not None:
        longest = jnp.asarray(options.timeouts, seconds.dtype)[ids]
        seconds, lost = jnp.minimum(seconds, longest), seconds > longest
    end = begin + seconds
    if (spells := round.cluster.spells) is None:
        return end, lost
    joins, leaves = jnp.moveaxis(jnp.asarray(spells, end.dtype)[ids], -1, 0)
    # A worker joins at an event, and the clock of an event is rounded.
    joined = joins <= round.clock * (1 + 1e-6)
    works = jnp.any(joined & ((round.clock + seconds)[:, None] <= leaves), axis=1)
    back = jnp.min(joins, axis=1, where=~joined, initial=jnp.inf) - round.clock
    return jnp.where(works, end, begin + back), lost | ~works


def _send_up(
    into: jax.Array, begin: jax.Array, worker: jax.Array, round: Round, bits: float
) -> jax.Array:
    """Returns when the shards of a gradient that is ready at `begin` have reached the servers,
    `[P]`.
    """
    cluster, latency = round.cluster, jnp.float32(round.cluster.latency)
    ahead = latency if cluster.convention == "pipelined" else 0
    if cluster.nodes and len(into) > 1:
        raise ValueError(
            f"servers = {len(into)} on {cluster.nodes.name}: workers of one machine would send to "
            "several servers at once over one network card; expected servers=1, or nodes=None"
        )

    def send(sent, into):
        leaving = jnp.maximum(sent, into - ahead)
        sent = leaving + latency + cluster.sending(round, worker[None], bits, leaving)[0]
        return sent, sent

    return lax.scan(send, begin, into, unroll=len(into) <= _UNROLLED or 1)[1]


def _send_down(
    out: jax.Array, applied: jax.Array, worker: jax.Array, round: Round, bits: float
) -> tuple[jax.Array, ...]:
    """Returns the times of a model that is sent after an event.

    Returns:
        When each shard is read `[P]`, when the worker has received the last one (scalar), and until
        when the servers' sending ports are busy `[P]`.
    """
    cluster, latency = round.cluster, jnp.float32(round.cluster.latency)
    pipelined = cluster.convention == "pipelined"

    def send(received, times):
        reading = jnp.maximum(jnp.maximum(times[0], received), times[1])
        down = cluster.receiving(round, worker[None], bits, reading + latency)[0]
        received = reading + latency + down
        return received, (reading, reading + down if pipelined else received)

    unroll = len(out) <= _UNROLLED or 1
    received, (read, free) = lax.scan(send, jnp.float32(-jnp.inf), (applied, out), unroll=unroll)
    return read, received, free


def earliest(times: jax.Array) -> jax.Array:
    """Returns the place of the smallest of some times, `[k]`; of several, the first."""
    return _first(times == jnp.min(times))


def _first(where: jax.Array) -> jax.Array:
    """Returns the first place at which `where`, `[k]`, holds; the last one if there is none."""
    # jnp.argmax and argmin are four times as slow on CPUs
    last = len(where) - 1
    return jnp.min(jnp.arange(len(where), dtype=jnp.int32), where=where, initial=last)


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


def _free_index(slot: jax.Array, unused: jax.Array, models: int) -> jax.Array:
    """Returns, for each shard, an index of the buffer that is free, int32 `[P]`.

    Args:
        slot: index of each job and shard, `[J, P]`.
        unused: whether the job does not need it any more, bool `[J, P]`.
        models: number of indices.
    """
    servers = jnp.arange(slot.shape[1])
    taken = jnp.zeros((models, slot.shape[1]), bool).at[slot, servers].max(~unused)
    return jax.vmap(_first, 1)(~taken)
