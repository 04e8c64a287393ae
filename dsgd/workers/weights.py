"""The problem's worker weights, as means over workers see them while a method's functions are
traced.

The engine sets them for `round.weighted_mean`, `average` and `aggregate` and for the evaluation of
a problem. Otherwise all workers have equal weights, and programs do not depend on this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax


class _Weights:
    """The weights, which have mean 1, and whether a function has read them."""

    def __init__(self, numbers: tuple[float, ...]) -> None:
        self.numbers = numbers
        self.read = False


_current: ContextVar[_Weights | None] = ContextVar("weights", default=None)
# The traced program depends on the weights, so JAX's caches of traced functions must not reuse it
# with other weights.
_traced = jax.make_user_context(None)


def weights() -> tuple[float, ...] | None:
    """Returns the weights of the N workers, which have mean 1; None: all weights are equal."""
    current = _current.get()
    if current is None:
        return None
    current.read = True
    return current.numbers


@contextmanager
def with_weights(by: Sequence[float] | None) -> Iterator[Any]:
    """Context in which means over workers have the given weights; None: equal weights."""
    current = None if by is None else _Weights(tuple(map(float, by)))
    before = _current.set(current)
    try:
        with _traced(current and current.numbers):
            yield current
    finally:
        _current.reset(before)
