"""What a method refuses or warns of while it runs: numbers that are known only then, as indices
that users' functions return, where JAX would clamp them.

A round's numbers are NaN if nothing is wrong. The loop keeps the first one of each record, and the
host ends the run with a ValueError, or warns, after the chunk that has one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

REFUSED, WARNED = "refused: ", "warned: "
"""How the names of such records begin; they are no part of the history."""

_FIELD = re.compile(r"\{(:[^{}]*)?\}")


def outside(indices: jax.Array | np.ndarray, most: Any) -> jax.Array:
    """The first index that is not in 0, ..., most, a float scalar; NaN if there is none.

    Args:
        indices: integers of any shape.
        most: the largest index, or an array of them.
    """
    given = jnp.asarray(indices).ravel()
    return first(jnp.where((given < 0) | (given > most), given.astype(float), jnp.nan))


def first(numbers: jax.Array) -> jax.Array:
    """The first number that is not NaN, of numbers `[k]`."""
    return numbers[jnp.argmax(~jnp.isnan(numbers))]


def earlier(before: jax.Array, now: jax.Array) -> jax.Array:
    """The number of two rounds: that of the first, unless it is NaN."""
    return jnp.where(jnp.isnan(before), now.astype(before.dtype), before)


def is_kept(name: str) -> bool:
    """Whether the records of this name are such numbers."""
    return name.startswith((REFUSED, WARNED))


def found(records: Mapping[str, np.ndarray], kind: str) -> str:
    """What is wrong in these records, in words; "" if nothing is.

    Args:
        records: by name.
        kind: `REFUSED` or `WARNED`.
    """
    for name, values in records.items():
        if name.startswith(kind) and (wrong := np.asarray(values)[~np.isnan(values)]).size:
            number = float(wrong.flat[0])
            return _FIELD.sub(partial(_shown, number), name.removeprefix(kind), count=1)
    return ""


def _shown(number: float, field: re.Match[str]) -> str:
    return format(int(number) if number.is_integer() else number, (field[1] or ":")[1:])
