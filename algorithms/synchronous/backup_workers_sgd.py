"""Synchronous SGD that does not wait for the slowest workers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms import absence, optimizers
from dsgd import checks, counts, network, workers
from dsgd.base import Algorithm, Info, Query, State
from dsgd.network import told


@checks.arguments
def backup_workers_sgd(optimizer: optax.GradientTransformation, backups: int) -> Algorithm:
    r"""Mini-batch SGD with backup workers: in each round the slowest k gradients are dropped.

    $$ x_{t+1} = x_t - \gamma \frac{1}{N - k} \sum_{n \in S_t} g_n(x_t), \qquad S_t: \text{the } N - k \text{ who are done first} $$

    Through N servers of one part each. Who is dropped stops when the last gradient that counts is there; it only serves its part.

    Args:
        optimizer: the step; `optax.sgd(gamma)` is the equation.
        backups: k.

    Raises:
        ValueError: k < 0. When it runs: k that leaves nobody; no cluster, on which workers would differ.

    Source: Chen et al., "Revisiting distributed synchronous SGD", 2016; the survey's section 4.1, "Straggler".
    """
    backups = checks.counted("backup_workers_sgd: backups", backups, least=0)

    def init(params, N):
        if backups >= N:
            raise ValueError(f"backup_workers_sgd: backups = {backups} of {N} workers: need at most {N - 1}")
        return State(jnp.int32(0), server=optimizers.start(optimizer, params))

    def query(state, round):
        return Query(state.server.params)

    def update(key, state, gradients, round):
        if round.cluster is None:
            raise ValueError("backup_workers_sgd without a cluster, where nobody is slower: need run(..., cluster=...)")
        N, counted = round.workers, round.workers - backups
        seconds = round.cluster.seconds(round, jnp.arange(N))
        order = jnp.argsort(seconds)  # stable: of equals, the first
        first = jnp.zeros(N, bool).at[order[:counted]].set(True)
        mine = workers.own(first, N)

        def kept(leaf):
            return jnp.where(mine.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, jnp.zeros((), leaf.dtype))

        total = workers.sum(workers.widened(jax.tree.map(kept, gradients)))
        mean = workers.narrowed(jax.tree.map(lambda leaf: leaf / counted, total), gradients)
        server = optimizers.step(optimizer, state.server, mean)
        info = _sent(told.bits_of(gradients), N, mine, counted)
        return State(state.step + 1, server=server), info._replace(compute=jnp.minimum(seconds, seconds[order[counted - 1]]))

    name = f"backup_workers_sgd({backups})"
    rate = optimizers.learning_rate(optimizer)
    return Algorithm(init, query, update, optimizers.server_params, network.multi_server, name, rate, away=absence.SERVES)


def _sent(model: int, N: int, counted: jax.Array, gradients: int) -> Info:
    """A part of the gradient to each of the other servers from those that count, and each server's sum to all others.

    Args:
        model: bits.
        N: workers.
        counted: of the block, bool `[n]`.
        gradients: how many count.
    """
    part = counts.of(-(-model // N), counted.shape[0])
    up = (N - 1) * (1 + counted.astype(np.uint32))
    down = (gradients - counted.astype(np.uint32)) + np.uint32(N - 1)
    return Info(counts.times(up, part), counts.times(down, part))
