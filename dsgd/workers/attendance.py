"""Participation in a round, and which messages arrive: what collectives know of the round in which
a method's update is traced.

The engine sets it. `sum`, `mean`, `mix`, `pull` and the bits that `dsgd.communication` counts are
then over the workers that participate, without a line in the methods. If it is not set, all workers
participate and all messages arrive, and nothing is added to the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import jax


class Attendance(NamedTuple):
    """Of one round, the same on every device.

    Args:
        present: who takes part, bool `[N]`.
        counted: those of them whose part of sums and means over all arrives, bool `[N]`.
        arrives: (i, j), workers' numbers of shapes that broadcast -> whether messages between the
            two arrive, in both directions; none does where one of them is away.
    """

    present: jax.Array
    counted: jax.Array
    arrives: Callable[[jax.Array, jax.Array], jax.Array]


_current: ContextVar[Attendance | None] = ContextVar("attendance", default=None)
# What is traced meanwhile closes over this round's arrays: JAX's caches of traced functions must
# not hand it to another round.
_traced = jax.make_user_context(None)


def attendance() -> Attendance | None:
    """Of the round that is being traced; None: everybody is there, and all arrives."""
    return _current.get()


@contextmanager
def attended(by: Attendance | None) -> Iterator[None]:
    """What is traced in here is in a round with these workers; None: with all."""
    before = _current.set(by)
    try:
        with _traced(None if by is None else object()):
            yield
    finally:
        _current.reset(before)
