"""Synchronous SGD that does not wait for the slowest workers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms import methods, optimizers
from dsgd import Algorithm, checks, communication, counts, network, workers


@checks.arguments
def backup_workers_sgd(optimizer: optax.GradientTransformation, backups: int) -> Algorithm:
    r"""Mini-batch SGD with backup workers: in each round the slowest k gradients are dropped.

    $$ x_{t+1} = x_t - \gamma \frac{1}{N - k} \sum_{n \in S_t} g_n(x_t), \qquad S_t: \text{the } N -
    k \text{ who are done first} $$

    Through N servers of one part each. Who is dropped stops when the last gradient that counts is
    there; it only serves its part.

    Args:
        optimizer: the step; `optax.sgd(gamma)` is the equation.
        backups: k.

    Raises:
        ValueError: k < 0. When it runs: k that leaves nobody; no cluster, on which workers would
            differ.

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
                f"backup_workers_sgd: backups = {backups} of {round.workers} workers; expected at "
                f"most {round.workers - 1}"
            )
        if round.cluster is None:
            raise ValueError(
                "backup_workers_sgd without a cluster, on which workers would differ; pass "
                "run(..., cluster=...)"
            )
        N, counted = round.workers, round.workers - backups
        seconds = round.cluster.seconds(round, jnp.arange(N))
        order = jnp.argsort(seconds)  # stable: of equals, the first
        first = jnp.zeros(N, bool).at[order[:counted]].set(True)
        mine = workers.own(first, N)

        def kept(leaf):
            return jnp.where(
                mine.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, jnp.zeros((), leaf.dtype)
            )

        with round.unrecorded():
            total = workers.sum(workers.widened(jax.tree.map(kept, gradients)))
        round.sent(
            *_bits(communication.bits.of_tree(gradients), N, mine, counted), network.multi_server
        )
        round.computed(jnp.minimum(seconds, seconds[order[counted - 1]]))
        mean = workers.narrowed(jax.tree.map(lambda leaf: leaf / counted, total), gradients)
        return optimizers.step(optimizer, x, mean)

    return methods.one_model(f"backup_workers_sgd({backups})", optimizer, update)


def _bits(model: int, N: int, counted: jax.Array, gradients: int) -> tuple[jax.Array, jax.Array]:
    """A shard of the gradient to each of the other servers from the workers that count, and each
    server's sum to all others.

    Args:
        model: bits.
        N: workers.
        counted: of the block, bool `[n]`.
        gradients: how many count.
    """
    part = counts.of(-(-model // N), counted.shape[0])
    up = (N - 1) * (1 + counted.astype(np.uint32))
    down = (gradients - counted.astype(np.uint32)) + np.uint32(N - 1)
    return counts.times(up, part), counts.times(down, part)
