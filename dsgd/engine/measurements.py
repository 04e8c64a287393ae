"""Timings of a round that workers measure: their micro-batches and messages, by noisy clocks."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dsgd.base import Round, Timings
from dsgd.clusters import Cluster
from dsgd.network import Timing


def initial_timings(N: int, M: int, cluster: Cluster) -> Timings:
    """Returns the timings before the first round, all NaN.

    Args:
        N: number of workers.
        M: number of micro-batches of each worker.
        cluster: the cluster.
    """
    each = jnp.full(N, jnp.nan, jnp.float32)
    overlapping = [each, each] if cluster.overlap else []
    return Timings(jnp.full((N, M), jnp.nan, jnp.float32), each, each, each, each, *overlapping)


def timings(
    round: Round,
    latencies: jax.Array,
    backward: jax.Array,
    timing: Timing,
    bits_up: jax.Array,
    bits_down: jax.Array,
) -> Timings:
    """Returns the timings of a round.

    Args:
        round: the round, with its cluster; each timing has its own noise.
        latencies: seconds of each micro-batch, `[N, M]`; NaN for those that were not computed.
        backward: seconds of the last micro-batch's backward pass, `[N]`, if the cluster has an
            overlap.
        timing: times of the messages.
        bits_up, bits_down: bits that each worker sent and received, `[N]`.
    """
    columns = [latencies, timing.up[:, None], timing.down[:, None]]
    if overlap := round.cluster.overlap:
        computed = jnp.any(~jnp.isnan(latencies), axis=1)
        columns.append(
            jnp.where(computed, jnp.stack([backward, overlap.first * backward]), jnp.nan).T
        )
    times = round.cluster.with_noise(round, jnp.concatenate(columns, axis=1))
    M = latencies.shape[1]
    up, down, *overlapping = jnp.unstack(times[:, M:], axis=1)
    return Timings(times[:, :M], up, down, bits_up, bits_down, *overlapping)
