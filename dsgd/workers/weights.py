"""The workers' weights in means over all of them: what `workers.mean` knows of the problem while a
method's members are traced.

The engine sets them for `round.weighted_mean`, `average` and `aggregate` and for a problem's
evaluation; elsewhere all workers have equal weights, and the programs are what they are without
this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax


class _Weights:
    """The numbers, of mean 1, and whether anything has asked for them."""

    def __init__(self, numbers: tuple[float, ...]) -> None:
        self.numbers = numbers
        self.read = False


_current: ContextVar[_Weights | None] = ContextVar("weights", default=None)
# What is traced meanwhile depends on the numbers: JAX's caches of traced functions must not use it
# with others.
_traced = jax.make_user_context(None)


def weights() -> tuple[float, ...] | None:
    """One number for each of the N workers, of mean 1; None: all weigh the same."""
    found = _current.get()
    if found is None:
        return None
    found.read = True
    return found.numbers


@contextmanager
def weighted(by: Sequence[float] | None) -> Iterator[Any]:
    """In here means over workers have these weights; None: equal ones."""
    now = None if by is None else _Weights(tuple(map(float, by)))
    before = _current.set(now)
    try:
        with _traced(now and now.numbers):
            yield now
    finally:
        _current.reset(before)
