"""Selection of the threshold: given, or chosen once from the measurements of the first rounds."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from algorithms.dropcompute import speedups
from algorithms.dropcompute.stopping import Stop
from dsgd import checks
from dsgd.base import Round


class AutoThreshold(NamedTuple):
    """See `auto_threshold`.

    Args:
        rounds: I, number of rounds, or of periods of local SGD.
    """

    rounds: int


@checks.arguments
def auto_threshold(rounds: int) -> AutoThreshold:
    r"""Algorithm 2: nothing is dropped for I rounds, in which the workers measure their
    micro-batches; then all workers compute the same

    $$ \tau^* = \arg\max_\tau \frac1I \sum_i \frac{\tilde M_i(\tau)}{M} \frac{T_i +
    T_i^c}{\min(\tau, T_i) + T_i^c} $$

    once, by `dropcompute.threshold`. $T_i^c$ is the time of round i without its slowest worker's
    computation. If the workers' measurements are inexact (`Cluster.noise`), the inexact values are
    used. In the compiled loop a round's timings are available in the next round, at whose end the
    threshold is chosen, so that one more round has no drops. Rounds whose timings are not available
    because a new stage started (`start=`) are ignored.

    Args:
        rounds: I; for local SGD with the period H, number of periods.

    Raises:
        ValueError: if rounds is less than 1.
    """
    return AutoThreshold(checks.positive_int("dropcompute.auto_threshold: rounds", rounds))


class Measuring(NamedTuple):
    """State of the measurements, until the threshold is chosen and after it.

    Args:
        threshold: tau; infinite until it is chosen.
        latencies: seconds of each micro-batch, `[I, N, M]`; those of a period form one row.
        seconds: seconds of each round, or period, `[I]`.
        began: when the current round, or period, started.
    """

    threshold: jax.Array
    latencies: jax.Array
    seconds: jax.Array
    began: jax.Array


def nothing_measured(rounds: int, N: int, M: int) -> Measuring:
    """Returns the state before the first round.

    Args:
        rounds: I.
        N: number of workers.
        M: number of micro-batches of each worker in a period.
    """
    return Measuring(
        jnp.full((), jnp.inf, jnp.float32),
        jnp.zeros((rounds, N, M), jnp.float32),
        jnp.zeros(rounds, jnp.float32),
        jnp.float32(0),
    )


def record_timings(known: Measuring, round: Round, period: int, stop: Stop) -> Measuring:
    """Returns the state updated with the timings of the last round; after the last measured round,
    the threshold is chosen.

    Args:
        known: the state before.
        round: the current round, with the timings of the last one.
        period: H.
        stop: how workers will stop.
    """
    assert round.timings is not None
    rounds, compute = known.latencies.shape[0], round.timings.compute
    last = round.step - 1
    turn, place = last // period, last % period

    def write():
        at = (turn, jnp.zeros_like(turn), place * compute.shape[1])
        latencies = lax.dynamic_update_slice(known.latencies, compute[None], at)
        ends = place == period - 1
        seconds = jnp.where(
            ends, known.seconds.at[turn].set(round.clock - known.began), known.seconds
        )
        return known._replace(
            latencies=latencies, seconds=seconds, began=jnp.where(ends, round.clock, known.began)
        )

    def choose():
        after = write()
        # In a run that continues another one (`start=`), the round before was not measured. A row
        # of zeros favours no threshold.
        measured = jnp.all(jnp.isfinite(after.latencies), axis=(1, 2))
        latencies = jnp.where(measured[:, None, None], after.latencies, 0)
        communication = after.seconds - jnp.max(jnp.sum(latencies, axis=2), axis=1)
        chosen = speedups.threshold(
            latencies, jnp.where(measured, jnp.maximum(communication, 0), 0), stop
        )
        return after._replace(threshold=chosen.astype(known.threshold.dtype))

    # The round number is not batched when runs are mapped over, so `cond` compiles to branches.
    return lax.cond(
        (last >= 0) & (last < rounds * period),
        lambda: lax.cond(last == rounds * period - 1, choose, write),
        lambda: known,
    )
