"""Indices that users' functions return while a run is traced: their values are known only when it runs, where JAX would clamp them.

A round's `Info.outside` has, by what is wrong, a code of the first index outside its range. The loop keeps the first code of each record,
and the host ends the run with a ValueError after the chunk that has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PREFIX = "outside: "
"""How the names of such records begin; they are no part of the history."""

_LARGEST = np.int32(2**31 - 2)


def outside(indices: jax.Array | np.ndarray, most: Any) -> jax.Array:
    """The code of the first index that is not in 0, ..., most, an int32 scalar: 0 if there is none.

    Args:
        indices: integers of any shape.
        most: the largest index, or an array of them.
    """
    given = jnp.asarray(indices).ravel()
    wrong = (given < 0) | (given > most)
    code = jnp.where(given < 0, given, jnp.minimum(given, _LARGEST) + 1).astype(jnp.int32)
    return first(jnp.where(wrong, code, 0))


def first(codes: jax.Array) -> jax.Array:
    """The first code that is not 0, of codes `[k]`."""
    return codes[jnp.argmax(codes != 0)]


def earlier(before: jax.Array, now: jax.Array) -> jax.Array:
    """The code of two rounds: that of the first, unless it is 0."""
    return jnp.where(before != 0, before, now.astype(before.dtype))


def found(records: Mapping[str, np.ndarray]) -> str:
    """What is wrong in these records, in words; "" if nothing is."""
    for name, codes in records.items():
        if name.startswith(PREFIX) and (wrong := np.asarray(codes)[np.asarray(codes) != 0]).size:
            code = int(wrong.flat[0])
            return name.removeprefix(PREFIX).replace("{}", str(code if code < 0 else code - 1), 1)
    return ""
