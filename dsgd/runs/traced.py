"""Finds the numbers of a grid that a function uses as Python values, for an error message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

Function = Callable[[dict[str, jax.Array]], Any]


def require_arithmetic(
    where: str,
    function: Callable[..., Any],
    grid: Mapping[str, np.ndarray],
    trace: Callable[[Function, dict[str, np.ndarray]], Any],
    error: Exception,
) -> None:
    """Raises ValueError for a number of the grid that alone prevents a program from being traced.

    There is none if the program cannot be traced even without traced numbers.

    Args:
        where: the caller, for the message.
        function: the function of the numbers by keyword.
        grid: the values of each.
        trace: traces the program with a function of the traced numbers, and their values `[points]`
            by name; {}: none is traced.
        error: the error with which the program failed.
    """
    # Errors of our own argument checks say whether the value is traced.
    if not (isinstance(error, TypeError) or "traced" in str(error)):
        return
    first = {name: values[0].item() for name, values in grid.items()}

    def traces(*names: str) -> bool:
        others = {name: value for name, value in first.items() if name not in names}
        try:
            trace(
                lambda point: partial(function, **others)(**point),
                {name: grid[name] for name in names},
            )
        except (TypeError, ValueError):
            return False
        return True

    if not traces():
        return
    for name in grid:
        if not traces(name):
            raise ValueError(
                f"{where}: {name} is used as a Python value (in an if, a loop, an index or a "
                "shape), but all values of a grid are traced in one program; expected arithmetic "
                f"on {name}; replace an if by jnp.where, or call {where} for each value of {name}"
            ) from error
