"""Sums over many rows in bounded memory: a piece at a time, of as many rows as fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Jaxpr, jaxprs_in_params

from dsgd.base import Params, PyTree

# Bytes of all values between a piece's arguments and its sums. XLA has a sixth of them at a time:
# 40 MB, or twice that with long rows. Pieces of a twentieth to all of it were equally fast on CPUs
# for an MLP, a CNN and a transformer; larger ones were slower.
BUDGET = 256 << 20


def total(
    function: Callable[[Params, PyTree, jax.Array], PyTree],
    params: Params,
    rows: PyTree,
    at_once: int | None,
) -> PyTree:
    """The sum of `function` over all rows.

    Pieces are slices of the rows, which are not copied. All are equally long, so that one program
    does for all of them: the last ones begin in the piece before, and what was counted there is not
    counted again. A gradient of the sum computes each piece once more on its way back, and does not
    keep what all of them had in between.

    Args:
        function: (params, piece of the rows, which of them count, bool `[its rows]`) -> a pytree of
            sums over those that count.
        params: of the function.
        rows: leaves `[M, ...]`.
        at_once: rows in a piece, at most; None: all. Where they are all, this is one call of the
            function.
    """
    M = _length(rows)
    if at_once is None or at_once >= M:
        return function(params, rows, jnp.ones(M, bool))
    pieces = -(-M // at_once)
    size = -(-M // pieces)

    @jax.checkpoint
    def of_piece(params, rows, i):
        first = i * size
        begin = jnp.minimum(first, M - size)
        piece = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, begin, size), rows)
        return function(params, piece, begin + jnp.arange(size) >= first)

    def add(sums, i):
        return jax.tree.map(jnp.add, sums, of_piece(params, rows, i)), None

    zeros = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(of_piece, params, rows, 0)
    )
    return lax.scan(add, zeros, jnp.arange(pieces))[0]


def fitting(
    function: Callable[[Params, PyTree, jax.Array], PyTree], params: Params, rows: PyTree
) -> int:
    """How many rows a piece may have, by what one needs within the `BUDGET`: at least one.

    Args:
        function, params, rows: of `total`; shapes will do.
    """
    M = _length(rows)

    def needed(count: int) -> int:
        return _bytes(
            jax.make_jaxpr(function)(
                params, of_length(rows, count), jax.ShapeDtypeStruct((count,), bool)
            ).jaxpr
        )

    whole = needed(M)
    if whole <= BUDGET or M == 1:
        return M
    # What parameters need is there however few rows there are: the difference of two pieces is
    # without it.
    each = (whole - needed(M // 2)) / (M - M // 2)
    if each * M <= BUDGET:
        return M
    return max(1, int(BUDGET / (each + sum(map(_size, jax.tree.leaves(of_length(rows, 1)))))))


def of_length(rows: PyTree, count: int) -> PyTree:
    """Shapes and types of so many of the rows."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape[1:]), leaf.dtype), rows
    )


def _length(rows: PyTree) -> int:
    return jax.tree.leaves(rows)[0].shape[0]


def _bytes(jaxpr: Jaxpr) -> int:
    """Of all values that its equations give, of those inside loops as often as they are given."""
    found = 0
    for equation in jaxpr.eqns:
        inner = sum(map(_bytes, jaxprs_in_params(equation.params)))
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        found += times * inner if inner else sum(_size(out.aval) for out in equation.outvars)
    return found


def _size(value: Any) -> int:
    return math.prod(value.shape) * value.dtype.itemsize
