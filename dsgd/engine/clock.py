r"""The simulated clock of a run: how long rounds take on a cluster.

A worker begins its round when it has sent and received all messages of the previous round. It
computes its gradient, or several one after the other; then its messages flow according to the
method's pattern (`network.exchange`). The clock shows the time of the last worker; others may be
ahead of it, and stay ahead until a message makes them wait. A worker that does not participate in a
round computes nothing in it, and may begin the next round when the last worker is done.

If messages overlap with the computation of the gradient, the exchange is evaluated twice: with all
bits from when the first bucket is ready, and with the bits of the last bucket alone from when the
gradient is computed; a worker is done when both are done. For an all-reduce this is
$T = \max(\max_n (a_n + \gamma P_n) + T_{comm}, \max_n (a_n + P_n) + T_u)$ (equation 7 of
"Cannikin").

Messages that a method needs only in a later round (`Communicator.delayed`) are sent when the
workers are done with the round, and after all earlier such messages. In the later round a worker is
ready when it has computed its gradient and these messages have arrived. They are assumed not to
slow down the other messages of the rounds in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dsgd import network, workers
from dsgd.base import LocalWork, Problem, Round, Timings
from dsgd.communication import Statistics
from dsgd.engine import measurements, queries
from dsgd.engine.queries import AllAsked, Asked
from dsgd.engine.tape import Transfer
from dsgd.network import Timing
from dsgd.wire import counts

# Folded into a round's key for the times of the queries after the first.
_QUERIES = 0x71756572


class Pending(NamedTuple):
    """Delayed messages of the exchanges that have any, E of them.

    Args:
        done: when each worker is done with the last messages of each exchange, in seconds relative
            to `Clock.now`, `[E, N]`.
        due: the round in which they are needed, int32 `[E]`.
    """

    done: jax.Array
    due: jax.Array


class Clock(NamedTuple):
    """State of the clock, in seconds.

    Args:
        now: when the last worker was done.
        rounding: what `now` has lost by rounding, so that sums of many short rounds are accurate in
            float32.
        lead: how long before `now` each worker was done, `[N]`.
        timings: timings that the workers measured in the last round; () if the method does not use
            them.
        pending: delayed messages; () if the method has none.
    """

    now: jax.Array
    rounding: jax.Array
    lead: jax.Array
    timings: Timings | tuple[()] = ()
    pending: Pending | tuple[()] = ()


def start(N: int, timings: Timings | tuple[()] = (), delayed_exchanges: int = 0) -> Clock:
    """Returns the clock of the start: all workers are ready at 0.

    Args:
        N: number of workers.
        timings: timings before the first round; () if they are not carried.
        delayed_exchanges: number of exchanges with delayed messages.
    """
    zero, E, pending = jnp.zeros((), jnp.float32), delayed_exchanges, ()
    if E:
        pending = Pending(jnp.zeros((E, N), jnp.float32), jnp.full(E, -1, jnp.int32))
    return Clock(zero, zero, jnp.zeros(N, jnp.float32), timings, pending)


def tick(
    clock: Clock,
    name: str,
    problem: Problem,
    round: Round,
    asked: AllAsked,
    exchanges: Sequence[Transfer],
    statistics: Statistics | None = None,
) -> Clock:
    """Returns the clock after a round.

    Args:
        clock: the clock before the round.
        name: name of the method.
        problem: the problem.
        round: the round, with its cluster.
        asked: the query for gradients, or the queries.
        exchanges: exchanges of the round, in order.
        statistics: communication statistics of the round, for a method that keeps its own time,
            stops workers early, or reads timings; None: it does none of these.

    Raises:
        ValueError: if the method keeps its own time and the cluster has an overlap, or machines
            with several workers between which its messages do not pass a server.
    """
    cluster, timings = round.cluster, clock.timings
    assert cluster is not None
    if statistics and statistics.elapsed is not None:
        if cluster.overlap:
            raise ValueError(
                f"{name} keeps its own time, but the cluster has an overlap, "
                f"{cluster.overlap.name}; expected a cluster with overlap=None"
            )
        if cluster.nodes and any(e.pattern != network.asynchronous_server for e in exchanges):
            raise ValueError(
                f"{name} keeps its own time, but the cluster has machines with several workers, "
                f"{cluster.nodes.name}; expected a method with a server, or nodes=None"
            )
        return _add_seconds(clock, statistics.elapsed, clock.lead, timings)
    compute = statistics and statistics.compute
    computations = _computations(problem, round, asked)
    finish = _finish(clock, problem, computations, compute)
    if isinstance(clock.pending, Pending):
        needed = (clock.pending.due == round.step)[:, None]
        arrived = jnp.max(jnp.where(needed, clock.pending.done, -jnp.inf), axis=0)
        finish = jnp.maximum(finish, arrived)
    awaited = [each for each in exchanges if each.waits]
    timing = _exchange_all(
        round,
        awaited,
        finish if cluster.overlap is None else _first_buckets(round, computations, finish, compute),
    )
    done = timing.done
    if cluster.overlap is not None:
        done = jnp.maximum(done, _exchange_all(round, awaited, finish, cluster.overlap.last).done)
    pending = clock.pending
    if isinstance(pending, Pending):
        later = [each for each in exchanges if not each.waits]
        pending, timing = _send_later(round, later, done, pending, timing)
    if isinstance(timings, Timings):
        assert statistics is not None
        bits = workers.gather(
            tuple(counts.to_float(each) for each in (statistics.bits.up, statistics.bits.down))
        )
        # A method that stops workers early draws its times at the beginning of the round.
        latencies, after = [], -clock.lead if compute is None else jnp.zeros_like(clock.lead)
        for each in computations:
            latencies.append(_latencies(problem, *each, compute, after))
            after = after + jnp.nansum(latencies[-1], axis=1)
        times = jnp.concatenate(latencies, axis=1), _backward(round, computations, compute)
        timings = measurements.timings(round, *times, timing, *bits)
    seconds = jnp.max(done)
    if round.present is not None:
        # The worker that determined the previous `now` may not participate. If no worker
        # participates, the round ends when the slowest worker would have computed its gradient, of
        # one batch if the local work of absent workers is 0, and at power 1, as their power may be
        # 0: the clock must neither stand still nor end.
        idle = finish
        if round.work is not None or cluster.power is not None:
            idle = _finish(clock, problem, _one_batch(computations), None)
        seconds = jnp.maximum(jnp.where(jnp.any(round.present), seconds, jnp.max(idle)), 0)
        done = jnp.where(round.present, done, seconds)
    if isinstance(pending, Pending):
        pending = pending._replace(done=pending.done - seconds)
    return _add_seconds(clock, seconds, seconds - done, timings)._replace(pending=pending)


def _exchange_all(
    round: Round, exchanges: list[Transfer], begin: jax.Array, share: float = 1.0
) -> Timing:
    """Returns the times of exchanges, one after the other, with the given share of their bits."""
    no_bits = jnp.zeros_like(begin)
    total = Timing(begin, no_bits, no_bits) if exchanges else _exchange_nothing(round, begin)
    for each in exchanges:
        timing = _exchange(round, each if share == 1 else _part(each, share), total.done)
        total = (
            timing
            if len(exchanges) == 1
            else Timing(timing.done, total.up + timing.up, total.down + timing.down)
        )
    return total


def _part(transfer: Transfer, share: float) -> Transfer:
    """Returns an exchange with a share of the bits, and of the arrays, but at least one array."""
    return transfer._replace(
        up=share * transfer.up,
        down=share * transfer.down,
        arrays=max(1, math.ceil(share * transfer.arrays)),
        array_bits=share * transfer.array_bits,
    )


def _exchange(round: Round, transfer: Transfer, begin: jax.Array) -> Timing:
    """Returns the times of an exchange that may be omitted in this round."""
    cluster = round.cluster
    latencies, up, down = cluster.messages(transfer.arrays, transfer.array_bits), *transfer[1:3]
    if cluster.collectives is not None:
        of_latency, of_bits = cluster.collectives.factors(transfer.pattern)
        latencies, up, down = of_latency * latencies, of_bits * up, of_bits * down

    def exchange(begin):
        return network.exchange(
            transfer.pattern,
            begin,
            _links(round, begin, up, down, latencies),
            round.cluster.convention,
            transfer.turn,
        )

    if transfer.now is None:
        return exchange(begin)
    return lax.cond(transfer.now, exchange, partial(_exchange_nothing, round), begin)


def _exchange_nothing(round: Round, begin: jax.Array) -> Timing:
    """Returns the times of a round without messages."""
    no_bits = jnp.zeros_like(begin)
    return network.exchange(
        network.local,
        begin,
        _links(round, begin, no_bits, no_bits),
        round.cluster.convention,
        round.step,
    )


def _send_later(
    round: Round,
    exchanges: list[Transfer],
    done: jax.Array,
    pending: Pending,
    timing: Timing,
) -> tuple[Pending, Timing]:
    """Adds the delayed messages of this round to the pending ones, and to the busy times of the
    ports.
    """
    begin, ends, due = jnp.maximum(done, jnp.max(pending.done, axis=0)), [], []
    for i, each in enumerate(exchanges):
        now = jnp.bool_(True) if each.now is None else each.now
        sent = _exchange(round, each, begin)
        begin = jnp.where(now, sent.done, begin)
        ends.append(jnp.where(now, sent.done, pending.done[i]))
        due.append(jnp.where(now, round.step + each.delay, pending.due[i]))
        timing = Timing(timing.done, timing.up + sent.up, timing.down + sent.down)
    return Pending(jnp.stack(ends), jnp.stack(due)), timing


def digits(clock: Clock) -> jax.Array:
    """Returns the time as two float32, `[2]`, for `to_seconds`."""
    return jnp.stack([clock.now, clock.rounding])


def to_seconds(digits: np.ndarray) -> np.ndarray:
    """Returns the time in float64 on the host, `[..., 2]` to `[...]`."""
    return np.asarray(digits[..., 0], np.float64) - digits[..., 1]


def _computations(problem: Problem, round: Round, asked: AllAsked) -> list[tuple[Round, Asked]]:
    """Returns the queries, which the workers compute one after the other, each with a round that
    has its local work and its own random times.
    """
    shape, computations = (round.workers, round.cluster.micro_batches), []
    for i, query in enumerate(queries.each(asked)):
        now, work = round, query.work
        if query.whole:
            work = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, shape), work)
        if work is not None or not isinstance(asked, Asked):
            now = now._replace(work=work)
        if i > 0:
            now = now._replace(key=jax.random.fold_in(round.key, _QUERIES + i))
        # An exact gradient takes the time of all samples: that of the worker with the most.
        computations.append((_fill_batches(problem, now) if query.exact else now, query))
    return computations


def _one_batch(computations: list[tuple[Round, Asked]]) -> list[tuple[Round, Asked]]:
    """Returns the first computation with one batch of each worker, at power 1."""
    now, query = computations[0]
    assert now.now is not None
    cluster = now.now._replace(cluster=replace(now.cluster, power=None))
    return [(now._replace(work=None, now=cluster), query)]


def _finish(
    clock: Clock,
    problem: Problem,
    computations: list[tuple[Round, Asked]],
    compute: jax.Array | None,
) -> jax.Array:
    """Returns when each worker has computed its gradients, relative to `clock.now`, `[N]`."""
    ids, total = jnp.arange(len(clock.lead)), jnp.zeros_like(clock.lead)
    for now, query in computations:
        passes = _passes(problem, now, query)
        if query.workers is not None:  # a single query; the other workers are ready with the last
            seconds = now.cluster.seconds(now, query.workers, passes=passes)
            return jnp.broadcast_to(jnp.max(seconds), ids.shape)
        total = total + now.cluster.seconds(now, ids, total - clock.lead, passes)
    return (total if compute is None else compute) - clock.lead


def _fill_batches(problem: Problem, round: Round) -> Round:
    """Returns the round of an exact gradient: workers with any samples compute whole batches."""
    work, batch_size = round.work, problem.batch_size or 1
    if work is None and problem.sampler.batch_sizes is not None:
        shape = round.workers, round.cluster.micro_batches
        work = LocalWork(jnp.full(shape, batch_size, jnp.int32), jnp.ones(shape))
    if work is None:
        return round
    has_samples = jnp.any(work.samples > 0, axis=1, keepdims=True)
    samples = jnp.broadcast_to(jnp.where(has_samples, batch_size, 0), work.samples.shape)
    return round._replace(work=work._replace(samples=samples))


def _first_buckets(
    round: Round,
    computations: list[tuple[Round, Asked]],
    finish: jax.Array,
    compute: jax.Array | None,
) -> jax.Array:
    """Returns when the first bucket of each worker's last gradient is ready, `[N]`."""
    return finish - (1 - round.cluster.overlap.first) * _backward(round, computations, compute)


def _passes(problem: Problem, round: Round, query: Asked) -> float:
    """Returns the time of an exact gradient, which takes all samples once, as a multiple of the
    time of all micro-batches; 1 for other gradients.
    """
    if not (query.exact and problem.max_local_samples and problem.batch_size):
        return 1.0
    M = round.cluster.micro_batches if round.work is None else round.work.samples.shape[1]
    return problem.max_local_samples / (M * problem.batch_size)


def _backward(
    round: Round, computations: list[tuple[Round, Asked]], compute: jax.Array | None
) -> jax.Array:
    """Returns the seconds of each worker's last backward pass, `[N]`, with which its messages may
    overlap; 0 without an overlap, or if only some workers are asked.
    """
    cluster, ids = round.cluster, jnp.arange(round.workers)
    backward = jnp.zeros(round.workers, jnp.float32)
    if cluster.overlap is None or computations[0][1].workers is not None:
        return backward
    for now, _ in computations:
        computes = jnp.any(cluster.samples(now, ids) > 0, axis=1)
        backward = jnp.where(computes, cluster.backward(now, ids), backward)
    return backward if compute is None else jnp.minimum(backward, compute)


def _latencies(
    problem: Problem, round: Round, query: Asked, compute: jax.Array | None, after: jax.Array
) -> jax.Array:
    """Returns the seconds of each worker's micro-batches, `[N, M]`, of which the first begins
    `after` seconds after the round; NaN for micro-batches that the worker did not compute or did
    not complete.
    """
    ids = jnp.arange(round.workers)
    latencies = round.cluster.latencies(round, ids, after, _passes(problem, round, query))
    computed = round.cluster.samples(round, ids) > 0
    if compute is not None:
        # The tolerance allows for sums that were rounded in another order.
        computed &= jnp.cumsum(latencies, axis=1) <= (1 + 1e-6) * compute[:, None]
    if round.present is not None:
        computed &= round.present[:, None]
    if query.workers is not None:
        computed &= jnp.isin(jnp.arange(round.workers), query.workers)[:, None]
    return jnp.where(computed, latencies, jnp.nan)


def _links(
    round: Round,
    begin: jax.Array,
    bits_up: jax.Array,
    bits_down: jax.Array,
    messages: float = 1,
) -> network.Ports | network.Levels:
    """Returns the ports of the workers' bits, `[N]`, on one level or two.

    Args:
        round: with its cluster.
        begin: when the workers are ready, `[N]`.
        bits_up, bits_down: bits that they send and receive, `[N]`.
        messages: number of latencies that each message takes.
    """
    if (nodes := round.cluster.nodes) is None:
        ids = jnp.arange(round.workers)
        return _ports(round, messages, begin, ids, bits_up, bits_down)

    def inside(up: jax.Array, down: jax.Array) -> network.Ports:
        latency, bandwidth = (jnp.float32(each) for each in (nodes.latency, nodes.bandwidth))
        return network.Ports(messages * latency, up / bandwidth, down / bandwidth)

    cards = partial(_ports, round, messages)
    return network.Levels(nodes.size, bits_up, bits_down, inside, cards)


def _ports(
    round: Round,
    messages: float,
    begin: jax.Array,
    ids: jax.Array,
    bits_up: jax.Array,
    bits_down: jax.Array,
) -> network.Ports:
    """Returns the seconds that bits take on the ports of the given workers, `[k]` each."""
    cluster, latency = round.cluster, jnp.float32(round.cluster.latency)

    def port_seconds(begin, places):
        up = cluster.sending(round, ids[places], bits_up[places], begin)
        return up, cluster.receiving(round, ids[places], bits_down[places], begin + latency)

    return network.Ports(
        latency if messages == 1 else messages * latency,
        *port_seconds(begin, jnp.arange(len(ids))),
        None if cluster.time_invariant else port_seconds,
        round.present,
    )


def _add_seconds(
    clock: Clock, seconds: jax.Array, lead: jax.Array, timings: Timings | tuple[()]
) -> Clock:
    """Adds seconds to the clock by Kahan summation. A clock at inf, after a round that waits for a
    worker that computes forever, stays there.
    """
    step = seconds - clock.rounding
    now = jnp.where(jnp.isinf(clock.now), jnp.inf, clock.now + step)
    rounding = jnp.where(jnp.isinf(now), 0, (now - clock.now) - step)
    return Clock(now, rounding, lead, timings)
