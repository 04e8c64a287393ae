"""The k largest elements of vectors without a sort.

XLA on CPUs finds the k largest elements by sorting, one vector after the other. Here the k-th
largest is found as a binary number, one bit per pass over the vector: a bit is 1 if at least k
elements reach the number with this bit set. A pass reads one byte of each element, in vectorised
code: the byte that contains the bit, or the smallest or largest byte if higher bits already decide
the comparison. Without this file, the same elements are chosen.

Gain (`python -m experiments.benchmark workarounds`, CPU seconds): a tenth of 64 vectors of 10,000
elements is selected 14 times as fast with JAX 0.10.2, 15 times with 0.11.2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dsgd.xla.barriers import materialize
from dsgd.xla.forms import by_size
from dsgd.xla.sums import blocks_added_up

# From this many elements of all vectors on, the time saved in some thousand rounds exceeds the
# additional compile time.
_MANY = 1 << 14
# From this length on, counting along a vector is vectorised; shorter vectors are transposed.
_LONG = 100
_BYTE = 8
# Number of bytes that are added in one expression. Two such additions follow each other, so its
# square must be less than 256.
_AT_ONCE = 12


def largest(x: jax.Array, k: int) -> jax.Array:
    """Returns the indices of the k elements of a vector with the largest magnitudes, `[k]`; of
    equal ones, the first.
    """
    # Small models have many short vectors with k = 1, which needs no sort.
    return jnp.argmax(jnp.abs(x))[None] if k == 1 else lax.top_k(jnp.abs(x), k)[1]


def ranks(x: jax.Array) -> jax.Array:
    """Returns unsigned integers, of as many bits as the floats, in the order of the magnitudes,
    with NaN last.
    """
    bits = 8 * x.dtype.itemsize
    return lax.bitcast_convert_type(x, f"uint{bits}") & (1 << bits - 1) - 1


def among_largest(x: jax.Array, k: int) -> jax.Array:
    """Returns a mask of the k elements of a vector with the largest magnitudes, bool `[d]`. Of
    equal elements the first are selected. Which zeros are selected, if any, is unspecified.
    """
    return _of_each_vector(k)(x[None])[0]


@cache
def _of_each_vector(k: int) -> Callable[[jax.Array], jax.Array]:
    def sorted_out(x):
        return jnp.zeros(x.shape, bool).at[largest(x, k)].set(True, unique_indices=True)

    return by_size(jax.vmap(sorted_out), partial(_counted_out, k), _MANY)


def _counted_out(k: int, x: jax.Array) -> jax.Array:
    """Returns the masks for vectors `[n, d]`."""
    # If the k-th largest is 0, all nonzero elements are selected, and no zero needs to be.
    kth = jnp.maximum(_kth_largest(k, ranks(x)), 1)
    larger, enough = _reach(ranks(x), kth + 1, axis=1), _reach(ranks(x), kth, axis=1)

    # Both branches compute the ranks again, since XLA would store the operands of a branch.
    def first_of_equals():
        d = x.shape[1]
        place = lax.broadcasted_iota(np.min_scalar_type(d), x.shape, 1)
        # Among equal elements, the first have the largest distance to the end.
        to_the_end = jnp.where(ranks(x) == kth[:, None], d - place, 0)
        last = _kth_largest(k - larger, to_the_end)
        return (ranks(x) > kth[:, None]) | (to_the_end >= last[:, None])

    return lax.cond(jnp.any(enough > k), first_of_equals, lambda: ranks(x) >= kth[:, None])


def _kth_largest(k: int | jax.Array, x: jax.Array) -> jax.Array:
    """Returns the k-th largest of unsigned integers, `[n, d]` to `[n]`."""
    x, axis = (x, 1) if x.shape[1] >= _LONG else (x.T, 0)
    found = jnp.zeros(x.shape[1 - axis], x.dtype)
    for shift in range(_BYTE * (x.dtype.itemsize - 1), -1, -_BYTE):
        start = jnp.expand_dims(found, axis)
        digits = jnp.where(x < start, 0, jnp.minimum(x - start >> shift, 255)).astype(jnp.uint8)
        found |= _kth_largest_byte(k, digits, axis).astype(x.dtype) << shift
    return found


def _kth_largest_byte(k: int | jax.Array, digits: jax.Array, axis: int) -> jax.Array:
    def one_more_bit(i, found):
        tried = found | jnp.uint8(128) >> i.astype(jnp.uint8)
        return jnp.where(_reach(digits, tried, axis) >= k, tried, found)

    return lax.fori_loop(0, _BYTE, one_more_bit, jnp.zeros(digits.shape[1 - axis], jnp.uint8))


def _reach(x: jax.Array, threshold: jax.Array, axis: int) -> jax.Array:
    """Returns the number of integers along the axis that are at least as large as their threshold,
    uint32.
    """
    count = blocks_added_up(
        x,
        axis,
        _AT_ONCE,
        lambda block: (block >= jnp.expand_dims(threshold, axis)).astype(jnp.uint8),
    )
    count = blocks_added_up(materialize(count), axis, _AT_ONCE)
    return jnp.sum(count, axis=axis, dtype=jnp.uint32)
