"""Normalisation of vectors to a largest magnitude of 1, limits of magnitudes, random rounding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike


def unit(x: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Returns x divided by its largest magnitude, and that magnitude. Zeros stay zeros; if x is
    empty, the magnitude is 0.

    Args:
        x: float32 or float64, of any shape.
    """
    x = jnp.asarray(x)
    largest = jnp.max(jnp.abs(x), initial=0)
    return safe_divide(x, largest), largest


def safe_divide(x: jax.Array, largest: jax.Array) -> jax.Array:
    """Returns x divided by a scalar, or x itself if the scalar is 0.

    Args:
        x: float32 or float64, of any shape.
        largest: at least 0, of the type of x.
    """
    # XLA divides by a scalar by multiplying with its reciprocal, so both must be normal numbers.
    shift = jnp.where(largest > 1, jnp.float32(1 / 8), jnp.float32(8))
    return (x * shift) / (jnp.where(largest > 0, largest, 1) * shift)


def clip_to_rms(x: ArrayLike, limit: float) -> jax.Array:
    """Limits the magnitudes of x to `limit` times their root mean square.

    Args:
        x: float32 or float64, of any shape.
        limit: a positive number.
    """
    shares, largest = unit(x)
    bound = largest * jnp.minimum(1, limit * jnp.sqrt(jnp.mean(shares**2)))
    return jnp.clip(x, -bound, bound)


def round_randomly(key: jax.Array, place: jax.Array) -> jax.Array:
    """Rounds `place` at random to one of the two neighbouring integers, such that the mean is
    `place`.
    """
    floor = jnp.floor(place)
    return floor + (jax.random.uniform(key, place.shape, jnp.float32) < place - floor)
