"""Latencies of a simulated cluster for planning, and DropCompute's gain over more rounds than fit
into memory.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from algorithms.dropcompute.speedups import Effect, Iteration, Thresholds, speedup
from algorithms.dropcompute.stopping import (
    Stop,
    require_one_by_one,
    require_seconds,
    require_stop,
    stop_workers,
)
from dsgd import checks
from dsgd.base import Key, LocalWork, Now, Round
from dsgd.clusters import Cluster

Seconds = Annotated[float, "a number of seconds"]


@checks.arguments
def latencies(
    cluster: Cluster,
    workers: int,
    micro_batches: int,
    *,
    iterations: int,
    key: Key,
    batch_size: int = 1,
) -> np.ndarray:
    """Returns the seconds of every micro-batch, drawn as in the rounds of a run. Quantities that
    depend on the clock have their values at time 0.

    Args:
        cluster: the cluster whose workers compute.
        workers: N.
        micro_batches: M, each of `batch_size` samples.
        iterations: I, each with its own random draws.
        key: JAX key of the draws.
        batch_size: samples of a micro-batch, for a cluster whose seconds depend on them.

    Returns:
        `[I, N, M]`.

    Raises:
        ValueError: if a number is less than 1, or the cluster is for another N or computes all
            micro-batches as one batch.
    """
    numbers = {
        "workers": workers,
        "micro_batches": micro_batches,
        "iterations": iterations,
        "batch_size": batch_size,
    }
    for name, number in numbers.items():
        checks.positive_int(f"dropcompute.latencies: {name}", number)
    cluster.require_workers(workers)
    require_one_by_one("dropcompute.latencies", cluster)
    return np.asarray(_draw(cluster, workers, micro_batches, batch_size, iterations, key), float)


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _draw(
    cluster: Cluster, N: int, M: int, batch_size: int, iterations: int, key: jax.Array
) -> jax.Array:
    return jax.lax.map(
        lambda i: iteration(cluster, N, M, batch_size, jax.random.fold_in(key, i)),
        jnp.arange(iterations),
    )


def iteration(cluster: Cluster, N: int, M: int, batch_size: int, key: jax.Array) -> jax.Array:
    """Returns the seconds of one iteration's micro-batches, `[N, M]`; traceable. The arguments are
    those of `latencies`, with the key of this iteration.
    """
    return _seconds(Round(jnp.int32(0), N, key, Now(cluster)), M, batch_size)


def draw_round(round: Round, M: int) -> jax.Array:
    """Returns the seconds of M full micro-batches of every worker in a round, on its cluster,
    `[N, M]`.
    """
    return _seconds(round, M, (round.problem and round.problem.batch_size) or 1)


def _seconds(round: Round, M: int, batch_size: int) -> jax.Array:
    whole = jnp.full((round.workers, M), batch_size, jnp.int32)
    return round.cluster.latencies(
        round._replace(work=LocalWork(whole, whole)), jnp.arange(round.workers)
    )


class Estimate(NamedTuple):
    """Means over simulated rounds.

    Args:
        mean: the effect of each threshold.
        error: standard errors of its numbers; 0 for the thresholds, which are given.
    """

    mean: Effect
    error: Effect


@checks.arguments
def simulated_effect(
    cluster: Cluster,
    workers: int,
    micro_batches: int,
    thresholds: Thresholds,
    communication: Seconds = 0.0,
    stop: Stop = "preempt",
    *,
    rounds: int,
    key: Key,
    chunk: int = 256,
) -> Estimate:
    """Returns the `measured_effect` of thresholds on `latencies(..., iterations=rounds, key=key)`
    without storing these.

    Rounds are drawn and evaluated one after the other in a compiled loop. For each chunk of rounds
    it returns two numbers per round and threshold, which are summed in float64, so that the memory
    is that of one round and one chunk for any number of rounds.

    Args:
        cluster: the cluster whose workers compute; quantities that depend on the clock have their
            values at time 0.
        workers: N.
        micro_batches: M, each of one sample.
        thresholds: tau, seconds, any shape; infinity drops nothing and gives the mean step without
            DropCompute.
        communication: T^c, seconds of each round.
        stop: "preempt" or "between", see `stopping.stop_workers`.
        rounds: at least 2, each with its own random draws.
        key: JAX key of the draws.
        chunk: rounds between two sums.

    Returns:
        Means over rounds with their standard errors, as NumPy arrays.

    Raises:
        ValueError: if a number is less than 1, rounds is 1, seconds are negative or NaN, the
            cluster is for another N or computes all micro-batches as one batch, or `stop` is
            unknown.

    Source: Giladi et al., "DropCompute: simple and more robust distributed synchronous training via
    compute variance reduction", equation 6 and appendix B.1.
    """
    where = "dropcompute.simulated_effect"
    numbers = {"workers": workers, "micro_batches": micro_batches, "rounds": rounds, "chunk": chunk}
    for name, number in numbers.items():
        checks.positive_int(f"{where}: {name}", number)
    if rounds < 2:
        raise ValueError(f"{where}: rounds = {rounds}; expected at least 2, for a standard error")
    require_seconds(where, "thresholds", thresholds, finite=False)
    require_seconds(where, "communication", communication)
    require_stop(where, stop)
    cluster.require_workers(workers)
    require_one_by_one(where, cluster)
    # A threshold above float32's range becomes infinity: nothing is dropped.
    with np.errstate(over="ignore"):
        taus = np.asarray(thresholds, np.float32)
    shift = total = squares = np.zeros((4, taus.size))
    for first in range(0, rounds, chunk):
        values = _chunk(
            cluster, workers, micro_batches, stop, min(chunk, rounds), key, first, taus.ravel()
        )
        count, step, whole = (np.asarray(each, float)[: rounds - first] for each in values)
        share = count / (workers * micro_batches)
        gained = speedup(Iteration(share, step, whole[:, None], float(communication)))
        all_computed = np.broadcast_to(whole[:, None], step.shape)
        each = np.stack([gained, 1 - share, step, all_computed], axis=1)
        if not first:
            shift = each.mean(axis=0)  # avoids cancellation in the sums of squares
        total, squares = (
            total + (each - shift).sum(axis=0),
            squares + ((each - shift) ** 2).sum(axis=0),
        )
    means, errors = (
        shift + total / rounds,
        np.sqrt(np.maximum(squares - total**2 / rounds, 0) / (rounds - 1) / rounds),
    )
    return Estimate(
        Effect(taus, *means.reshape(4, *taus.shape)),
        Effect(np.zeros_like(taus), *errors.reshape(4, *taus.shape)),
    )


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _chunk(
    cluster: Cluster,
    N: int,
    M: int,
    stop: Stop,
    size: int,
    key: jax.Array,
    first: Any,
    thresholds: jax.Array,
):
    """Simulates `size` rounds. Returns the number of computed micro-batches and the slowest
    worker's seconds at each threshold, both `[size, thresholds]`, and its seconds without a
    threshold, `[size]`.
    """

    def one_round(i):
        times = iteration(cluster, N, M, 1, jax.random.fold_in(key, i))

        def stop_all(threshold):
            done, seconds = stop_workers(times, threshold, stop)
            return jnp.sum(done), jnp.max(seconds)

        count, step = lax.map(stop_all, jnp.append(thresholds, jnp.inf))
        return count[:-1], step[:-1], step[-1]

    return lax.map(one_round, first + jnp.arange(size))
