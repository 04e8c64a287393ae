"""Micro-batches as a list of units of work: what nobody computes costs nothing, and nobody waits
for who computes more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dsgd.base import PyTree


def summed(compute: Callable, samples: jax.Array, weights: Any) -> PyTree:
    r"""$\sum_m w_{nm} g_{nm}$ of each row n, over the micro-batches that have samples.

    The units with samples, the first micro-batches of all rows first, are done in groups of half as
    many as there are rows, one group after the other: memory does not grow with M, and the last
    group, which is half empty on average, is a small part of all. A loop over m with all rows at a
    time would compute as much for each as for the one with most.

    Args:
        compute: (rows int32 `[g]`, m int32 `[g]`, samples int32 `[g]`, at least 1) -> what is
            computed, leaves `[g, ...]`; rows and m None: of all rows the first.
        samples: b, int32 `[n, M]`.
        weights: w, arrays `[n, M]`, a prefix of the tree that `compute` gives.

    Returns:
        Leaves `[n, ...]`, of the types that `compute` gives.
    """
    n, M = samples.shape
    if M == 1:
        once = compute(None, None, jnp.maximum(samples[:, 0], 1))
        counted = jax.tree.map(lambda weights: jnp.where(samples > 0, weights, 0)[:, 0], weights)
        return jax.tree.map(scaled, counted, once)
    size = -(-n // 2)
    active = samples.T.ravel() > 0
    # Those with samples, in order; then the others.
    units = jnp.pad(jnp.argsort(~active, stable=True).astype(jnp.int32), (0, size))
    count = jnp.sum(active, dtype=jnp.int32)

    def group(i, total):
        places = i * size + jnp.arange(size, dtype=jnp.int32)
        unit = lax.dynamic_slice_in_dim(units, i * size, size)
        rows, m = unit % n, unit // n
        computed = compute(rows, m, jnp.maximum(samples[rows, m], 1))
        owners = jnp.where(places < count, rows, n)  # past the end: dropped

        def add(weights, totals, parts):
            weighed = scaled(weights[rows, m], parts)
            return jax.tree.map(
                lambda total, part: total.at[owners].add(part.astype(total.dtype), mode="drop"),
                totals,
                weighed,
            )

        return jax.tree.map(add, weights, total, computed)

    shapes = jax.eval_shape(compute, units[:size], units[:size], units[:size])
    wide = jax.tree.map(
        lambda leaf: jnp.zeros((n, *leaf.shape[1:]), jnp.promote_types(leaf.dtype, jnp.float32)),
        shapes,
    )
    total = lax.fori_loop(0, _groups(count, size), group, wide)
    return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), total, shapes)


def scaled(factors: jax.Array, tree: PyTree) -> PyTree:
    """Rows times their factors `[n]`, leaves `[n, ...]`; 0 where that is 0, whatever the row is."""

    def times(leaf):
        each = jnp.expand_dims(factors, tuple(range(1, leaf.ndim))).astype(leaf.dtype)
        return jnp.where(each == 0, jnp.zeros((), leaf.dtype), each * leaf)

    return jax.tree.map(times, tree)


def _groups(units: jax.Array, size: int) -> jax.Array:
    """How many groups there are: of runs that are mapped over, what the one with most needs, so
    that the loop's condition stays a scalar. The others' further groups are dropped."""

    @jax.custom_batching.custom_vmap
    def most(count):
        return count

    @most.def_vmap
    def _(runs, mapped, count):
        del runs, mapped  # it is: there is no other argument
        return most(jnp.max(count)), False

    return -(-most(units) // size)
