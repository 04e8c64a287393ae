"""Seeds of 64 bits, which messages carry so that their receivers draw the same random numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def draw_seed(key: jax.Array) -> jax.Array:
    """Returns a seed of 64 bits, uint32 `[2]`."""
    return jax.random.bits(key, (2,), jnp.uint32)


def from_seed(seed: jax.Array) -> jax.Array:
    """Returns the key that sender and receivers make of a seed."""
    return jax.random.wrap_key_data(seed, impl="threefry2x32")
