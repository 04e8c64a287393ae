"""The simulated clock inside the loop: how long a round takes on a cluster.

A worker begins its round when it has sent and received all that belongs to the last one. It computes its gradient; then its messages flow
as the method's pattern has it (`network.elapse`). The clock is that of the last worker: others may be ahead of it, and stay ahead until a
message makes them wait. Who is away from a round computes nothing in it, and may begin the next one when the last worker is done.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import network, workers
from dsgd.base import Algorithm, Info, Problem, Query, Round
from dsgd.wire import counts


class Clock(NamedTuple):
    """What is carried from round to round, in seconds.

    Args:
        now: when the last worker was done.
        rounding: what `now` has lost to rounding: sums of many small rounds stay right in float32.
        lead: how long before that each worker was done, `[N]`.
    """

    now: jax.Array
    rounding: jax.Array
    lead: jax.Array


def start(N: int) -> Clock:
    """Everybody is ready at 0."""
    zero = jnp.zeros((), jnp.float32)
    return Clock(zero, zero, jnp.zeros(N, jnp.float32))


def tick(clock: Clock, algorithm: Algorithm, problem: Problem, round: Round, query: Query, info: Info) -> Clock:
    """The clock after a round.

    Args:
        clock: before it.
        algorithm, problem: what ran.
        round: with the cluster that it ran on.
        query, info: what was asked for, and what was sent.
    """
    if info.elapsed is not None:
        return _moved(clock, info.elapsed, clock.lead)
    assert round.cluster is not None
    ids = jnp.arange(round.workers)
    finish = _finish(clock, problem, round, query, info)
    waited = info.bits_down if info.lost is None else info.bits_down + info.lost
    sent = workers.gather((counts.to_float(info.bits_up), counts.to_float(waited)))
    up, down = round.cluster.bandwidths(round, ids)
    ports = network.Ports(jnp.float32(round.cluster.latency), sent[0] / up, sent[1] / down, round.present)
    done = network.elapse(algorithm.pattern, finish, ports, round.cluster.convention, round.step)
    seconds = jnp.max(done)
    if round.present is not None:
        # The last worker of before may be away now. Where nobody is there, that is seen when the slowest should have computed.
        seconds = jnp.maximum(jnp.where(jnp.any(round.present), seconds, jnp.max(finish)), 0)
        done = jnp.where(round.present, done, seconds)
    return _moved(clock, seconds, seconds - done)


def digits(clock: Clock) -> jax.Array:
    """The time as two float32, `[2]`, for `to_seconds`."""
    return jnp.stack([clock.now, clock.rounding])


def to_seconds(digits: np.ndarray) -> np.ndarray:
    """The time in float64 on the host, `[..., 2]` to `[...]`."""
    return np.asarray(digits[..., 0], np.float64) - digits[..., 1]


def _finish(clock: Clock, problem: Problem, round: Round, query: Query, info: Info) -> jax.Array:
    """When each worker has computed its gradient, after the last round's end, `[N]`."""
    ids = jnp.arange(round.workers)
    if query.workers is not None:  # the others wait: it is one after the other
        seconds = round.cluster.seconds(round, query.workers)
        return jnp.broadcast_to(jnp.max(seconds), ids.shape)
    seconds = round.cluster.seconds(round, ids) if info.compute is None else info.compute
    if query.exact and problem.samples and problem.batch_size:
        seconds = seconds * (problem.samples / problem.batch_size)
    return seconds - clock.lead


def _moved(clock: Clock, seconds: jax.Array, lead: jax.Array) -> Clock:
    """Kahan's sum."""
    step = seconds - clock.rounding
    now = clock.now + step
    return Clock(now, (now - clock.now) - step, lead)
