"""Errors and warnings that depend on values which are known only while a method runs, such as
indices that users' functions return (JAX would clamp them).

In each round, the number of an error or warning is NaN if its condition does not hold. The loop
keeps the first number of each record that is not NaN. After a chunk that has one, the host ends the
run with a ValueError, or warns.
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
"""Prefixes of the names of such records, which are not part of the history."""

_FIELD = re.compile(r"\{(:[^{}]*)?\}")


def first_outside(indices: jax.Array | np.ndarray, most: Any) -> jax.Array:
    """Returns the first index that is not in 0, ..., `most`, a float scalar; NaN if there is none.

    Args:
        indices: integers of any shape.
        most: the largest valid index, or an array of them.
    """
    numbers = jnp.asarray(indices).ravel()
    return first(jnp.where((numbers < 0) | (numbers > most), numbers.astype(float), jnp.nan))


def first(numbers: jax.Array) -> jax.Array:
    """Returns the first of the numbers `[k]` that is not NaN; NaN if there is none."""
    return numbers[jnp.argmax(~jnp.isnan(numbers))]


def choose_earlier(before: jax.Array, now: jax.Array) -> jax.Array:
    """Returns the number of the earlier round, or, if it is NaN, that of the later round."""
    return jnp.where(jnp.isnan(before), now.astype(before.dtype), before)


def is_kept(name: str) -> bool:
    """Whether records of this name are numbers of errors or warnings."""
    return name.startswith((REFUSED, WARNED))


def first_message(records: Mapping[str, np.ndarray], kind: str) -> str:
    """Returns the message of the first error or warning in the records; "" if there is none.

    Args:
        records: records by name.
        kind: `REFUSED` or `WARNED`.
    """
    for name, values in records.items():
        if name.startswith(kind) and (wrong := np.asarray(values)[~np.isnan(values)]).size:
            number = float(wrong.flat[0])
            return _FIELD.sub(partial(_format_number, number), name.removeprefix(kind), count=1)
    return ""


def _format_number(number: float, field: re.Match[str]) -> str:
    return format(int(number) if number.is_integer() else number, (field[1] or ":")[1:])
