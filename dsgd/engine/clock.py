r"""The simulated clock inside the loop: how long a round takes on a cluster.

A worker begins its round when it has sent and received all that belongs to the last one. It
computes its gradient; then its messages flow as the method's pattern has it (`network.elapse`). The
clock is that of the last worker: others may be ahead of it, and stay ahead until a message makes
them wait. Who is away from a round computes nothing in it, and may begin the next one when the last
worker is done.

Where messages overlap with the gradient's computation, they go twice: all of them from when the
first bucket is ready, and the last bucket alone from when the gradient is computed; a worker is
done when both are. Of an all-reduce that is
$T = \max(\max_n (a_n + \gamma P_n) + T_{comm}, \max_n (a_n + P_n) + T_u)$ (equation 7 of
"Cannikin").
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dsgd import network, workers
from dsgd.base import Measured, Problem, Round, Work
from dsgd.communication import Bits, Sending, Statistics
from dsgd.engine import measurements
from dsgd.engine.queries import Asked
from dsgd.network import Timing
from dsgd.wire import counts


class Clock(NamedTuple):
    """What is carried from round to round, in seconds.

    Args:
        now: when the last worker was done.
        rounding: what `now` has lost to rounding: sums of many small rounds stay right in float32.
        lead: how long before that each worker was done, `[N]`.
        measured: what the workers measured in the last round; () where the method has no use for
            it.
    """

    now: jax.Array
    rounding: jax.Array
    lead: jax.Array
    measured: Measured | tuple[()] = ()


def at_zero(N: int, measured: Measured | tuple[()] = ()) -> Clock:
    """Everybody is ready at 0.

    Args:
        N: number of workers.
        measured: before the first round; () where it is not carried.
    """
    zero = jnp.zeros((), jnp.float32)
    return Clock(zero, zero, jnp.zeros(N, jnp.float32), measured)


def tick(
    clock: Clock,
    name: str,
    problem: Problem,
    round: Round,
    query: Asked,
    exchanges: Sequence[Sending],
    statistics: Statistics,
) -> Clock:
    """The clock after a round.

    Args:
        clock: before it.
        name: of the method.
        problem: that ran.
        round: with the cluster that it ran on.
        query: where gradients were asked for.
        exchanges: of the round, in order.
        statistics: its statistics.
    """
    cluster, measured = round.cluster, clock.measured
    assert cluster is not None
    if statistics.elapsed is not None:
        if cluster.overlap:
            raise ValueError(
                f"{name} keeps its own time, on a cluster with {cluster.overlap.name}: need one "
                "without an overlap"
            )
        return _moved(clock, statistics.elapsed, clock.lead, measured)
    # An exact gradient is of all samples: as long for every worker as for the one with the most.
    this = _of_all_samples(problem, round) if query.exact else round
    finish = _finish(clock, problem, this, query, statistics.compute)
    sendings = [(sending, _bits_of_all(sending.bits)) for sending in exchanges]
    went = _in_turn(
        this,
        sendings,
        finish
        if cluster.overlap is None
        else _first_buckets(this, query, finish, statistics.compute),
    )
    done = went.done
    if cluster.overlap is not None:
        done = jnp.maximum(done, _in_turn(this, sendings, finish, cluster.overlap.last).done)
    if isinstance(measured, Measured):
        bits = workers.gather(
            tuple(counts.to_float(each) for each in (statistics.bits.up, statistics.bits.down))
        )
        times = (
            _latencies(problem, this, query, statistics.compute),
            _backward(this, query, statistics.compute),
        )
        measured = measurements.of_round(this, *times, went, *bits)
    seconds = jnp.max(done)
    if round.present is not None:
        # The last worker of before may not participate now. If none does, that is seen when the
        # slowest should have computed.
        seconds = jnp.maximum(jnp.where(jnp.any(round.present), seconds, jnp.max(finish)), 0)
        done = jnp.where(round.present, done, seconds)
    return _moved(clock, seconds, seconds - done, measured)


def _bits_of_all(bits: Bits) -> tuple[jax.Array, jax.Array]:
    """What each worker's ports carry, `[N]`: lost messages are received in vain."""
    lost = jnp.zeros_like(bits.down) if bits.lost is None else bits.lost
    up, down, lost = workers.gather(
        tuple(counts.to_float(each) for each in (bits.up, bits.down, lost))
    )
    return up, down + lost


def _in_turn(
    round: Round,
    sendings: list[tuple[Sending, tuple[jax.Array, jax.Array]]],
    begin: jax.Array,
    share: float = 1.0,
) -> Timing:
    """A round's exchanges, one after the other, of this share of their bits each."""
    nothing = jnp.zeros_like(begin)

    def exchange(sending, bits, begin):
        ports = _ports(round, begin, *(bits if share == 1 else (share * each for each in bits)))
        return network.exchange(
            sending.pattern, begin, ports, round.cluster.convention, sending.turn
        )

    def silent(begin):
        return network.exchange(
            network.local,
            begin,
            _ports(round, begin, nothing, nothing),
            round.cluster.convention,
            round.step,
        )

    so_far = Timing(begin, nothing, nothing) if sendings else silent(begin)
    for sending, bits in sendings:
        sent = partial(exchange, sending, bits)
        went = (
            sent(so_far.done)
            if sending.now is None
            else lax.cond(sending.now, sent, silent, so_far.done)
        )
        so_far = (
            went
            if len(sendings) == 1
            else Timing(went.done, so_far.up + went.up, so_far.down + went.down)
        )
    return so_far


def digits(clock: Clock) -> jax.Array:
    """The time as two float32, `[2]`, for `to_seconds`."""
    return jnp.stack([clock.now, clock.rounding])


def to_seconds(digits: np.ndarray) -> np.ndarray:
    """The time in float64 on the host, `[..., 2]` to `[...]`."""
    return np.asarray(digits[..., 0], np.float64) - digits[..., 1]


def _finish(
    clock: Clock, problem: Problem, round: Round, query: Asked, compute: jax.Array | None
) -> jax.Array:
    """When each worker has computed its gradient, after the last round's end, `[N]`."""
    ids, passes = jnp.arange(round.workers), _passes(problem, round, query)
    if query.workers is not None:  # the others wait: it is one after the other
        seconds = passes * round.cluster.seconds(round, query.workers)
        return jnp.broadcast_to(jnp.max(seconds), ids.shape)
    seconds = passes * round.cluster.seconds(round, ids) if compute is None else compute
    return seconds - clock.lead


def _of_all_samples(problem: Problem, round: Round) -> Round:
    work, batch_size = round.work, problem.batch_size or 1
    if work is None and problem.batch_sizes is not None:
        shape = round.workers, round.cluster.micro_batches
        work = Work(jnp.full(shape, batch_size, jnp.int32), jnp.ones(shape))
    return round._replace(work=work and _whole(work, batch_size))


def _first_buckets(
    round: Round, query: Asked, finish: jax.Array, compute: jax.Array | None
) -> jax.Array:
    """When the first part of each worker's gradient is ready, `[N]`."""
    return finish - (1 - round.cluster.overlap.first) * _backward(round, query, compute)


def _whole(work: Work, batch_size: int) -> Work:
    """Of an exact gradient: who has any samples has all."""
    anything = jnp.any(work.samples > 0, axis=1, keepdims=True)
    return work._replace(
        samples=jnp.broadcast_to(jnp.where(anything, batch_size, 0), work.samples.shape)
    )


def _passes(problem: Problem, round: Round, query: Asked) -> float:
    """How many times as long as all micro-batches an exact gradient takes: it is of all samples,
    once.
    """
    if not (query.exact and problem.samples and problem.batch_size):
        return 1.0
    M = round.cluster.micro_batches if round.work is None else round.work.samples.shape[1]
    return problem.samples / (M * problem.batch_size)


def _backward(round: Round, query: Asked, compute: jax.Array | None) -> jax.Array:
    """How long each worker's backward pass was, `[N]`, with which its messages may overlap: 0 where
    one worker is asked after the other, and without an overlap."""
    if round.cluster.overlap is None or query.workers is not None:
        return jnp.zeros(round.workers, jnp.float32)
    backward = round.cluster.backward(round, jnp.arange(round.workers))
    return backward if compute is None else jnp.minimum(backward, compute)


def _latencies(
    problem: Problem, round: Round, query: Asked, compute: jax.Array | None
) -> jax.Array:
    """Seconds of each worker's micro-batches, `[N, M]`; NaN of those that it did not compute, or
    not to the end.
    """
    ids = jnp.arange(round.workers)
    latencies = _passes(problem, round, query) * round.cluster.latencies(round, ids)
    computed = round.cluster.samples(round, ids) > 0
    if compute is not None:
        # sums in another order round otherwise
        computed &= jnp.cumsum(latencies, axis=1) <= (1 + 1e-6) * compute[:, None]
    if round.present is not None:
        computed &= round.present[:, None]
    if query.workers is not None:
        computed &= jnp.isin(jnp.arange(round.workers), query.workers)[:, None]
    return jnp.where(computed, latencies, jnp.nan)


def _ports(
    round: Round, finish: jax.Array, bits_up: jax.Array, bits_down: jax.Array
) -> network.Ports:
    """What so many bits of each worker, `[N]`, take on its ports."""
    cluster, latency = round.cluster, jnp.float32(round.cluster.latency)

    def at(begin, ids):
        up = cluster.sending(round, ids, bits_up[ids], begin)
        return up, cluster.receiving(round, ids, bits_down[ids], begin + latency)

    return network.Ports(
        latency,
        *at(finish, jnp.arange(round.workers)),
        None if cluster.steady else at,
        round.present,
    )


def _moved(
    clock: Clock, seconds: jax.Array, lead: jax.Array, measured: Measured | tuple[()]
) -> Clock:
    """Kahan's sum."""
    step = seconds - clock.rounding
    now = clock.now + step
    return Clock(now, (now - clock.now) - step, lead, measured)
