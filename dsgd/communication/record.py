"""The record of a round: what a method's update sent and in which order, and the numbers that it
logs. Methods do not access it directly.
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

from dsgd import modes, sameness
from dsgd.base import Pattern, Period
from dsgd.communication.bits import Arrays, Bits, none
from dsgd.communication.transports import Transport
from dsgd.network import AllReduce

_ONE_ARRAY = Arrays()
_OF_TWO = 0.5  # share of a message, and of its reply, in their mean


class Sending(NamedTuple):
    """One exchange of a round.

    Args:
        call: description of the communicator's call, such as "mix on ring(8)".
        transport: how the messages move.
        bits: bits of each worker of the block.
        period: rounds from one such exchange to the next; a traced integer if the period is swept;
            0 if the number of rounds is not fixed.
        turn: number of this exchange in the schedule, int32 scalar.
        now: whether the exchange takes place in this round, bool scalar; None: in every round.
        size: bits of each worker's vector if it is not compressed, kept so that joined all-reduces
            are rounded once; 0 for other exchanges.
        delay: number of rounds that the workers go on with before they need the messages; 0: they
            wait for the messages in this round.
        arrays: number of arrays of one message, from its structure; in an exchange with replies,
            the mean of a message and its reply. 1 if the method counts its bits itself.
        array_bits: bits of these arrays; with N servers, of the N shards together.
    """

    call: str
    transport: Transport
    bits: Bits
    period: Period = 1
    turn: Any = None
    now: jax.Array | None = None
    size: int = 0
    delay: Period = 0
    arrays: float = 1
    array_bits: float = 0

    @property
    def pattern(self) -> Pattern:
        """How the messages flow, for the clock."""
        return self.transport.pattern

    @property
    def simulated(self) -> bool:
        """Whether the traffic between devices differs from that of the messages."""
        return self.transport.simulated

    @property
    def turns(self) -> int:
        """Number of exchanges after which a schedule of topologies repeats."""
        return self.transport.topology.period if self.transport.topology else 1

    @property
    def waits(self) -> bool:
        """Whether the workers wait for the messages in the round that sends them."""
        return isinstance(self.delay, int) and self.delay == 0


class Statistics(NamedTuple):
    """Communication statistics of a round, and the numbers that the method logs, as arrays.

    Args:
        bits: total over all exchanges.
        metrics: numbers logged by the method, by name: scalars or `[N]` (one per worker), the same
            on every device.
        compute: seconds that each worker computed, `[N]`, the same on every device, if the method
            stops workers early; None: the time that the gradient takes on the run's cluster.
        elapsed: seconds that this round took, if the method is event-driven and keeps its own time;
            None: the time that the run's cluster needs for the round.
        refusals: for each error message (with {} for a number), that number, or NaN if the
            condition does not hold. A number that is not NaN ends the run.
        warnings: as `refusals`, but the run continues with a warning.
        up_by_exchange: bits that each worker sends in each exchange, in order; 0 for exchanges that
            do not take place in this round.
    """

    bits: Bits
    metrics: dict[str, jax.Array]
    compute: jax.Array | None
    elapsed: jax.Array | None
    refusals: dict[str, jax.Array]
    warnings: dict[str, jax.Array]
    up_by_exchange: list[jax.Array]


class Frame:
    """Exchanges and numbers recorded in one trace: that of the update, or that of a branch which
    `Communicator.when` opens.
    """

    def __init__(self, turn: jax.Array, period: Period) -> None:
        self.turn: Any = turn
        self.period: Period = period
        self.trace: Any = get_opaque_trace_state()
        self.sendings: list[Sending] = []
        # Places of the exchanges to which servers have not yet replied, and keys of the replies.
        self.requests: list[tuple[int, jax.Array]] = []
        self.numbers: dict[str, dict[str, jax.Array]] = {
            "metrics": {},
            "refusals": {},
            "warnings": {},
        }

    def arrays(self) -> Any:
        """Returns all traced arrays of the frame, for the branch to return. Numbers are cast to
        floating point, so that they can be NaN when the branch is not taken.

        The frame's own turn is known outside the branch and is left out; the turn of a branch
        opened inside it is not known there and is included.
        """
        numbers = jax.tree.map(
            lambda number: number.astype(modes.wide_type(number.dtype)), self.numbers
        )
        return [
            (sending.bits, sending.now, None if sending.turn is self.turn else sending.turn)
            for sending in self.sendings
        ], numbers

    def enclose(
        self, arrays: Any, now: jax.Array
    ) -> tuple[list[Sending], dict[str, dict[str, jax.Array]]]:
        """Returns the exchanges and numbers for the enclosing trace, from the branch's outputs."""
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
        method: name of the method, for error messages.
        key: random key for the messages of this round.
        step: number of the round.
    """

    def __init__(self, method: str, key: jax.Array, step: jax.Array) -> None:
        self.method: str = method
        self.weighs: bool = False  # whether a mean was weighted by the workers' weights
        self.proximal: bool = False  # whether the regularizer's proximal step was applied
        self._key, self._keys = key, 0
        self._frames = [Frame(step, 1)]
        self._times: dict[str, jax.Array] = {}

    @property
    def frame(self) -> Frame:
        """The frame in which calls are currently recorded."""
        return self._frames[-1]

    def require_seen(self, call: str) -> None:
        """Raises ValueError if the call is inside a branch, loop or map, where the record would not
        see it.
        """
        if get_opaque_trace_state() == self.frame.trace:
            return
        raise ValueError(
            f"{self.method}: round.{call} is called inside jax.lax.cond, scan, while_loop, vmap "
            "or jit of the update, where it cannot be recorded; expected a call outside of them. "
            "To send a message in some rounds only, use round.when(condition, send, x); in every "
            "few rounds, round.every(period, send, x)"
        )

    def next_key(self) -> jax.Array:
        """Returns a random key of this round that no other call receives."""
        self._keys += 1
        return self._key if self._keys == 1 else jax.random.fold_in(self._key, self._keys)

    def add(
        self,
        call: str,
        transport: Transport,
        sent: Bits,
        *,
        size: int = 0,
        arrays: Arrays = _ONE_ARRAY,
        reply_key: jax.Array | None = None,
    ) -> None:
        """Records an exchange in the current frame.

        Args:
            call, transport, size: as in `Sending`.
            sent: its bits.
            arrays: the arrays of one message, if the call knows them.
            reply_key: random key of the reply; None: there is no reply.
        """
        frame = self.frame
        if reply_key is not None:
            frame.requests.append((len(frame.sendings), reply_key))
            arrays = arrays.times(_OF_TWO)
        sending = Sending(call, transport, sent, frame.period, frame.turn, size=size)
        frame.sendings.append(sending._replace(arrays=arrays.number, array_bits=arrays.bits))

    def next_request(self, reply: str, request: str, kind: type[Pattern]) -> tuple[int, jax.Array]:
        """Returns the place in the frame of the last request without a reply, and the key of the
        reply.

        Args:
            reply, request: names of the two calls, for the error message.
            kind: the kind of pattern that carries the request.

        Raises:
            ValueError: if there is no such request.
        """
        frame = self.frame
        if not (frame.requests and isinstance(frame.sendings[frame.requests[-1][0]].pattern, kind)):
            raise ValueError(
                f"{self.method}: round.{reply} is called without a preceding round.{request} to "
                f"reply to; expected round.{request} before it in the same round"
            )
        return frame.requests.pop()

    def add_reply(self, place: int, call: str, sent: Bits, arrays: Arrays) -> None:
        """Records a reply as a part of the exchange of its request."""
        request, share = self.frame.sendings[place], arrays.times(_OF_TWO)
        self.frame.sendings[place] = request._replace(
            call=f"{request.call}, {call}",
            bits=request.bits + sent,
            arrays=request.arrays + share.number,
            array_bits=request.array_bits + share.bits,
        )

    def time(self, call: str, kind: str, seconds: jax.Array) -> None:
        """Records the seconds that workers compute (kind "compute") or that the round takes
        ("elapsed").
        """
        if self._times:
            raise ValueError(
                f"{self.method}: round.{call} sets the seconds of the round, which another call "
                "has already set; expected one such call in a round. A method that stops workers "
                "or keeps its own time cannot be combined with another such method"
            )
        if len(self._frames) > 1:
            raise ValueError(
                f"{self.method}: round.{call} is called inside round.when, and so sets the seconds "
                "of some rounds only; expected a call in every round"
            )
        self._times[kind] = seconds

    @contextmanager
    def inside(self, frame: Frame) -> Iterator[None]:
        """Context in which calls are recorded in the given frame."""
        self._frames.append(frame)
        try:
            yield
        finally:
            self._frames.pop()

    def enclose(self, frame: Frame, arrays: Any, now: jax.Array) -> None:
        """Records in the current frame what a branch has sent, from the branch's outputs."""
        sendings, numbers = frame.enclose(arrays, now)
        self.frame.sendings += sendings
        for kind, named in numbers.items():
            self.frame.numbers[kind].update(named)

    @contextmanager
    def delay(self, rounds: Period) -> Iterator[None]:
        """Context whose exchanges are recorded with this delay."""
        first = len(self.frame.sendings)
        yield
        self.frame.sendings[first:] = [
            sending._replace(delay=rounds) for sending in self.frame.sendings[first:]
        ]

    @contextmanager
    def join(self) -> Iterator[None]:
        """Context whose exchanges are recorded as one exchange. They must have the same pattern;
        the messages of the joint exchange carry the data of all of them.
        """
        frame = self.frame
        first = len(frame.sendings)
        yield
        if not (parts := frame.sendings[first:]):
            return
        if not all(_have_same_links(parts[0], part) for part in parts):
            names = {part.pattern.name for part in parts}
            raise ValueError(
                f"{self.method}: round.joint contains exchanges of different patterns, "
                f"{' and '.join(sorted(names))}; expected exchanges of one pattern"
            )
        always = [part for part in parts if part.now is None]
        joint = always[0] if always else _either(parts)
        transport, size = joint.transport, 0
        if len(always) == len(parts) and all(
            part.size and isinstance(part.pattern, AllReduce) for part in parts
        ):
            size = sum(part.size for part in parts)
            sent = transport.bits(size, size)
        else:
            sent = reduce(add, [part.bits for part in parts])
        simulated = any(part.simulated for part in parts)
        frame.sendings[first:] = [
            joint._replace(
                call=", ".join(part.call for part in parts),
                transport=transport._replace(simulated=simulated),
                bits=sent,
                size=size,
                arrays=sum(part.arrays for part in parts),
                array_bits=sum(part.array_bits for part in parts),
            )
        ]
        frame.requests = [(min(place, first), key) for place, key in frame.requests]

    def sendings(self) -> tuple[Sending, ...]:
        """Returns all exchanges of the round, in order."""
        (frame,) = self._frames
        return tuple(frame.sendings)

    def count_exchanges(self) -> jax.Array:
        """Returns how many exchanges take place in the round, uint32."""
        taking_place = [sending.now for sending in self.sendings() if sending.now is not None]
        always = jnp.uint32(len(self.sendings()) - len(taking_place))
        return sum((now.astype(jnp.uint32) for now in taking_place), always)

    def statistics(self, N: int) -> Statistics:
        """Returns the statistics of the round for the history; N is the number of workers."""
        (frame,) = self._frames
        numbers, times = frame.numbers, self._times
        sent = [
            sending.bits if sending.now is None else _only_if(sending.now, sending.bits)
            for sending in frame.sendings
        ]
        return Statistics(
            reduce(add, sent) if sent else none(N),
            numbers["metrics"],
            times.get("compute"),
            times.get("elapsed"),
            numbers["refusals"],
            numbers["warnings"],
            [bits.up for bits in sent],
        )


def _have_same_links(one: Sending, other: Sending) -> bool:
    """Whether two exchanges send messages between the same workers."""
    graph, other_graph = one.transport.topology, other.transport.topology
    if graph and other_graph:
        return graph.same_links(other_graph)
    return one.pattern.name == other.pattern.name


def _either(parts: list[Sending]) -> Sending:
    """Returns the first of several exchanges of some rounds, for the rounds in which any of them
    takes place; the number of rounds between these is fixed if all have the same period.
    """
    first, now = parts[0], reduce(or_, [part.now for part in parts])
    fixed = all(sameness.same(first.period, part.period) for part in parts)
    return first._replace(now=now, period=first.period if fixed else 0)


def _only_if(now: jax.Array, sent: Bits) -> Bits:
    return jax.tree.map(lambda numbers: jnp.where(now, numbers, jnp.uint32(0)), sent)
