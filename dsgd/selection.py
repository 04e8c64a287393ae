"""The k largest elements of vectors, on CPUs, where XLA takes up to 30 times as long to find them (`experiments.benchmark rounds`: EF21).

The k-th largest is found as a binary number, a bit in a pass over the vector: it is 1 where k elements are as large. A pass reads a byte of
each element, in vector code: the one with that bit, or the smallest or largest byte where higher bits tell already.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dsgd import sums
from dsgd.barriers import stored
from dsgd.two_forms import of_each_run

_MANY = 1 << 14  # elements of all vectors, from which on this saves more in some thousand rounds than it takes longer to compile
_LONG = 100  # elements of a vector, from which on counting along it is vector code; shorter ones lie side by side
_BYTE = 8
_AT_ONCE = 12  # bytes that are added up in one expression: two times so many ones are no more than a byte holds


def among_largest(x: jax.Array, k: int) -> jax.Array:
    """Which elements of a vector are its k largest by magnitude, bool `[d]`; of equal ones the first, of zeros some, or none."""
    return _of_each_vector(k)(x[None])[0]


@cache
def _of_each_vector(k: int) -> Callable[[jax.Array], jax.Array]:
    def sorted_out(x):
        return jnp.zeros(x.shape, bool).at[lax.top_k(jnp.abs(x), k)[1]].set(True, unique_indices=True)

    return of_each_run(jax.vmap(sorted_out), partial(_counted_out, k), _MANY)


def _counted_out(k: int, x: jax.Array) -> jax.Array:
    """Of vectors `[n, d]`."""
    ranks = _ranks(x)
    kth = jnp.maximum(_kth_largest(k, ranks), 1)  # which of the zeros, needs no choice
    larger, enough = _reach(ranks, kth + 1, axis=1), _reach(ranks, kth, axis=1)

    def first_of_equals():
        ranks, d = _ranks(x), x.shape[1]  # anew: what comes into a branch goes through memory
        place = lax.broadcasted_iota(np.min_scalar_type(d), x.shape, 1)
        to_the_end = jnp.where(ranks == kth[:, None], d - place, 0)  # of equals, the first have the largest
        last = _kth_largest(k - larger, to_the_end)
        return (ranks > kth[:, None]) | (to_the_end >= last[:, None])

    return lax.cond(jnp.any(enough > k), first_of_equals, lambda: _ranks(x) >= kth[:, None])


def _ranks(x: jax.Array) -> jax.Array:
    """Integers in the order of the magnitudes, NaN last."""
    bits = 8 * x.dtype.itemsize
    return lax.bitcast_convert_type(x, f"uint{bits}") & (1 << bits - 1) - 1


def _kth_largest(k: int | jax.Array, ranks: jax.Array) -> jax.Array:
    """Of integers `[n, d]`, the largest `[n]` that k reach."""
    ranks, axis = (ranks, 1) if ranks.shape[1] >= _LONG else (ranks.T, 0)
    known = jnp.zeros(ranks.shape[1 - axis], ranks.dtype)
    for shift in range(_BYTE * (ranks.dtype.itemsize - 1), -1, -_BYTE):
        start = jnp.expand_dims(known, axis)
        digits = jnp.where(ranks < start, 0, jnp.minimum(ranks - start >> shift, 255)).astype(jnp.uint8)
        known |= _kth_largest_byte(k, digits, axis).astype(ranks.dtype) << shift
    return known


def _kth_largest_byte(k: int | jax.Array, digits: jax.Array, axis: int) -> jax.Array:
    def one_more_bit(i, known):
        tried = known | jnp.uint8(128) >> i.astype(jnp.uint8)
        return jnp.where(_reach(digits, tried, axis) >= k, tried, known)

    return lax.fori_loop(0, _BYTE, one_more_bit, jnp.zeros(digits.shape[1 - axis], jnp.uint8))


def _reach(x: jax.Array, threshold: jax.Array, axis: int) -> jax.Array:
    """How many integers along the axis are as large as their threshold, or larger, uint32."""
    count = sums.blocks_added_up(x, axis, _AT_ONCE, lambda block: (block >= jnp.expand_dims(threshold, axis)).astype(jnp.uint8))
    count = sums.blocks_added_up(stored(count), axis, _AT_ONCE)
    return jnp.sum(count, axis=axis, dtype=jnp.uint32)
