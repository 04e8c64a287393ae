"""The keys of a run's random numbers."""

from __future__ import annotations

import jax
import numpy as np

from dsgd.base import Key

# Folded into a run's key for numbered draws; numbers of rounds are smaller.
_STREAM = np.uint32(2**32 - 1)


def split(key: Key) -> tuple[jax.Array, jax.Array]:
    """Returns the key of a run's start and the key of its rounds."""
    first, rounds = jax.random.split(key)
    return first, rounds


def round_keys(key: jax.Array, step: jax.Array) -> jax.Array:
    """Returns the keys of a round: those of the query, the samples and the update."""
    return jax.random.split(jax.random.fold_in(key, step), 3)


def stream(key: jax.Array) -> jax.Array:
    """Returns the key of numbered draws, derived from the key of the run's rounds."""
    return jax.random.fold_in(key, _STREAM)
