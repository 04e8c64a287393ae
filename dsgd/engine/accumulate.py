"""Sums over many rows in bounded memory: rows are processed in pieces that fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Jaxpr, jaxprs_in_params

from dsgd.base import Params, PyTree

# Bytes of all values between a piece's arguments and its sums. XLA keeps about a sixth of them at a
# time: 40 MB, or twice that with long rows. On CPUs, pieces of a twentieth to all of this budget
# were equally fast for an MLP, a CNN and a transformer; larger pieces were slower.
BUDGET = 256 << 20


def total(
    function: Callable[[Params, PyTree, jax.Array], PyTree],
    params: Params,
    rows: PyTree,
    chunk_size: int | None,
) -> PyTree:
    """Returns the sum of `function` over all rows.

    Pieces are slices of the rows, which are not copied. All pieces have the same length, so that
    one program serves all of them: the last piece overlaps the one before, and rows that have been
    counted are not counted again. The gradient of the sum recomputes each piece in the backward
    pass instead of storing the intermediate values of all pieces.

    Args:
        function: (params, piece of the rows, bool `[its rows]`: which rows count) -> a pytree of
            sums over the rows that count.
        params: parameters of the function.
        rows: leaves `[M, ...]`.
        chunk_size: maximum number of rows in a piece; None: all rows. If one piece has all rows,
            the function is called once.
    """
    M = _length(rows)
    if chunk_size is None or chunk_size >= M:
        return function(params, rows, jnp.ones(M, bool))
    pieces = -(-M // chunk_size)
    size = -(-M // pieces)

    @jax.checkpoint
    def sum_piece(params, rows, i):
        first = i * size
        begin = jnp.minimum(first, M - size)
        piece = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, begin, size), rows)
        return function(params, piece, begin + jnp.arange(size) >= first)

    def add(sums, i):
        return jax.tree.map(jnp.add, sums, sum_piece(params, rows, i)), None

    zeros = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(sum_piece, params, rows, 0)
    )
    return lax.scan(add, zeros, jnp.arange(pieces))[0]


def skip_zero_weights(function: Callable, weights: Callable[[PyTree], jax.Array]) -> Callable:
    """Returns a function for `total` that repeats other rows in place of those of weight 0, so that
    values there that are not finite have no effect: 0 times infinity is NaN, also in a gradient.

    Args:
        function: as in `total`.
        weights: piece of the rows -> weights `[its rows]`.
    """

    def sum_others(params, rows, counted):
        counted = counted & (weights(rows) > 0)
        other = jnp.argmax(counted)

        def select(leaf):
            chosen = jnp.expand_dims(counted, tuple(range(1, leaf.ndim)))
            return jnp.where(chosen, leaf, leaf[other])

        sums = function(params, jax.tree.map(select, rows), counted)
        return jax.tree.map(lambda leaf: jnp.where(jnp.any(counted), leaf, 0), sums)

    return sum_others


def chunk_size(
    function: Callable[[Params, PyTree, jax.Array], PyTree], params: Params, rows: PyTree
) -> int:
    """Returns how many rows a piece may have so that its values fit into `BUDGET`; at least one.

    Args:
        function, params, rows: as in `total`; shapes are sufficient.
    """
    M = _length(rows)

    def value_bytes(count: int) -> int:
        return _bytes(
            jax.make_jaxpr(function)(
                params, row_shapes(rows, count), jax.ShapeDtypeStruct((count,), bool)
            ).jaxpr
        )

    total_bytes = value_bytes(M)
    if total_bytes <= BUDGET or M == 1:
        return M
    # The memory that parameters need does not depend on the number of rows; the difference of two
    # pieces excludes it.
    row_bytes = (total_bytes - value_bytes(M // 2)) / (M - M // 2)
    if row_bytes * M <= BUDGET:
        return M
    return max(1, int(BUDGET / (row_bytes + sum(map(_size, jax.tree.leaves(row_shapes(rows, 1)))))))


def row_shapes(rows: PyTree, count: int) -> PyTree:
    """Returns the shapes and types of the first `count` rows."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape[1:]), leaf.dtype), rows
    )


def _length(rows: PyTree) -> int:
    return jax.tree.leaves(rows)[0].shape[0]


def _bytes(jaxpr: Jaxpr) -> int:
    """Returns the bytes of all values that the equations of a jaxpr compute; values computed in
    loops count once per iteration.
    """
    total = 0
    for equation in jaxpr.eqns:
        inner = sum(map(_bytes, jaxprs_in_params(equation.params)))
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += times * inner if inner else sum(_size(out.aval) for out in equation.outvars)
    return total


def _size(value: Any) -> int:
    return math.prod(value.shape) * value.dtype.itemsize
