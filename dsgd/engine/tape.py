"""The tape of a run: what the clock reads of each round that does not depend on the cluster. With
it, `dsgd.replay` computes the seconds of the same rounds on other clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from dsgd import modes, workers
from dsgd.base import Pattern, Period
from dsgd.communication import Sending
from dsgd.engine import queries
from dsgd.engine.queries import AllAsked, Asked
from dsgd.wire import counts

_ARRAYS = (jax.Array, jax.ShapeDtypeStruct)
_NAME = "tape "  # of the series in the records of a run


class Transfer(NamedTuple):
    """One exchange of a round, as the clock sees it.

    Args:
        pattern: how the messages flow.
        up: bits that each worker's sending port carries, float32 `[N]`.
        down: the same for receiving ports; lost messages occupy them, too.
        turn, now, delay, arrays, array_bits: as in `communication.Sending`.
    """

    pattern: Pattern
    up: jax.Array
    down: jax.Array
    turn: Any = None
    now: jax.Array | None = None
    delay: Period = 0
    arrays: float = 1
    array_bits: float = 0

    @property
    def waits(self) -> bool:
        """Whether the workers wait for the messages in the round that sends them."""
        return isinstance(self.delay, int) and self.delay == 0


ClockInputs = tuple[AllAsked, list[Transfer]]
"""What the clock reads of a round: its queries and exchanges."""


def transfers(sendings: Sequence[Sending]) -> list[Transfer]:
    """Returns the exchanges of a round with the bits of all workers."""

    def transfer(sending: Sending) -> Transfer:
        up, down, lost = workers.gather(
            tuple(None if bits is None else counts.to_float(bits) for bits in sending.bits[:3])
        )
        carried = down if lost is None else down + lost
        names = ("turn", "now", "delay", "arrays", "array_bits")
        options = {name: getattr(sending, name) for name in names}
        return Transfer(sending.pattern, up, carried, **options)

    return [transfer(sending) for sending in sendings]


def series(inputs: ClockInputs) -> dict[str, jax.Array]:
    """Returns the traced arrays of a round as floating-point series of the history."""
    arrays = [leaf for leaf in _leaves(inputs) if isinstance(leaf, jax.Array)]
    return {
        f"{_NAME}{i}": leaf.astype(modes.wide_type(leaf.dtype)) for i, leaf in enumerate(arrays)
    }


def is_series(name: str) -> bool:
    """Returns whether a series of the records belongs to the tape."""
    return name.startswith(_NAME)


def reader(inputs: ClockInputs) -> Callable[[dict[str, jax.Array]], ClockInputs]:
    """Returns the inverse of `series`: the function from the series of a round to what the clock
    reads.

    Args:
        inputs: those of any round of the same method; shapes and types of arrays suffice.
    """
    leaves, structure = _leaves(inputs), jax.tree.structure(_strip(inputs))
    types = [leaf.dtype if isinstance(leaf, _ARRAYS) else None for leaf in leaves]

    def read(series: dict[str, jax.Array]) -> ClockInputs:
        numbers = iter(series[f"{_NAME}{i}"] for i in range(len(series)))
        return structure.unflatten(
            leaf if dtype is None else next(numbers).astype(dtype)
            for leaf, dtype in zip(leaves, types, strict=True)
        )

    return read


def _leaves(inputs: ClockInputs) -> list[Any]:
    return jax.tree.leaves(_strip(inputs))


def _strip(inputs: ClockInputs) -> ClockInputs:
    """Returns the round without what the clock does not read: the models, and which samples are
    drawn.
    """

    def strip_query(query: Asked) -> Asked:
        work = query.work
        if work is not None:
            weights = np.zeros(work.samples.shape, np.float32)
            work = work._replace(weights=weights, first_batch=None)
        return query._replace(params=(), first_batch=None, work=work, active=None, samples=None)

    asked, exchanges = inputs
    return queries.map_each(strip_query, asked), exchanges
