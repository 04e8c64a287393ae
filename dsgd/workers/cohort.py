"""The cohort: the workers that have rows in a round, if these are not all N.

The engine sets it while a round is traced in which a fixed number of workers can participate. The
block of a device then has the rows of some of the cohort's workers, in place of n = N / D workers
with consecutive numbers. Functions of `dsgd.workers` follow it: ids and keys are those of the
cohort's workers, and arrays `[N, ...]` are read at these ids. It has no effect on methods.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import jax


class Cohort(NamedTuple):
    """The workers that have rows, the same on every device.

    Args:
        ids: their numbers, int32 `[c]`, all different; D divides c.
        workers: N.
    """

    ids: jax.Array
    workers: int


_current: ContextVar[Cohort | None] = ContextVar("cohort", default=None)
_alone: ContextVar[bool] = ContextVar("alone", default=False)
# The traced program closes over the ids, so JAX's caches of traced functions must not reuse it in
# another round.
_traced = jax.make_user_context(None)


def cohort() -> Cohort | None:
    """Returns the cohort of the round that is being traced; None: all workers have rows."""
    return _current.get()


def is_alone() -> bool:
    """Whether each device computes the same from the data of all workers."""
    return _alone.get()


@contextmanager
def with_cohort(by: Cohort | None) -> Iterator[None]:
    """Context in which functions are traced with the given cohort; None: with all workers."""
    before = _current.set(by)
    try:
        with _traced(None if by is None else object()):
            yield
    finally:
        _current.reset(before)


@contextmanager
def on_each_device(alone: bool = True) -> Iterator[None]:
    """Context in which every device computes the same from rows of all N workers that it holds, as
    if it were the only one.

    Args:
        alone: False: the context changes nothing.
    """
    before = _alone.set(alone or _alone.get())
    try:
        with _traced(object() if alone else None):
            yield
    finally:
        _alone.reset(before)
