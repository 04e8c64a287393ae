"""Participation in a round, and delivery of messages, as collectives see them while a method's
update is traced.

The engine sets them. `sum`, `mean`, `mix`, `laplacian` and the bits counted by `dsgd.communication`
are then restricted to workers that participate, without any code in the methods. If they are not
set, all workers participate and all messages arrive, and nothing is added to the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import jax


class Participation(NamedTuple):
    """Participation and delivery in one round, the same on every device.

    Args:
        present: which workers participate, bool `[N]`.
        counted: which of them have a contribution to sums and means that arrives, bool `[N]`.
        arrives: (i, j), arrays of workers' numbers whose shapes broadcast -> whether messages
            between i and j arrive, in both directions; False if one of the two does not
            participate.
        inclusion: probability with which a worker is `counted`, one number or one for each worker;
            None: unknown.
        name: what determines participation and delivery, for error messages.
    """

    present: jax.Array
    counted: jax.Array
    arrives: Callable[[jax.Array, jax.Array], jax.Array]
    inclusion: tuple[float, ...] | float | None = None
    name: str = ""


_current: ContextVar[Participation | None] = ContextVar("participation", default=None)
# The traced program closes over this round's arrays, so JAX's caches of traced functions must not
# reuse it in another round.
_traced = jax.make_user_context(None)


def participation() -> Participation | None:
    """Returns participation and delivery in the round that is being traced; None: all workers
    participate and all messages arrive.
    """
    return _current.get()


@contextmanager
def with_participation(by: Participation | None) -> Iterator[None]:
    """Context in which functions are traced with the given participation and delivery; None: with
    all workers and messages.
    """
    before = _current.set(by)
    try:
        with _traced(None if by is None else object()):
            yield
    finally:
        _current.reset(before)
