r"""The survey's logical switch, event by event (section 1.3).

Each worker has a port that sends and one that receives, one message at a time each, both at once. A
message of the size s (1 is a full vector) takes a latency l, the same for all, and a transfer of s
r seconds, where r is that of the slower of its two ports. Conventions:

- `blocking`: it holds both ports from its start until it has arrived, for l + s r.
- `pipelined`: latency holds no port. It leaves during the first s r seconds of its journey, and
  arrives during the last.

A message is ready when all that it comes `after` have arrived, and its sender has then computed for
`compute` seconds. Ports take what is ready: the message that can start first; of several, the one
that was ready first; of those, the first in the list. So equal lists have equal timelines. All
arithmetic is that of the numbers given: with `fractions.Fraction` it is exact.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from dsgd import checks

Number = Any  # int, float or fractions.Fraction
Convention = Literal["blocking", "pipelined"]
"""Whether a message holds both ports for latency and transfer, or for the transfer alone."""
CONVENTIONS = ("blocking", "pipelined")
_Port = tuple[str, int]  # "out" or "in", and whose


class Message(NamedTuple):
    """What one worker sends another.

    Args:
        sender: its number, from 0.
        receiver: another one's.
        size: 1 is a full vector.
        after: places in the list of the messages that must have arrived before.
        compute: seconds that the sender computes between their arrival and its sending.
        ready: seconds before which it is not sent, nor computed for.
        label: for pictures.
    """

    sender: int
    receiver: int
    size: Number = 1
    after: tuple[int, ...] = ()
    compute: Number = 0
    ready: Number = 0
    label: str = ""


class Passage(NamedTuple):
    """When a message went through the switch, in seconds.

    Args:
        message: which.
        computing: when its sender began to compute for it.
        ready: when it could be sent; it waits for ports from then on.
        start: when it began to leave.
        transfer: how long it takes besides the latency.
        arrived: when all of it was there.
        sent: when its sender's port was free again.
        receiving: when it began to hold its receiver's port.
    """

    message: Message
    computing: Number
    ready: Number
    start: Number
    transfer: Number
    arrived: Number
    sent: Number
    receiving: Number


class Timeline(NamedTuple):
    """What `simulate` gives: one passage for each message, in the list's order."""

    passages: tuple[Passage, ...]

    @property
    def seconds(self) -> Number:
        """When the last message has arrived; 0 if there is none."""
        return max((passage.arrived for passage in self.passages), default=0)

    @property
    def start(self) -> Number:
        """When the first message starts; 0 if there is none."""
        return min((passage.start for passage in self.passages), default=0)


@checks.arguments
def simulate(
    messages: Iterable[Message],
    latency: Number,
    transfer: Number | Sequence[Number],
    convention: Convention = "blocking",
    *,
    receive: Sequence[Number] | None = None,
) -> Timeline:
    """Sends the messages through the switch.

    Args:
        messages: in any order; `after` are places in it.
        latency: seconds.
        transfer: seconds that a full vector needs on a port; of every worker, if they differ.
        convention: "blocking" or "pipelined".
        receive: the same of receiving ports, where they differ from the sending ones; None: they do
            not.

    Returns:
        When each message went. Deterministic: ties are decided as above.

    Raises:
        ValueError: times or sizes that are negative, infinite or NaN; a message to or from nobody,
            or to oneself; one that comes after a message that is not there, or after itself by a
            chain of others; an unknown convention.

    Source: Liu and Zhang, section 1.3.1.
    """
    messages = list(messages)
    check_convention(convention)
    need_seconds("simulate: latency", latency)
    sending, receiving = (
        _ports("transfer", transfer),
        _ports("receive", transfer if receive is None else receive),
    )
    for i, message in enumerate(messages):
        _check(i, message, len(messages), sending, receiving)
    _check_order(messages)
    takes = [
        message.size * max(_of(sending, message.sender), _of(receiving, message.receiver))
        for message in messages
    ]
    return _Switch(messages, latency, takes, overlap=convention == "pipelined").run()


class _Switch:
    """The ports, the messages that are ready, and those that have passed.

    A message that could start is in `heap`. One that is not, because a port is taken, waits in
    `queues` of that port, of which only the first is in the heap: so that a long queue does not
    move on with every message.
    """

    def __init__(
        self, messages: list[Message], latency: Number, takes: list[Number], *, overlap: bool
    ) -> None:
        self.messages = messages
        self.latency = latency
        self.takes = takes
        self.overlap = overlap  # latency holds no port
        self.free: dict[_Port, Number] = {}  # when the next message through it may start
        self.queues: dict[_Port, list[tuple[Number, int]]] = {}
        self.first: dict[_Port, tuple[Number, int]] = {}  # of each queue, the one in the heap
        self.heap: list[tuple[Number, Number, int]] = []
        self.passages: dict[int, Passage] = {}
        self.missing = [len(set(message.after)) for message in messages]
        self.followers: list[list[int]] = [[] for _ in messages]
        for i, message in enumerate(messages):
            for j in set(message.after):
                self.followers[j].append(i)

    def run(self) -> Timeline:
        for i, missing in enumerate(self.missing):
            if not missing:
                self._offer(self._ready(i), i)
        while self.heap:
            start, ready, i = heapq.heappop(self.heap)
            earliest, taken = self._earliest(ready, i)
            ports = self._ports_of(i)
            for port in ports:
                if self.first.get(port) == (ready, i):
                    del self.first[port]
            if taken and earliest > start:
                self._wait(taken, ready, i)
            else:
                self._send(i, ready, start)
            for port in ports:
                self._advance(port)
        return Timeline(tuple(self.passages[i] for i in range(len(self.messages))))

    def _ready(self, i: int) -> Number:
        return self._computing(i) + self.messages[i].compute

    def _computing(self, i: int) -> Number:
        return max(
            [self.messages[i].ready, *(self.passages[j].arrived for j in self.messages[i].after)]
        )

    def _ports_of(self, i: int) -> tuple[_Port, _Port]:
        return ("out", self.messages[i].sender), ("in", self.messages[i].receiver)

    def _earliest(self, ready: Number, i: int) -> tuple[Number, _Port | None]:
        """When it can start, and the port that it has to wait for."""
        out, into = self._ports_of(i)
        when = [(ready, None), (self.free.get(out, ready), out), (self.free.get(into, ready), into)]
        return max(when, key=lambda pair: pair[0])

    def _offer(self, ready: Number, i: int) -> None:
        heapq.heappush(self.heap, (self._earliest(ready, i)[0], ready, i))

    def _send(self, i: int, ready: Number, start: Number) -> None:
        message, takes = self.messages[i], self.takes[i]
        arrived = start + self.latency + takes
        sent, receiving = (
            (start + takes, start + self.latency) if self.overlap else (arrived, start)
        )
        self.passages[i] = Passage(
            message, self._computing(i), ready, start, takes, arrived, sent, receiving
        )
        out, into = self._ports_of(i)
        # Where latency holds no port, the next message may start so much before it reaches the
        # receiver's port.
        self.free[out], self.free[into] = sent, start + takes if self.overlap else arrived
        for j in self.followers[i]:
            self.missing[j] -= 1
            if not self.missing[j]:
                self._offer(self._ready(j), j)

    def _wait(self, port: _Port, ready: Number, i: int) -> None:
        heapq.heappush(self.queues.setdefault(port, []), (ready, i))

    def _advance(self, port: _Port) -> None:
        """Puts the first of a port's queue into the heap, if it has to wait for no other port; else
        it joins that one's queue.
        """
        queue = self.queues.get(port, [])
        while queue and (port not in self.first or queue[0] < self.first[port]):
            ready, i = heapq.heappop(queue)
            later = self._earliest(ready, i)[1]
            if later in (None, port):
                self.first[port] = (ready, i)
                self._offer(ready, i)
            else:
                self._wait(later, ready, i)
                self._advance(later)


def check_convention(convention: str) -> None:
    """Raises a ValueError where it is unknown."""
    if convention not in CONVENTIONS:
        raise ValueError(f"unknown convention {convention!r}: need 'blocking' or 'pipelined'")


def need_seconds(what: str, value: Number) -> None:
    """Raises a ValueError where the value is negative, infinite or NaN."""
    if not checks.is_number(value) or not 0 <= value < math.inf:
        raise ValueError(f"{what} = {checks.shown(value)}: need seconds >= 0, finite")


def _ports(what: str, values: Number | Sequence[Number]) -> Number | list[Number]:
    if isinstance(values, str | bytes) or (
        not isinstance(values, Sequence) and not getattr(values, "shape", ())
    ):
        need_seconds(f"simulate: {what}", values)
        return values
    if not len(values):
        raise ValueError(f"simulate: {what} of no worker: need seconds of each")
    for worker, value in enumerate(values):
        need_seconds(f"simulate: {what} of worker {worker}", value)
    return list(values)


def _of(ports: Number | list[Number], worker: int) -> Number:
    return ports[worker] if isinstance(ports, list) else ports


def _check(i: int, message: Message, count: int, *ports: Number | list[Number]) -> None:
    known = min((len(list_) for list_ in ports if isinstance(list_, list)), default=math.inf)
    if not isinstance(message, Message):
        raise ValueError(
            f"simulate: messages[{i}] = {checks.shown(message)}: need a network.Message"
        )
    for end, worker in (("from", message.sender), ("to", message.receiver)):
        if not checks.is_integer(worker) or not 0 <= worker < known:
            raise ValueError(
                f"message {i} is {end} worker {worker}: need one of 0 to {known - 1}"
                if known < math.inf
                else f"message {i} is {end} worker {worker}: need a number from 0"
            )
    if message.sender == message.receiver:
        raise ValueError(
            f"message {i} is from worker {message.sender} to itself: need another receiver"
        )
    for what in ("compute", "ready"):
        need_seconds(f"message {i}: {what}", getattr(message, what))
    if not checks.is_number(message.size) or not 0 <= message.size < math.inf:
        raise ValueError(
            f"message {i}: size = {message.size}: need a part of a vector >= 0, finite"
        )
    for j in message.after:
        if not 0 <= j < count:
            raise ValueError(f"message {i} comes after message {j}: need one of 0 to {count - 1}")


def _check_order(messages: list[Message]) -> None:
    """Raises a ValueError that names a cycle, if there is one."""
    done: set[int] = set()
    for root in range(len(messages)):
        # the messages that the last of them waits for, and who else they wait for
        path: dict[int, Any] = {}
        if root not in done:
            path[root] = iter(messages[root].after)
        while path:
            last = next(reversed(path))
            following = next(path[last], None)
            if following is None:
                done.add(last)
                del path[last]
            elif following in path:
                cycle = [*list(path)[list(path).index(following) :], following]
                raise ValueError(
                    f"messages {' after '.join(map(str, cycle))}: need an order, there is none in "
                    "a cycle"
                )
            elif following not in done:
                path[following] = iter(messages[following].after)
