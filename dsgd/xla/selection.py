"""The k largest elements of vectors without a sort.

XLA on CPUs finds the k largest elements by sorting, one vector after the other. Here the k-th
largest is found as a binary number, a bit in a pass over the vector: it is 1 where k elements are
as large. A pass reads a byte of each element, in vector code: the one with that bit, or the
smallest or largest byte where higher bits decide already. Without this file the same elements are
chosen.

Gain (`python -m experiments.benchmark workarounds`, CPU seconds): a tenth of 64 vectors of 10,000
elements 14 times as fast with JAX 0.10.2, 15 with 0.11.2.
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

# elements of all vectors, from which on this saves more in some thousand rounds than it takes
# longer to compile
_MANY = 1 << 14
# elements of a vector, from which on counting along it is vector code; shorter ones lie side by
# side
_LONG = 100
_BYTE = 8
# bytes that are added up in one expression: so many times so many ones are no more than a byte
# holds
_AT_ONCE = 12


def largest(x: jax.Array, k: int) -> jax.Array:
    """The places of a vector's k largest elements by magnitude, `[k]`; of equal ones the first."""
    # Small models have very many short vectors; one largest element is found without a sort.
    return jnp.argmax(jnp.abs(x))[None] if k == 1 else lax.top_k(jnp.abs(x), k)[1]


def ranks(x: jax.Array) -> jax.Array:
    """Unsigned integers of as many bits as the floats, in the order of their magnitudes, NaN
    last.
    """
    bits = 8 * x.dtype.itemsize
    return lax.bitcast_convert_type(x, f"uint{bits}") & (1 << bits - 1) - 1


def among_largest(x: jax.Array, k: int) -> jax.Array:
    """Which elements of a vector are its k largest by magnitude, bool `[d]`; of equal ones the
    first, of zeros some, or none.
    """
    return _of_each_vector(k)(x[None])[0]


@cache
def _of_each_vector(k: int) -> Callable[[jax.Array], jax.Array]:
    def sorted_out(x):
        return jnp.zeros(x.shape, bool).at[largest(x, k)].set(True, unique_indices=True)

    return by_size(jax.vmap(sorted_out), partial(_counted_out, k), _MANY)


def _counted_out(k: int, x: jax.Array) -> jax.Array:
    """Of vectors `[n, d]`."""
    # if it is 0, all others are larger: zeros need no choice
    kth = jnp.maximum(_kth_largest(k, ranks(x)), 1)
    larger, enough = _reach(ranks(x), kth + 1, axis=1), _reach(ranks(x), kth, axis=1)

    # Both branches rank x again: operands of a branch would be stored.
    def first_of_equals():
        d = x.shape[1]
        place = lax.broadcasted_iota(np.min_scalar_type(d), x.shape, 1)
        # of equals, the first have the largest
        to_the_end = jnp.where(ranks(x) == kth[:, None], d - place, 0)
        last = _kth_largest(k - larger, to_the_end)
        return (ranks(x) > kth[:, None]) | (to_the_end >= last[:, None])

    return lax.cond(jnp.any(enough > k), first_of_equals, lambda: ranks(x) >= kth[:, None])


def _kth_largest(k: int | jax.Array, x: jax.Array) -> jax.Array:
    """Of unsigned integers `[n, d]`, the largest `[n]` that k reach."""
    x, axis = (x, 1) if x.shape[1] >= _LONG else (x.T, 0)
    known = jnp.zeros(x.shape[1 - axis], x.dtype)
    for shift in range(_BYTE * (x.dtype.itemsize - 1), -1, -_BYTE):
        start = jnp.expand_dims(known, axis)
        digits = jnp.where(x < start, 0, jnp.minimum(x - start >> shift, 255)).astype(jnp.uint8)
        known |= _kth_largest_byte(k, digits, axis).astype(x.dtype) << shift
    return known


def _kth_largest_byte(k: int | jax.Array, digits: jax.Array, axis: int) -> jax.Array:
    def one_more_bit(i, known):
        tried = known | jnp.uint8(128) >> i.astype(jnp.uint8)
        return jnp.where(_reach(digits, tried, axis) >= k, tried, known)

    return lax.fori_loop(0, _BYTE, one_more_bit, jnp.zeros(digits.shape[1 - axis], jnp.uint8))


def _reach(x: jax.Array, threshold: jax.Array, axis: int) -> jax.Array:
    """How many integers along the axis are as large as their threshold, or larger, uint32."""
    count = blocks_added_up(
        x,
        axis,
        _AT_ONCE,
        lambda block: (block >= jnp.expand_dims(threshold, axis)).astype(jnp.uint8),
    )
    count = blocks_added_up(materialize(count), axis, _AT_ONCE)
    return jnp.sum(count, axis=axis, dtype=jnp.uint32)
