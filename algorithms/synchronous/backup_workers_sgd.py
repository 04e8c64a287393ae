"""Synchronous SGD that does not wait for the slowest workers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms import methods, optimizers
from algorithms.facts import method
from dsgd import Algorithm, checks, communication, network, workers
from dsgd.wire import counts


@method(
    sends="gradients of all but the slowest workers, through N servers",
    needs=("all workers",),
    paper="Chen et al., 2016; section 4.1",
    page="how_to/clusters.md",
    settings=None,
)
@checks.arguments
def backup_workers_sgd(optimizer: optax.GradientTransformation, backups: int) -> Algorithm:
    r"""Mini-batch SGD with backup workers: each round drops the k slowest gradients.

    $$ x_{t+1} = x_t - \gamma \frac{1}{N - k} \sum_{n \in S_t} g_n(x_t), \qquad S_t: \text{the } N -
    k \text{ workers that finish first} $$

    The gradients are aggregated by N servers, each of which owns one shard of the vector. A dropped
    worker stops computing once the last accepted gradient has arrived, and still serves its shard.

    Args:
        optimizer: the step; `optax.sgd(gamma)` gives the equation.
        backups: k, number of dropped gradients, 0 to N - 1.

    Raises:
        ValueError: if k < 0. During a run: if k >= N, or if the run has no cluster, without which
            all workers are equally fast.

    Source: Chen et al., "Revisiting distributed synchronous SGD", 2016; the survey's section 4.1,
    "Straggler".
    """
    backups = checks.natural("backup_workers_sgd: backups", backups)

    def update(x, gradients, round):
        round.require_all(
            "each worker is the server of a shard of the model, which no other worker has"
        )
        if backups >= round.workers:
            raise ValueError(
                f"backup_workers_sgd: backups = {backups} with {round.workers} workers; "
                f"expected at most {round.workers - 1}"
            )
        if round.cluster is None:
            raise ValueError(
                "backup_workers_sgd: the run has no cluster, so that all workers are equally fast; "
                "expected one: pass run(..., cluster=...)"
            )
        N, counted = round.workers, round.workers - backups
        seconds = round.cluster.seconds(round, jnp.arange(N))
        order = jnp.argsort(seconds)  # stable: among equals, the first
        first = jnp.zeros(N, bool).at[order[:counted]].set(True)
        mine = workers.local_block(first, N)

        def select_counted(leaf):
            return jnp.where(
                mine.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, jnp.zeros((), leaf.dtype)
            )

        with round.unrecorded():
            total = workers.sum(workers.widen(jax.tree.map(select_counted, gradients)))
        round.sent(
            *_bits(communication.bits.row_bits(gradients), N, mine, counted), network.multi_server
        )
        round.computed(jnp.minimum(seconds, seconds[order[counted - 1]]))
        mean = workers.narrow(jax.tree.map(lambda leaf: leaf / counted, total), gradients)
        return optimizers.step(optimizer, x, mean)

    return methods.one_model(f"backup_workers_sgd({backups})", optimizer, update)


def _bits(model: int, N: int, counted: jax.Array, gradients: int) -> tuple[jax.Array, jax.Array]:
    """Returns the bits that each worker of the block sends and receives, `[n]` each.

    Each counted worker sends a shard of its gradient to each of the other servers; each server
    sends its sum to all other workers.

    Args:
        model: size of the model in bits.
        N: number of workers.
        counted: which workers of the block are counted, bool `[n]`.
        gradients: number of counted workers.
    """
    part = counts.from_bits(-(-model // N), counted.shape[0])
    up = (N - 1) * (1 + counted.astype(np.uint32))
    down = (gradients - counted.astype(np.uint32)) + np.uint32(N - 1)
    return counts.scale(up, part), counts.scale(down, part)
