"""Indices of the elements that a mask selects, without a sort or a scatter of all elements."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from dsgd import xla

_WORD = 32


def selected_indices(mask: jax.Array, room: int) -> jax.Array:
    """Returns the indices of the selected elements, uint32 `[room]`, in an order that depends on
    the mask only, with d in place of missing ones. If there are more than `room`, some are missing.

    The mask is packed into words of 32 bits, as codes of one bit are (word w has the elements w,
    w + W, w + 2W, ...). Every slot finds its word from the running number of bits, and its bit in
    the word in five halvings. `jnp.nonzero`, which scatters d indices, takes 2 to 10 times as long
    on CPUs.

    Args:
        mask: bool `[d]`.
        room: number of indices.
    """
    d = mask.shape[0]
    W = -(-d // _WORD)
    planes = jnp.pad(mask, (0, W * _WORD - d)).reshape(_WORD, W).astype(jnp.uint32)
    words = planes[0]
    for bit in range(1, _WORD):
        words |= planes[bit] << bit
    words = xla.materialize(words)
    number = lax.population_count(words)
    end = jnp.cumsum(number, dtype=jnp.uint32)
    # A slot belongs to the word after those that end at or before it.
    word = jnp.cumsum(jnp.zeros(room, jnp.uint32).at[end].add(1, mode="drop"), dtype=jnp.uint32)
    left = words.at[word].get(mode="fill", fill_value=0)
    rank = jnp.arange(room, dtype=jnp.uint32) - (end - number).at[word].get(
        mode="fill", fill_value=0
    )
    place = word
    for half in (16, 8, 4, 2, 1):
        lower = lax.population_count(left & jnp.uint32((1 << half) - 1))
        upper = rank >= lower
        rank = jnp.where(upper, rank - lower, rank)
        left = jnp.where(upper, left >> half, left)
        place = jnp.where(upper, place + half * W, place)
    return jnp.where(word < W, place, d)
