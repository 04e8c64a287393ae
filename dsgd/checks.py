"""Refusals that many places share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsgd.base import Compressor


def positive_int(name: str, value: Any) -> int:
    """The value, if it is an integer of at least 1.

    Raises:
        ValueError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} = {value}: need an integer, at least 1")
    return int(value)


def natural(name: str, value: Any) -> int:
    """The value, if it is an integer of at least 0.

    Raises:
        ValueError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise ValueError(f"{name} = {value}: need an integer, at least 0")
    return int(value)


def compressor(where: str, value: Any) -> Compressor:
    """The value, if it is a compressor.

    Raises:
        ValueError: it is not; a factory without its arguments, say.
    """
    if not isinstance(value, Compressor):
        shown = f"the function {value.__name__}" if callable(value) and hasattr(value, "__name__") else repr(value)
        raise ValueError(f"{where}: given {shown}; need a dsgd.Compressor, compressors.sign or compressors.top_k(0.1), say")
    return value


def prng_key(key: Any) -> None:
    """Raises a ValueError where `key` is not one key of JAX, of the new type or the old."""
    if isinstance(key, jax.Array):
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0:
            return
        if key.dtype == jnp.uint32 and key.ndim == 1:
            return
    given = f"{type(key).__name__} of shape {jnp.shape(key)}" if isinstance(key, jax.Array) else repr(key)
    raise ValueError(f"key = {given}: need one key of JAX, jax.random.key(0), say")
