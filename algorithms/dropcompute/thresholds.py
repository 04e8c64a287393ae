"""Where the threshold comes from: given, or chosen once from what the first rounds have
measured.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from algorithms.dropcompute import speedups
from algorithms.dropcompute.stopping import Stop
from dsgd import checks
from dsgd.base import Round


class ChosenAfter(NamedTuple):
    """See `chosen_after`.

    Args:
        rounds: I; periods, of local SGD.
    """

    rounds: int


@checks.arguments
def chosen_after(rounds: int) -> ChosenAfter:
    r"""Algorithm 2: nothing is dropped for I rounds, in which workers measure their micro-batches;
    from these all find the same

    $$ \tau^* = \arg\max_\tau \frac1I \sum_i \frac{\tilde M_i(\tau)}{M} \frac{T_i +
    T_i^c}{\min(\tau, T_i) + T_i^c} $$

    once, by `dropcompute.threshold`. $T_i^c$ is what the round took besides its slowest worker's
    computation. Where workers measure inexactly (`Cluster.noise`), so do they here. In the compiled
    loop a round's times are known in the next one, at the end of which the threshold is chosen: so
    one round more is without drops. Rounds of which a stage has cut off the times (`start=`) do not
    count.

    Args:
        rounds: I; of local SGD with the period H so many periods.

    Raises:
        ValueError: rounds < 1.
    """
    return ChosenAfter(checks.positive_int("dropcompute.chosen_after: rounds", rounds))


class Measuring(NamedTuple):
    """What is carried until the threshold is chosen, and after it.

    Args:
        threshold: tau, infinite until it is chosen.
        latencies: seconds of each micro-batch, `[I, N, M]`, those of a period as one row.
        seconds: of each round, or period, `[I]`.
        began: when the present one did.
    """

    threshold: jax.Array
    latencies: jax.Array
    seconds: jax.Array
    began: jax.Array


def nothing_measured(rounds: int, N: int, M: int) -> Measuring:
    """Before the first round.

    Args:
        rounds: I.
        N: workers.
        M: micro-batches of each in a period.
    """
    return Measuring(
        jnp.full((), jnp.inf, jnp.float32),
        jnp.zeros((rounds, N, M), jnp.float32),
        jnp.zeros(rounds, jnp.float32),
        jnp.float32(0),
    )


def observed(known: Measuring, round: Round, period: int, stop: Stop) -> Measuring:
    """In a round's update: what the last round has taken, and once it was the last that is
    measured, the threshold.

    Args:
        known: before.
        round: with what workers measured in the last round.
        period: H.
        stop: how workers will stop.
    """
    assert round.measured is not None
    rounds, compute = known.latencies.shape[0], round.measured.compute
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
        # Where a run goes on from another (`start=`), nobody has measured the round before: a row
        # of no seconds is for no threshold.
        measured = jnp.all(jnp.isfinite(after.latencies), axis=(1, 2))
        latencies = jnp.where(measured[:, None, None], after.latencies, 0)
        communication = after.seconds - jnp.max(jnp.sum(latencies, axis=2), axis=1)
        chosen = speedups.threshold(
            latencies, jnp.where(measured, jnp.maximum(communication, 0), 0), stop
        )
        return after._replace(threshold=chosen.astype(known.threshold.dtype))

    # Numbers of rounds are the same for all runs that are mapped over: these are branches.
    return lax.cond(
        (last >= 0) & (last < rounds * period),
        lambda: lax.cond(last == rounds * period - 1, choose, write),
        lambda: known,
    )
