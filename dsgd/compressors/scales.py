"""Vectors without their scale."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike


def unit(x: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """x over its largest magnitude, and that; zeros stay zeros.

    Args:
        x: float32 or float64, of any shape.
    """
    x = jnp.asarray(x)
    largest = jnp.max(jnp.abs(x))
    # XLA divides by a scalar by multiplying with its reciprocal: neither may be outside of the
    # normal numbers.
    shift = jnp.where(largest > 1, jnp.float32(1 / 8), jnp.float32(8))
    return (x * shift) / (jnp.where(largest > 0, largest, 1) * shift), largest
