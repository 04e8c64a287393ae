"""The communicator: the round as an update sees it, whose calls send data and record it."""

from __future__ import annotations

from typing import Any

import jax

from dsgd.base import Algorithm, Gradients, Round, State
from dsgd.communication.calls.all_workers import AllWorkerCalls
from dsgd.communication.calls.graph import GraphCalls
from dsgd.communication.calls.other import OtherCalls
from dsgd.communication.calls.periods import PeriodCalls
from dsgd.communication.calls.servers import ServerCalls
from dsgd.communication.record import Record

UPDATE = "dsgd.update"
"""Name scope of the operations of an update in a compiled program."""


class Communicator(AllWorkerCalls, GraphCalls, ServerCalls, PeriodCalls, OtherCalls):
    """A `Round` that can also send. Each call moves data between workers and records the bits that
    each worker sends and receives, the communication pattern (for the clock), and lost messages.

    Several calls in one update are consecutive exchanges; calls inside `with round.joint():` are
    one exchange. All leaves of a tree are sent in one message.

    Shapes: leaves `[n, ...]` have one row for each of the n workers of a device's block; leaves
    `[N, ...]` and `[...]` are the same on every device.
    """

    def _replace(self, **kwargs: Any) -> Communicator:  # pyright: ignore[reportIncompatibleMethodOverride] (keeps the record)
        return _make(Round._replace(self, **kwargs), self.record)


def communicate(
    method: Algorithm, state: State, gradients: Gradients, round: Round, key: jax.Array
) -> tuple[Any, Record]:
    """Runs one update. Returns the new state, whose step is one higher, and the record of what was
    sent.

    Args:
        method: an `Algorithm` with unwrapped members.
        state, gradients: arguments of its `update`.
        round: the present round.
        key: random key for the messages, the same for all workers.
    """
    record = Record(method.name, key, round.step)
    with jax.named_scope(UPDATE):
        after = method.update(state, gradients, _make(round, record))
    if isinstance(after, State):
        after = after._replace(step=state.step + 1, fixed=state.fixed)
    return after, record


def _make(round: Round, record: Record) -> Communicator:
    communicator = Communicator(*round)
    communicator.record = record
    return communicator
