"""The k largest elements of vectors without a sort.

XLA on CPUs finds the k largest elements by sorting, one vector after the other. Here the k-th
largest is found as a binary number, one bit per pass over the vector: a bit is 1 if at least k
elements reach the number with this bit set. A pass reads one byte of each element, in vectorised
code: the byte that contains the bit, or the smallest or largest byte if higher bits already decide
the comparison. For indices, only the selected elements are sorted. Without this file, the same
elements are chosen, in the same order.

Gain (`python -m experiments.benchmark workarounds`, CPU seconds): a tenth of 64 vectors of 10,000
elements is selected 14 times as fast with JAX 0.10.2, 15 times with 0.11.2. The indices of a
hundredth of 1,000,000 elements are found about 3 times as fast.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dsgd.xla.barriers import materialize
from dsgd.xla.forms import choose_by_size
from dsgd.xla.sums import blocks_added_up

# From this many elements of all vectors on, the time saved in some thousand rounds exceeds the
# additional compile time.
_MANY = 1 << 14
# From this length on, counting along a vector is vectorised; shorter vectors are transposed.
_LONG = 100
_BYTE, _WORD = 8, 32
# Number of bytes that are added in one expression. Two such additions follow each other, so its
# square must be less than 256.
_AT_ONCE = 12


def largest(x: jax.Array, k: int) -> jax.Array:
    """Returns the indices of the k elements of a vector with the largest magnitudes, `[k]`; of
    equal ones, the first.
    """
    if k == 1:  # small models have many short vectors with k = 1, which needs no sort
        return jnp.argmax(jnp.abs(x))[None]
    return _top_k(x, k) if x.shape[0] < _MANY else _indices_in_each_vector(k)(x[None])[0]


def _top_k(x: jax.Array, k: int) -> jax.Array:
    return lax.top_k(jnp.abs(x), k)[1]


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
    return _masks(k)(x[None])[0]


@cache
def _masks(k: int) -> Callable[[jax.Array], jax.Array]:
    def mask_by_sort(x):
        return jnp.zeros(x.shape, bool).at[_top_k(x, k)].set(True, unique_indices=True)

    return choose_by_size(jax.vmap(mask_by_sort), partial(_masks_by_count, k), _MANY)


@cache
def _indices_in_each_vector(k: int) -> Callable[[jax.Array], jax.Array]:
    plain = jax.vmap(lambda x: _top_k(x, k))
    return choose_by_size(plain, partial(_indices_by_count, plain, k), _MANY)


def _indices_by_count(plain: Callable[[jax.Array], jax.Array], k: int, x: jax.Array) -> jax.Array:
    """Returns the indices for vectors `[n, d]`: only the selected elements are sorted."""
    words = _pack(_masks_by_count(k, x))
    number = lax.population_count(words).astype(jnp.int32)
    total = jnp.cumsum(number, axis=1)

    def sort_selected():
        order = jnp.arange(k, dtype=jnp.int32)
        word = jax.vmap(lambda total: jnp.searchsorted(total, order, side="right"))(total)
        before = jnp.take_along_axis(total - number, word, axis=1)
        places = _WORD * word + _nth_bit(
            jnp.take_along_axis(words, word, axis=1), order[None] - before
        )
        selected = jnp.take_along_axis(x, places, axis=1)
        return jnp.take_along_axis(places, jax.vmap(lambda x: _top_k(x, k))(selected), axis=1)

    # If the k-th largest is 0, fewer elements may be selected.
    return lax.cond(jnp.all(total[:, -1] >= k), sort_selected, lambda: plain(x))


def _pack(mask: jax.Array) -> jax.Array:
    """Packs 32 consecutive bits into a word, the first into its lowest bit: `[n, d]` to
    `[n, ceil(d / 32)]`.
    """
    n, d = mask.shape
    padded = jnp.pad(mask, ((0, 0), (0, -d % _WORD))).reshape(n, -1, _WORD)
    bits = padded.astype(jnp.uint32) << lax.broadcasted_iota(jnp.uint32, padded.shape, 2)
    return materialize(jnp.sum(bits, axis=2, dtype=jnp.uint32))


def _nth_bit(words: jax.Array, n: jax.Array) -> jax.Array:
    """Returns the position of the bit of each word that has n ones below it, int32."""
    place = jnp.zeros_like(n)
    for half in (16, 8, 4, 2, 1):
        below = lax.population_count(words & ((1 << half) - 1)).astype(n.dtype)
        above = n >= below
        n, words = jnp.where(above, n - below, n), jnp.where(above, words >> half, words)
        place += jnp.where(above, half, 0)
    return place


def _masks_by_count(k: int, x: jax.Array) -> jax.Array:
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
