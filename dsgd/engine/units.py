"""Micro-batches as a list of units of work: micro-batches without samples cost nothing, and workers
with fewer micro-batches do not wait for those with more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dsgd.base import PyTree


def weighted_sums(compute: Callable, samples: jax.Array, weights: Any) -> PyTree:
    r"""Returns $\sum_m w_{nm} g_{nm}$ for each row n, over the micro-batches that have samples.

    The units with samples, ordered by m and then by row, are computed in groups of half as many
    units as there are rows, one group after the other. Memory does not grow with M, and the last
    group, which is half empty on average, is a small part of the work. A loop over m with all rows
    at a time would compute as many micro-batches for each row as for the row with the most.

    Args:
        compute: (rows int32 `[g]`, m int32 `[g]`, samples int32 `[g]`, at least 1) -> the results,
            leaves `[g, ...]`; if rows and m are None: the first micro-batch of all rows.
        samples: b, int32 `[n, M]`.
        weights: w, arrays `[n, M]`, a prefix of the tree that `compute` returns.

    Returns:
        Leaves `[n, ...]`, of the types that `compute` returns.
    """
    n, M = samples.shape
    if M == 1:
        once = compute(None, None, jnp.maximum(samples[:, 0], 1))
        counted = jax.tree.map(lambda weights: jnp.where(samples > 0, weights, 0)[:, 0], weights)
        return jax.tree.map(scale_rows, counted, once)
    size = -(-n // 2)
    active = samples.T.ravel() > 0
    # Units with samples come first, in order; then the others.
    units = jnp.pad(jnp.argsort(~active, stable=True).astype(jnp.int32), (0, size))
    count = jnp.sum(active, dtype=jnp.int32)

    def group(i, total):
        places = i * size + jnp.arange(size, dtype=jnp.int32)
        unit = lax.dynamic_slice_in_dim(units, i * size, size)
        rows, m = unit % n, unit // n
        computed = compute(rows, m, jnp.maximum(samples[rows, m], 1))
        owners = jnp.where(places < count, rows, n)  # index n is out of range and dropped

        def add(weights, totals, parts):
            weighed = scale_rows(weights[rows, m], parts)
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


def scale_rows(factors: jax.Array, tree: PyTree) -> PyTree:
    """Multiplies rows by factors `[n]`, leaves `[n, ...]`; the result is 0 if the factor is 0, even
    if the row is not finite.
    """

    def times(leaf):
        each = jnp.expand_dims(factors, tuple(range(1, leaf.ndim))).astype(leaf.dtype)
        return jnp.where(each == 0, jnp.zeros((), leaf.dtype), each * leaf)

    return jax.tree.map(times, tree)


def if_any(active: jax.Array, compute: Callable) -> PyTree:
    """Returns `compute()`, leaves `[n, ...]`, or zeros without computing it if no row is active.

    Args:
        active: bool `[n]`. The rows of `compute()` that are not active are arbitrary.
        compute: function without arguments.
    """
    compute = jax.jit(compute, inline=True)  # traced once, for its shapes and for `cond`
    shapes = jax.eval_shape(compute)

    def nothing():
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    count = _most_of_runs(jnp.sum(active, dtype=jnp.int32))
    return lax.cond(count > 0, compute, nothing)


def _groups(units: jax.Array, size: int) -> jax.Array:
    """Returns the number of groups; further groups of runs with fewer units are dropped."""
    return -(-_most_of_runs(units) // size)


@jax.custom_batching.custom_vmap
def _most_of_runs(count: jax.Array) -> jax.Array:
    """Returns the count; for runs that are mapped over, that of the run with the most, so that
    conditions on it remain scalars.
    """
    return count


@_most_of_runs.def_vmap
def _(runs, mapped, count):
    del runs, mapped  # the count, the only argument, is always mapped
    return _most_of_runs(jnp.max(count)), False
