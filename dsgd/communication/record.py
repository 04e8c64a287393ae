"""The record of a round: what a method's update sent, in which order, and what it wants in the
history. Methods never see it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from operator import add, or_
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import get_opaque_trace_state

from dsgd.base import Pattern, Period
from dsgd.communication import bits
from dsgd.communication.bits import Bits


class Sending(NamedTuple):
    """One exchange of a round.

    Args:
        call: the communicator's call, for people: "mix on ring(8)".
        pattern: how its messages flow, for the clock.
        bits: of each worker of the block.
        simulated: on several devices other collectives stand for the messages (one server, pairs of
            workers chosen in the loop): their traffic is not that of the messages.
        period: rounds from one such exchange to the next; a traced one if it is swept; 0: no fixed
            number.
        turns: exchanges after which a schedule of topologies repeats.
        turn: int32 scalar, the number of this exchange, of a schedule.
        now: bool scalar, whether it takes place in this round; None: in every round.
        size: bits of each worker's vector, of an all-reduce, whose pieces are rounded once for all
            that it carries; 0: of others.
    """

    call: str
    pattern: Pattern
    bits: Bits
    simulated: bool = False
    period: Period = 1
    turns: int = 1
    turn: Any = None
    now: jax.Array | None = None
    size: int = 0


class Statistics(NamedTuple):
    """A round's communication, and what the method wants recorded, as arrays.

    Args:
        bits: of all exchanges together.
        metrics: the method's own numbers by name, scalars or `[N]` (one for each worker), the same
            on every device.
        compute: seconds that each worker computed, `[N]`, the same on every device, if the method
            stops workers; None: as long as its gradient takes on the run's cluster.
        elapsed: seconds that this round took, of methods that are driven by events and keep their
            own time; None: as long as the run's cluster needs for it.
        refusals: by what is wrong, in words with {} for a number: that number, or NaN if nothing is
            wrong.
        warnings: likewise; the run goes on.
    """

    bits: Bits
    metrics: dict[str, jax.Array]
    compute: jax.Array | None
    elapsed: jax.Array | None
    refusals: dict[str, jax.Array]
    warnings: dict[str, jax.Array]


class Frame:
    """What is recorded in one trace: the update's own, or a branch that `Communicator.when` has
    opened.
    """

    def __init__(self, turn: jax.Array, period: Period) -> None:
        self.turn: Any = turn
        self.period: Period = period
        self.trace: Any = get_opaque_trace_state()
        self.sendings: list[Sending] = []
        # exchanges with servers that wait for the servers' messages
        self.answers: list[tuple[int, jax.Array]] = []
        self.numbers: dict[str, dict[str, jax.Array]] = {
            "metrics": {},
            "refusals": {},
            "warnings": {},
        }

    def arrays(self) -> Any:
        """All that is traced in it; numbers as floats, which are NaN where the branch is not taken.

        The turn of this frame was known before its branch was opened; that of a branch in it was
        not.
        """
        numbers = jax.tree.map(
            lambda number: number.astype(jnp.promote_types(number.dtype, jnp.float32)), self.numbers
        )
        return [
            (sending.bits, sending.now, None if sending.turn is self.turn else sending.turn)
            for sending in self.sendings
        ], numbers

    def enclosed(
        self, arrays: Any, now: jax.Array
    ) -> tuple[list[Sending], dict[str, dict[str, jax.Array]]]:
        """What the trace around it records, of the arrays that came out of the branch."""
        sent, numbers = arrays
        return [
            sending._replace(
                bits=bits,
                now=now if inner is None else inner,
                turn=self.turn if turn is None else turn,
            )
            for sending, (bits, inner, turn) in zip(self.sendings, sent, strict=True)
        ], numbers


class Record:
    """The record of one update while it is traced.

    Args:
        method: its name, for error messages.
        key: for the messages of this round.
        step: of the round.
    """

    def __init__(self, method: str, key: jax.Array, step: jax.Array) -> None:
        self.method: str = method
        self.weighs: bool = False  # whether a mean had the workers' weights
        self._key, self._keys = key, 0
        self._frames = [Frame(step, 1)]
        self._times: dict[str, jax.Array] = {}

    @property
    def frame(self) -> Frame:
        """Where calls are recorded now."""
        return self._frames[-1]

    def require_seen(self, call: str) -> None:
        """Raises a ValueError if the call is in a branch, a loop or a map that hides it from the
        record.
        """
        if get_opaque_trace_state() == self.frame.trace:
            return
        raise ValueError(
            f"{self.method}: round.{call} is called inside jax.lax.cond, scan, while_loop, vmap "
            "or jit of the update, where it cannot be"
            " recorded; call it outside, or use round.when(condition, send, x) for a message in "
            "some rounds only"
            " (round.every(period, send, x) for every few)"
        )

    def next_key(self) -> jax.Array:
        """A key of this round that no other call has."""
        self._keys += 1
        return self._key if self._keys == 1 else jax.random.fold_in(self._key, self._keys)

    def add(
        self, call: str, pattern: Pattern, sent: Bits, *, simulated: bool = False, turns: int = 1
    ) -> None:
        """Records an exchange."""
        frame = self.frame
        frame.sendings.append(
            Sending(call, pattern, sent, simulated, frame.period, turns, frame.turn)
        )

    def time(self, call: str, kind: str, seconds: jax.Array) -> None:
        """Records how long workers compute ("compute"), or the round takes ("elapsed")."""
        if self._times:
            raise ValueError(
                f"{self.method}: round.{call} gives the round's seconds, which another call has "
                "given; expected one such call: a method"
                " that stops workers or keeps its own time cannot contain another one"
            )
        if len(self._frames) > 1:
            raise ValueError(
                f"{self.method}: round.{call} gives seconds of some rounds only, in round.when; "
                "call it in every round"
            )
        self._times[kind] = seconds

    @contextmanager
    def inside(self, frame: Frame) -> Iterator[None]:
        """What is called in here is recorded in this frame."""
        self._frames.append(frame)
        try:
            yield
        finally:
            self._frames.pop()

    def add_reduced(
        self, call: str, pattern: Pattern, size: int, N: int, *, simulated: bool
    ) -> None:
        """Records an all-reduce of a vector of so many bits of each of N workers."""
        self.add(call, pattern, bits.all_reduced(size, N, pattern), simulated=simulated)
        self.frame.sendings[-1] = self.frame.sendings[-1]._replace(size=size)

    def enclose(self, frame: Frame, arrays: Any, now: jax.Array) -> None:
        """Records what a branch has sent, of the arrays that came out of it, here where it was
        opened.
        """
        sendings, numbers = frame.enclosed(arrays, now)
        self.frame.sendings += sendings
        for kind, named in numbers.items():
            self.frame.numbers[kind].update(named)

    @contextmanager
    def joined(self, N: int) -> Iterator[None]:
        """The exchanges in here are one: of one pattern, whose messages carry what all of them
        send.
        """
        frame = self.frame
        first = len(frame.sendings)
        yield
        if not (parts := frame.sendings[first:]):
            return
        names = {part.pattern.name for part in parts}
        if len(names) > 1:
            raise ValueError(
                f"{self.method}: round.joint joins {' and '.join(sorted(names))}; expected "
                "exchanges of one pattern"
            )
        if all(part.size and part.now is None for part in parts):
            size = sum(part.size for part in parts)
            sent = bits.all_reduced(size, N, parts[0].pattern)
        else:
            size, sent = 0, reduce(add, [part.bits for part in parts])
        call, simulated = (
            ", ".join(part.call for part in parts),
            any(part.simulated for part in parts),
        )
        always = [part for part in parts if part.now is None]
        whole = (
            always[0]
            if always
            else parts[0]._replace(now=reduce(or_, [part.now for part in parts]))
        )
        frame.sendings[first:] = [
            whole._replace(call=call, bits=sent, simulated=simulated, size=size)
        ]
        frame.answers = [(min(at, first), key) for at, key in frame.answers]

    def sendings(self) -> tuple[Sending, ...]:
        """All exchanges of the round, in order."""
        (frame,) = self._frames
        return tuple(frame.sendings)

    def statistics(self, N: int) -> Statistics:
        """What the engine puts into the history, of N workers."""
        (frame,) = self._frames
        numbers, times = frame.numbers, self._times
        sent = [
            sending.bits if sending.now is None else _only_if(sending.now, sending.bits)
            for sending in frame.sendings
        ]
        return Statistics(
            reduce(add, sent) if sent else bits.none(N),
            numbers["metrics"],
            times.get("compute"),
            times.get("elapsed"),
            numbers["refusals"],
            numbers["warnings"],
        )


def _only_if(now: jax.Array, sent: Bits) -> Bits:
    return jax.tree.map(lambda numbers: jnp.where(now, numbers, jnp.uint32(0)), sent)
