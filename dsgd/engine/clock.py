r"""The simulated clock inside the loop: how long a round takes on a cluster.

A worker begins its round when it has sent and received all that belongs to the last one. It computes its gradient; then its messages flow
as the method's pattern has it (`network.elapse`). The clock is that of the last worker: others may be ahead of it, and stay ahead until a
message makes them wait. Who is away from a round computes nothing in it, and may begin the next one when the last worker is done.

Where messages overlap with the gradient's computation, they go twice: all of them from when the first bucket is ready, and the last bucket
alone from when the gradient is computed; a worker is done when both are. Of an all-reduce that is
$T = \max(\max_n (a_n + \gamma P_n) + T_{comm}, \max_n (a_n + P_n) + T_u)$ (equation 7 of "Cannikin").
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import network, workers
from dsgd.base import Algorithm, Info, Measured, Problem, Query, Round, Work
from dsgd.engine import measurements
from dsgd.wire import counts


class Clock(NamedTuple):
    """What is carried from round to round, in seconds.

    Args:
        now: when the last worker was done.
        rounding: what `now` has lost to rounding: sums of many small rounds stay right in float32.
        lead: how long before that each worker was done, `[N]`.
        measured: what the workers measured in the last round; () where the method has no use for it.
    """

    now: jax.Array
    rounding: jax.Array
    lead: jax.Array
    measured: Measured | tuple[()] = ()


def start(N: int, measured: Measured | tuple[()] = ()) -> Clock:
    """Everybody is ready at 0.

    Args:
        N: number of workers.
        measured: before the first round; () where it is not carried.
    """
    zero = jnp.zeros((), jnp.float32)
    return Clock(zero, zero, jnp.zeros(N, jnp.float32), measured)


def tick(clock: Clock, algorithm: Algorithm, problem: Problem, round: Round, query: Query, info: Info) -> Clock:
    """The clock after a round.

    Args:
        clock: before it.
        algorithm, problem: what ran.
        round: with the cluster that it ran on.
        query, info: what was asked for, and what was sent.
    """
    cluster, measured, work = round.cluster, clock.measured, round.work
    assert cluster is not None
    if info.elapsed is not None:
        if cluster.overlap:
            raise ValueError(f"{algorithm.name} keeps its own time, on a cluster with {cluster.overlap.name}: need one without an overlap")
        return _moved(clock, info.elapsed, clock.lead, measured)
    # An exact gradient is of all samples: as long for every worker as for the one with the most.
    this = round._replace(work=work and _whole(work, round.batch_size or 1), batch_sizes=None) if query.exact else round
    finish = _finish(clock, problem, this, query, info)
    up, down, lost = workers.gather(tuple(counts.to_float(bits) for bits in (info.bits_up, info.bits_down, _lost(info))))

    def exchange(begin, share=1.0):
        ports = _ports(this, begin, *(bits if share == 1 else share * bits for bits in (up, down + lost)))
        return network.exchange(algorithm.pattern, begin, ports, cluster.convention, this.step)

    if cluster.overlap is None:
        went = exchange(finish)
        done = went.done
    else:
        went = exchange(finish - (1 - cluster.overlap.first) * _backward(this, query, info))
        done = jnp.maximum(went.done, exchange(finish, cluster.overlap.last).done)
    if isinstance(measured, Measured):
        measured = measurements.of_round(this, _latencies(problem, this, query, info), _backward(this, query, info), went, up, down)
    seconds = jnp.max(done)
    if round.present is not None:
        # The last worker of before may be away now. Where nobody is there, that is seen when the slowest should have computed.
        seconds = jnp.maximum(jnp.where(jnp.any(round.present), seconds, jnp.max(finish)), 0)
        done = jnp.where(round.present, done, seconds)
    return _moved(clock, seconds, seconds - done, measured)


def digits(clock: Clock) -> jax.Array:
    """The time as two float32, `[2]`, for `to_seconds`."""
    return jnp.stack([clock.now, clock.rounding])


def to_seconds(digits: np.ndarray) -> np.ndarray:
    """The time in float64 on the host, `[..., 2]` to `[...]`."""
    return np.asarray(digits[..., 0], np.float64) - digits[..., 1]


def _finish(clock: Clock, problem: Problem, round: Round, query: Query, info: Info) -> jax.Array:
    """When each worker has computed its gradient, after the last round's end, `[N]`."""
    ids, passes = jnp.arange(round.workers), _passes(problem, round, query)
    if query.workers is not None:  # the others wait: it is one after the other
        seconds = passes * round.cluster.seconds(round, query.workers)
        return jnp.broadcast_to(jnp.max(seconds), ids.shape)
    seconds = passes * round.cluster.seconds(round, ids) if info.compute is None else info.compute
    return seconds - clock.lead


def _lost(info: Info) -> jax.Array:
    """Bits that did not come."""
    return jnp.zeros_like(info.bits_down) if info.lost is None else info.lost


def _whole(work: Work, batch_size: int) -> Work:
    """Of an exact gradient: who has any samples has all."""
    anything = jnp.any(work.samples > 0, axis=1, keepdims=True)
    return work._replace(samples=jnp.broadcast_to(jnp.where(anything, batch_size, 0), work.samples.shape))


def _passes(problem: Problem, round: Round, query: Query) -> float:
    """How many times as long as all micro-batches an exact gradient takes: it is of all samples, once."""
    if not (query.exact and problem.samples and problem.batch_size):
        return 1.0
    M = round.cluster.micro_batches if round.work is None else round.work.samples.shape[1]
    return problem.samples / (M * problem.batch_size)


def _backward(round: Round, query: Query, info: Info) -> jax.Array:
    """How long each worker's backward pass was, `[N]`, with which its messages may overlap: 0 where one worker is asked after the other,
    and without an overlap."""
    if round.cluster.overlap is None or query.workers is not None:
        return jnp.zeros(round.workers, jnp.float32)
    backward = round.cluster.backward(round, jnp.arange(round.workers))
    return backward if info.compute is None else jnp.minimum(backward, info.compute)


def _latencies(problem: Problem, round: Round, query: Query, info: Info) -> jax.Array:
    """Seconds of each worker's micro-batches, `[N, M]`; NaN of those that it did not compute, or not to the end."""
    ids = jnp.arange(round.workers)
    latencies = _passes(problem, round, query) * round.cluster.latencies(round, ids)
    computed = round.cluster.samples(round, ids) > 0
    if info.compute is not None:
        computed &= jnp.cumsum(latencies, axis=1) <= (1 + 1e-6) * info.compute[:, None]  # sums in another order round otherwise
    if round.present is not None:
        computed &= round.present[:, None]
    if query.workers is not None:
        computed &= jnp.isin(jnp.arange(round.workers), query.workers)[:, None]
    return jnp.where(computed, latencies, jnp.nan)


def _ports(round: Round, finish: jax.Array, bits_up: jax.Array, bits_down: jax.Array) -> network.Ports:
    """What so many bits of each worker, `[N]`, take on its ports."""
    cluster, latency = round.cluster, jnp.float32(round.cluster.latency)

    def at(begin, ids):
        up = cluster.sending(round, ids, bits_up[ids], begin)
        return up, cluster.receiving(round, ids, bits_down[ids], begin + latency)

    return network.Ports(latency, *at(finish, jnp.arange(round.workers)), None if cluster.steady else at, round.present)


def _moved(clock: Clock, seconds: jax.Array, lead: jax.Array, measured: Measured | tuple[()]) -> Clock:
    """Kahan's sum."""
    step = seconds - clock.rounding
    now = clock.now + step
    return Clock(now, (now - clock.now) - step, lead, measured)
