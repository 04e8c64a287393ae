"""What workers measure of a round: their micro-batches, and their messages, by clocks that are not
exact.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dsgd.base import Measured, Round
from dsgd.clusters import Cluster
from dsgd.network import Timing


def nothing(N: int, M: int, cluster: Cluster) -> Measured:
    """Before the first round.

    Args:
        N: number of workers.
        M: micro-batches of each.
        cluster: on which they are.
    """
    each = jnp.full(N, jnp.nan, jnp.float32)
    overlapping = [each, each] if cluster.overlap else []
    return Measured(jnp.full((N, M), jnp.nan, jnp.float32), each, each, each, each, *overlapping)


def of_round(
    round: Round,
    latencies: jax.Array,
    backward: jax.Array,
    went: Timing,
    bits_up: jax.Array,
    bits_down: jax.Array,
) -> Measured:
    """After a round.

    Args:
        round: with its cluster, of whose noise each time has its own.
        latencies: seconds of each micro-batch, `[N, M]`; NaN of those that were not computed.
        backward: of the last one's backward pass, `[N]`, where there is an overlap.
        went: how the messages went.
        bits_up, bits_down: what each worker sent and received, `[N]`.
    """
    columns = [latencies, went.up[:, None], went.down[:, None]]
    if overlap := round.cluster.overlap:
        computed = jnp.any(~jnp.isnan(latencies), axis=1)
        columns.append(
            jnp.where(computed, jnp.stack([backward, overlap.first * backward]), jnp.nan).T
        )
    times = round.cluster.with_noise(round, jnp.concatenate(columns, axis=1))
    M = latencies.shape[1]
    up, down, *overlapping = jnp.unstack(times[:, M:], axis=1)
    return Measured(times[:, :M], up, down, bits_up, bits_down, *overlapping)
