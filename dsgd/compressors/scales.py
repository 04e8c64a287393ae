"""Normalisation of vectors to a largest magnitude of 1."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike


def unit(x: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Returns x divided by its largest magnitude, and that magnitude. Zeros stay zeros.

    Args:
        x: float32 or float64, of any shape.
    """
    x = jnp.asarray(x)
    largest = jnp.max(jnp.abs(x))
    # XLA divides by a scalar by multiplying with its reciprocal, so both must be normal numbers.
    shift = jnp.where(largest > 1, jnp.float32(1 / 8), jnp.float32(8))
    return (x * shift) / (jnp.where(largest > 0, largest, 1) * shift), largest
