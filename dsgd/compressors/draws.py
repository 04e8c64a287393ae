"""Random numbers of 32 bits, also where JAX has 64 enabled, one for each element of a vector."""

from __future__ import annotations

import jax
import jax.numpy as jnp

LANES = 16


def uniform(key: jax.Array, d: int) -> jax.Array:
    """d numbers in [0, 1), float32, those of `jax.random.uniform`."""
    return jax.random.uniform(key, (_whole(d),), dtype=jnp.float32)[:d]


def words(key: jax.Array, d: int) -> jax.Array:
    """d words of 32 random bits, uint32, those of `jax.random.bits`."""
    return jax.random.bits(key, (_whole(d),), dtype=jnp.uint32)[:d]


def _whole(d: int) -> int:
    """As many as to draw: XLA's loop over a long vector of odd length is ten times slower on CPUs. The first d do not depend on it."""
    return d if d < 64 * LANES else -(-d // LANES) * LANES
