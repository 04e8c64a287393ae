"""Sums over rows and over elements at memory bandwidth.

XLA on CPUs reduces the leading axis of an array in a loop that is not vectorised, and computes
several reductions of one array in several passes. Here, sums over rows are additions of a few rows
at a time: of 8, which XLA fuses with the computation of the rows, so that these are never stored;
or of 16 rows that are in memory, with two sums in one pass. Sums over elements are products with
ones. Without this file, the results are the same up to the order of additions.

Gain (`python -m experiments.benchmark workarounds`, CPU seconds): the mean gradient of 16 x 100,000
is 42 times as fast with JAX 0.10.2, 1.9 times with 0.11.2; moments of 16 x 100,000 149 and 3.1
times; sums of 256 x 4,096 elements 1.4 and 1.4 times.
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
from dsgd.xla.forms import choose_by_size

_MANY = 4096  # elements of all runs from which on the form for CPUs is used
# Numbers of rows that are added in one expression; the first suitable one is used. XLA does not
# fuse the computation of rows with 16 uses.
_AT_ONCE = 8
_FUSED_AT_ONCE = _AT_ONCE, 12
_IN_MEMORY_AT_ONCE = 16, _AT_ONCE  # for rows that are stored, so that nothing needs to be fused
_PAGE = 4096  # bytes
_SHORT = 16  # length of an axis below which additions are faster than a product
_LONG = 64  # length of an axis from which on a loop over it is vectorised


def _wide(x: jax.Array) -> jnp.dtype:
    return jnp.promote_types(x.dtype, jnp.float32)


def _add_rows_up(rows: jax.Array) -> jax.Array:
    """Adds rows, a few at a time. The first addition is fused with the computation of the rows; the
    intermediate sums are stored.
    """
    row = rows.shape[2:]
    several = rows.astype(_wide(rows))
    # Axes are merged into one. Its index computation would prevent vectorised code for the rows if
    # it were fused with them, unless the last axis has length 1; hence the rows are stored.
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
    """Splits an axis of length n into at most `most` consecutive blocks of equal length, and
    returns the sum of the blocks, or of a function of them.
    """
    n = x.shape[axis]
    m = -(-n // most)
    blocks = [
        of(lax.slice_in_dim(x, first, first + m, axis=axis)) for first in range(0, n - m + 1, m)
    ]
    if left := n % m:  # the last m elements; the first of them are in other blocks
        new = jnp.arange(m) >= m - left
        last = of(lax.slice_in_dim(x, n - m, n, axis=axis))
        blocks.append(jnp.where(new.reshape(m, *[1] * (x.ndim - 1 - axis)), last, 0))
    while len(blocks) > 1:
        odd = blocks[len(blocks) // 2 * 2 :]
        blocks = [*map(jnp.add, blocks[::2], blocks[1::2]), *odd]
    return blocks[0]


def _plain_sum_rows(rows: jax.Array) -> jax.Array:
    return jnp.sum(rows, axis=1, dtype=_wide(rows))


_rows_of_runs = choose_by_size(_plain_sum_rows, _add_rows_up, _MANY)


def sum_rows(rows: jax.Array) -> jax.Array:
    """Returns the sum over the leading axis, `[n, ...]` to `[...]`, in float32 at least."""
    return _rows_of_runs(rows[None])[0]


def _plain_moments(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    wide = rows.astype(_wide(rows))
    differences = wide - wide[:, :1]
    return jnp.sum(differences, axis=1), jnp.sum(differences**2, axis=1)


def _add_moments_up(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Computes two sums in one pass over the rows, as the parts of complex numbers, since XLA on
    CPUs does not fuse two results.
    """
    wide = _wide(rows)
    several = rows.reshape(*rows.shape[:2], -1)
    first = several[:, :1].astype(wide)

    def pairs(block):
        differences = block.astype(wide) - first
        return lax.complex(differences, differences**2)

    several = materialize(blocks_added_up(several, 1, _few(several, _IN_MEMORY_AT_ONCE), pairs))
    while several.shape[1] > 1:
        several = materialize(blocks_added_up(several, 1, _few(several, _IN_MEMORY_AT_ONCE)))
    both = several.reshape(rows.shape[0], *rows.shape[2:])
    return both.real, both.imag


def _few(rows: jax.Array, numbers: tuple[int, ...]) -> int:
    """Returns how many of the rows `[runs, n, ...]` are read at once: one of `numbers`. Strides of
    whole memory pages are avoided, since such rows compete for few places in a cache.
    """
    row = math.prod(rows.shape[2:]) * rows.dtype.itemsize
    return next(
        (number for number in numbers if -(-rows.shape[1] // number) * row % _PAGE), _AT_ONCE
    )


_moments_of_runs = choose_by_size(_plain_moments, _add_moments_up, _MANY)


def moments(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the sums of $x_i - x_0$ and of their squares over rows x, `[n, ...]` to two `[...]`,
    in float32 at least.

    They are 0 if the rows agree, and their errors are proportional to the disagreement.
    """
    total, squares = _moments_of_runs(rows[None])
    return total[0], squares[0]


def _add_elements_up(x: jax.Array) -> jax.Array:
    """Sums elements by products with ones, or by additions if there are few. The result of
    additions is stored, since XLA would compute it again for each use.

    The operand of the product is stored first. Otherwise XLA would compute it in a separate loop
    for each block.
    """
    n = x.shape[-1]
    if n < _SHORT:
        total = blocks_added_up(x, x.ndim - 1, n)[..., 0]
        return materialize(total) if n > 1 else total
    few = materialize(blocks_added_up(x, x.ndim - 1, _AT_ONCE)) if n >= _AT_ONCE * _LONG else x
    return jnp.matmul(few, jnp.ones(few.shape[-1], x.dtype), precision=lax.Precision.HIGHEST)


_elements_of_runs = choose_by_size(lambda x: jnp.sum(x, axis=-1), _add_elements_up, _MANY)


def sum_elements(x: jax.Array) -> jax.Array:
    """Returns the sum of a vector's elements, `[d]`, of float32 or float64."""
    return _elements_of_runs(x[None])[0]


def inner(x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the inner product of real arrays of the same shape, in float32 at least."""
    products = x.astype(_wide(x)) * y.astype(_wide(y))
    # For short arrays, a function of two forms is not worth its compile time.
    return sum_elements(products.ravel()) if x.size >= _MANY else jnp.sum(products)


def sqnorm(tree: PyTree) -> jax.Array:
    """Returns the squared norm of all leaves together, which are real arrays, in float32 at
    least.
    """
    return reduce(jnp.add, (inner(leaf, leaf) for leaf in jax.tree.leaves(tree)))


def sqnorms(one: PyTree, other: PyTree) -> tuple[jax.Array, jax.Array]:
    """Returns the `sqnorm` of two trees of the same shapes. Short leaves are summed in one pass, as
    the parts of complex numbers, since XLA on CPUs does not fuse two results.
    """

    def both(a, b):
        if a.size >= _MANY:
            return inner(a, a), inner(b, b)
        squares = [
            jnp.square(leaf.astype(jnp.promote_types(_wide(a), _wide(b)))) for leaf in (a, b)
        ]
        total = jnp.sum(lax.complex(*squares))
        return total.real, total.imag

    parts = map(both, jax.tree.leaves(one), jax.tree.leaves(other))
    first, second = (reduce(jnp.add, sums) for sums in zip(*parts, strict=True))
    return first, second


def rescale(tree: PyTree) -> tuple[PyTree, jax.Array]:
    """Returns the leaves divided by a power of two, in float32 at least, and that power.

    The largest magnitude becomes about 1, so that sums of squares do not overflow in half precision
    or for magnitudes above $10^{19}$, nor underflow. Sums of squares in the normal range have the
    same digits with and without this division.

    Args:
        tree: leaves of any shape, at least one of them not empty.
    """
    wide = jax.tree.map(lambda leaf: leaf.astype(_wide(leaf)), tree)
    each = [jnp.max(jnp.abs(leaf), initial=0) for leaf in jax.tree.leaves(wide)]
    largest = lax.stop_gradient(reduce(jnp.maximum, each))
    limits = jnp.finfo(largest.dtype)
    # The power and its reciprocal are normal numbers.
    exponent = jnp.clip(jnp.frexp(largest)[1], limits.minexp + 1, limits.maxexp - 2)
    power, inverse = (jnp.ldexp(jnp.ones_like(largest), e) for e in (exponent, -exponent))
    return jax.tree.map(lambda leaf: leaf * inverse.astype(leaf.dtype), wide), power
