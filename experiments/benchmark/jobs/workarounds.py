"""Seconds of each operation of `dsgd.xla`, executed in a loop as in rounds: `python -m
experiments.benchmark.jobs.workarounds 0.5`.

It prints the CPU seconds of one iteration by name, as JSON. The environment variable
DSGD_XLA_WORKAROUNDS chooses the forms.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dsgd import compressors, problems, xla

REPEATS = 5


def normal(*shape: int, seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def operations() -> dict[str, tuple[Callable[[Any], Any], Any]]:
    """Returns, by name, a function of the carried state of the loop, and its initial state."""
    A, b = jnp.abs(normal(16, 100_000)), normal(16, 100_000, seed=1)
    network, images = problems.CNN(10), normal(4, 8, 32, 32, 3)
    weights = jax.vmap(lambda x: network.init(jax.random.key(1), x))(images)

    def mean_gradient(x):
        return x - 0.1 * xla.sum_rows(A * x - b) / 16

    def spread(rows):
        total, squares = xla.moments(rows)
        return rows.at[0, :1].add(total[:1] * squares[-1:] * 1e-9)

    def gossip(x):
        x = xla.materialize(x - 0.1 * (A * x - b))
        return x + 0.3 * (jnp.roll(x, 1, axis=0) - x) + 0.3 * (jnp.roll(x, -1, axis=0) - x)

    def norms(x):
        return x * (1 + 1e-9 * jax.vmap(xla.sum_elements)(jnp.abs(x))[:, None])

    def elements_of_largest(x):
        return x * jnp.where(
            jax.vmap(lambda row: xla.among_largest(row, row.size // 10))(x), 0.99, 1.01
        )

    def codes(carry):
        key, x = carry
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(len(x)))
        sent = jax.vmap(lambda key, row: compressors.qsgd(4).compress(key, row).decoded)(keys, x)
        return jax.random.fold_in(key, 1), x - 0.1 * sent.mean(axis=0)

    def convolutions(weights):
        gradients = jax.vmap(
            jax.grad(lambda w, x: jnp.sum(jnp.square(jnp.asarray(network.apply(w, x)))))
        )(weights, images)
        return jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradients)

    return {
        "sum_rows: mean gradient, 16 x 100,000": (mean_gradient, jnp.zeros(100_000)),
        "moments: 16 x 100,000": (spread, b),
        "sum_elements: 256 x 4,096": (norms, normal(256, 4096)),
        "among_largest: a tenth of 64 x 10,000": (elements_of_largest, normal(64, 10_000)),
        "materialize: ring gossip, 16 x 100,000": (gossip, b),
        "materialize: qsgd(4), 16 x 10,000": (codes, (jax.random.key(0), normal(16, 10_000))),
        "convolve: CNN, 4 workers x 8 images": (convolutions, weights),
    }


def seconds_of_a_turn(turn: Callable[[Any], Any], start: Any, seconds: float) -> float:
    """Returns the CPU seconds of one iteration, the minimum of several timings."""
    loop = jax.jit(
        lambda turns, carry: lax.fori_loop(0, turns, lambda _, carry: turn(carry), carry)
    )
    loop(1, start)

    def clock(turns: int) -> float:
        began = time.process_time()
        jax.block_until_ready(loop(turns, start))
        return time.process_time() - began

    turns = 1
    while clock(turns) < seconds / 4:
        turns *= 2
    return min(clock(turns) for _ in range(REPEATS)) / turns


if __name__ == "__main__":
    found = {
        name: seconds_of_a_turn(*operation, float(sys.argv[1]))
        for name, operation in operations().items()
    }
    print(json.dumps(found))
