"""Sums over rows and over elements at the speed of memory.

XLA on CPUs reduces the leading axis of an array in a loop that is not vector code, and computes the
reduction of several results in several passes. Here sums over rows are additions of a few rows at a
time: of eight, which XLA fuses with what makes the rows, so that these are never stored, or of
sixteen, which read rows that are in memory and give two sums in one pass. Sums over elements are
products with ones. Without this file the results are the same up to the order of additions.

Gain (`python -m experiments.benchmark workarounds`, CPU seconds): the mean gradient of 16 x 100,000
42 times as fast with JAX 0.10.2, 1.9 with 0.11.2; moments of 16 x 100,000 149 and 3.1 times; sums
of 256 x 4,096 elements 1.4 and 1.4 times.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import jax
import jax.numpy as jnp
from jax import lax

from dsgd.base import PyTree
from dsgd.xla.barriers import materialize
from dsgd.xla.forms import by_size

_MANY = 4096  # elements of all runs, from which on sums go another way than XLA's
_AT_ONCE = 8  # that are added up in one expression
_FUSED_AT_ONCE = _AT_ONCE, 12  # the first that suits: XLA does not fuse what is used at 16 places
_IN_MEMORY_AT_ONCE = 16, _AT_ONCE  # where nothing is to be fused
_PAGE = 4096  # bytes
_SHORT = 16  # elements of an axis, below which additions are faster than a product
_LONG = 64  # elements of an axis, from which on a loop over it is vector code


def _wide(x: jax.Array) -> jnp.dtype:
    return jnp.promote_types(x.dtype, jnp.float32)


def _added_up(rows: jax.Array) -> jax.Array:
    """A few rows at a time, each time through memory, but for what makes the first."""
    row = rows.shape[2:]
    several = rows.astype(_wide(rows))
    # as one axis, whose indices would keep what makes them from vector code, but for those of ones
    if len(row) > 1 and row[-1] < _LONG:
        several = (materialize(several) if row[-1] > 1 else several).reshape(*rows.shape[:2], -1)
    several = blocks_added_up(several, 1, _few(several, _FUSED_AT_ONCE))
    while several.shape[1] > 1:
        several = materialize(several)
        several = blocks_added_up(several, 1, _few(several, _IN_MEMORY_AT_ONCE))
    return several.reshape(rows.shape[0], *row)


def blocks_added_up(
    x: jax.Array, axis: int, most: int, of: Callable[[jax.Array], jax.Array] = lambda block: block
) -> jax.Array:
    """Of an axis of length n, at most so many consecutive blocks of one length m, or what a
    function makes of each, added up.
    """
    n = x.shape[axis]
    m = -(-n // most)
    blocks = [
        of(lax.slice_in_dim(x, first, first + m, axis=axis)) for first in range(0, n - m + 1, m)
    ]
    if left := n % m:  # the last m, of which other blocks have the first
        new = jnp.arange(m) >= m - left
        last = of(lax.slice_in_dim(x, n - m, n, axis=axis))
        blocks.append(jnp.where(new.reshape(m, *[1] * (x.ndim - 1 - axis)), last, 0))
    while len(blocks) > 1:
        odd = blocks[len(blocks) // 2 * 2 :]
        blocks = [*map(jnp.add, blocks[::2], blocks[1::2]), *odd]
    return blocks[0]


def _plain_sum_rows(rows: jax.Array) -> jax.Array:
    return jnp.sum(rows, axis=1, dtype=_wide(rows))


_rows_of_runs = by_size(_plain_sum_rows, _added_up, _MANY)


def sum_rows(rows: jax.Array) -> jax.Array:
    """The sum over the leading axis, `[n, ...]` to `[...]`, in float32 at least."""
    return _rows_of_runs(rows[None])[0]


def _plain_moments(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    wide = rows.astype(_wide(rows))
    apart = wide - wide[:, :1]
    return jnp.sum(apart, axis=1), jnp.sum(apart**2, axis=1)


def _moments_added_up(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two sums in one pass over the rows: XLA fuses no two results on CPUs, but it adds complex
    numbers.
    """
    wide = _wide(rows)
    several = rows.reshape(*rows.shape[:2], -1)
    first = several[:, :1].astype(wide)

    def pairs(block):
        apart = block.astype(wide) - first
        return lax.complex(apart, apart**2)

    several = materialize(blocks_added_up(several, 1, _few(several, _IN_MEMORY_AT_ONCE), pairs))
    while several.shape[1] > 1:
        several = materialize(blocks_added_up(several, 1, _few(several, _IN_MEMORY_AT_ONCE)))
    both = several.reshape(rows.shape[0], *rows.shape[2:])
    return both.real, both.imag


def _few(rows: jax.Array, numbers: tuple[int, ...]) -> int:
    """How many rows `[runs, n, ...]` are read at once, one of these numbers: what lies whole pages
    apart has few places in a cache.
    """
    row = math.prod(rows.shape[2:]) * rows.dtype.itemsize
    return next(
        (number for number in numbers if -(-rows.shape[1] // number) * row % _PAGE), _AT_ONCE
    )


_moments_of_runs = by_size(_plain_moments, _moments_added_up, _MANY)


def moments(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The sums of $x_i - x_0$ and of their squares over rows x, `[n, ...]` to two `[...]`, in
    float32 at least.

    Of rows that agree they are 0, and their errors are as small as the disagreement.
    """
    total, squares = _moments_of_runs(rows[None])
    return total[0], squares[0]


def _elements_added_up(x: jax.Array) -> jax.Array:
    """As products with ones; few as they are, once, which XLA would do again for everything that
    uses the sum.

    What the product reads is stored, or XLA would take what makes it apart, a loop for every block.
    """
    n = x.shape[-1]
    if n < _SHORT:
        total = blocks_added_up(x, x.ndim - 1, n)[..., 0]
        return materialize(total) if n > 1 else total
    few = materialize(blocks_added_up(x, x.ndim - 1, _AT_ONCE)) if n >= _AT_ONCE * _LONG else x
    return jnp.matmul(few, jnp.ones(few.shape[-1], x.dtype), precision=lax.Precision.HIGHEST)


_elements_of_runs = by_size(lambda x: jnp.sum(x, axis=-1), _elements_added_up, _MANY)


def sum_elements(x: jax.Array) -> jax.Array:
    """The sum of a vector's elements, `[d]`, of float32 or float64."""
    return _elements_of_runs(x[None])[0]


def inner(x: jax.Array, y: jax.Array) -> jax.Array:
    """The inner product of real arrays of one shape, in float32 at least."""
    products = x.astype(_wide(x)) * y.astype(_wide(y))
    # what is short is not worth a function of two forms
    return sum_elements(products.ravel()) if x.size >= _MANY else jnp.sum(products)


def sqnorm(tree: PyTree) -> jax.Array:
    """The squared norm of all leaves together, real arrays, in float32 at least."""
    return reduce(jnp.add, (inner(leaf, leaf) for leaf in jax.tree.leaves(tree)))
