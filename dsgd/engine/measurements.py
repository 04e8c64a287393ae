"""What workers measure of a round: their micro-batches, and their messages, by clocks that are not exact."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dsgd.base import Measured, Round
from dsgd.network import Exchange


def nothing(N: int, M: int) -> Measured:
    """Before the first round.

    Args:
        N: number of workers.
        M: micro-batches of each.
    """
    return Measured(jnp.full((N, M), jnp.nan, jnp.float32), *[jnp.full(N, jnp.nan, jnp.float32)] * 4)


def of_round(round: Round, latencies: jax.Array, went: Exchange, bits_up: jax.Array, bits_down: jax.Array) -> Measured:
    """After a round.

    Args:
        round: with its cluster, of whose noise each time has its own.
        latencies: seconds of each micro-batch, `[N, M]`; NaN of those that were not computed.
        went: how the messages went.
        bits_up, bits_down: what each worker sent and received, `[N]`.
    """
    times = jnp.concatenate([latencies, went.up[:, None], went.down[:, None]], axis=1)
    times = round.cluster.with_noise(round, times)
    return Measured(times[:, :-2], times[:, -2], times[:, -1], bits_up, bits_down)
