"""Latencies of a simulated cluster, to plan with."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.dropcompute.stopping import need_one_by_one
from dsgd import checks
from dsgd.base import Key, Now, Round, Work
from dsgd.clusters import Cluster


@checks.arguments
def latencies(cluster: Cluster, workers: int, micro_batches: int, *, iterations: int, key: Key, batch_size: int = 1) -> np.ndarray:
    """Seconds of every micro-batch, drawn as rounds of a run draw them; of what goes by the clock, those at its beginning.

    Args:
        cluster: whose workers compute.
        workers: N.
        micro_batches: M, each of `batch_size` samples.
        iterations: I, each with draws of its own.
        key: of the draws.
        batch_size: samples of a micro-batch, for a cluster whose seconds depend on them.

    Returns:
        `[I, N, M]`.

    Raises:
        ValueError: numbers below 1, a cluster for another N, or one whose micro-batches go at once.
    """
    numbers = {"workers": workers, "micro_batches": micro_batches, "iterations": iterations, "batch_size": batch_size}
    for name, number in numbers.items():
        checks.positive_int(f"dropcompute.latencies: {name}", number)
    cluster.need_workers(workers)
    need_one_by_one("dropcompute.latencies", cluster)
    return np.asarray(_drawn(cluster, workers, micro_batches, batch_size, iterations, key), float)


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _drawn(cluster: Cluster, N: int, M: int, batch_size: int, iterations: int, key: jax.Array) -> jax.Array:
    return jax.lax.map(lambda i: iteration(cluster, N, M, batch_size, jax.random.fold_in(key, i)), jnp.arange(iterations))


def iteration(cluster: Cluster, N: int, M: int, batch_size: int, key: jax.Array) -> jax.Array:
    """Seconds of one iteration's micro-batches, `[N, M]`; traced. Arguments as of `latencies`, the key of this iteration."""
    return _seconds(Round(jnp.int32(0), N, key, Now(cluster)), M, batch_size)


def of_round(round: Round, M: int) -> jax.Array:
    """Seconds of M whole micro-batches of every worker in a round, on its cluster, `[N, M]`."""
    return _seconds(round, M, (round.problem and round.problem.batch_size) or 1)


def _seconds(round: Round, M: int, batch_size: int) -> jax.Array:
    whole = jnp.full((round.workers, M), batch_size, jnp.int32)
    return round.cluster.latencies(round._replace(work=Work(whole, whole)), jnp.arange(round.workers))
