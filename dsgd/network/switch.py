r"""Event simulation of the survey's logical switch (section 1.3).

Each worker has a port that sends and one that receives; each handles one message at a time, and
both may be busy at once. A message of size s (1 is a full vector) has a latency l, that of its two
ports, and a transfer time of s r seconds, where r is that of the slower of its two ports. There
are two conventions:

- `blocking`: a message occupies both ports from its start until it has arrived, for l + s r.
- `pipelined`: the latency occupies no port. A message leaves during the first s r seconds of its
  journey, and arrives during the last s r seconds.

A message is ready when all messages that it comes `after` have arrived and its sender has then
computed for `compute` seconds. The message that can start first starts first; ties are broken by
the time at which messages became ready, then by their order in the list. So equal lists have equal
timelines. Arithmetic is that of the given numbers: with `fractions.Fraction` it is exact.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from dsgd import checks

Number = Any  # int, float or fractions.Fraction
Convention = Literal["blocking", "pipelined"]
"""Whether a message occupies both ports for latency and transfer, or for the transfer alone."""
CONVENTIONS = ("blocking", "pipelined")
_Port = tuple[str, int]  # "out" or "in", and the worker's number


class Message(NamedTuple):
    """A message from one worker to another.

    Args:
        sender: number of the sending worker, from 0.
        receiver: number of the receiving worker, different from the sender's.
        size: size in full vectors.
        after: positions in the list of the messages that must have arrived before.
        compute: seconds that the sender computes after their arrival and before it sends.
        ready: time in seconds before which the sender neither computes for the message nor sends
            it.
        label: text for figures.
    """

    sender: int
    receiver: int
    size: Number = 1
    after: tuple[int, ...] = ()
    compute: Number = 0
    ready: Number = 0
    label: str = ""


class Passage(NamedTuple):
    """Times at which a message passed through the switch, in seconds.

    Args:
        message: the message.
        computing: when its sender began to compute for it.
        ready: when it could be sent; from then on it waits for ports.
        start: when it began to leave.
        transfer: its transfer time, without the latency.
        arrived: when all of it had arrived.
        sent: when its sender's port was free again.
        receiving: when it began to occupy its receiver's port.
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
    """Result of `simulate`: one passage for each message, in the order of the list."""

    passages: tuple[Passage, ...]

    @property
    def seconds(self) -> Number:
        """When the last message has arrived; 0 if there are no messages."""
        return max((passage.arrived for passage in self.passages), default=0)

    @property
    def start(self) -> Number:
        """When the first message starts; 0 if there are no messages."""
        return min((passage.start for passage in self.passages), default=0)


@checks.arguments
def simulate(
    messages: Iterable[Message],
    latency: Number | Sequence[Number],
    transfer: Number | Sequence[Number],
    convention: Convention = "blocking",
    *,
    receive: Sequence[Number] | None = None,
) -> Timeline:
    """Simulates how messages pass through the switch.

    Args:
        messages: messages in any order; `after` refers to positions in it.
        latency: seconds per message: one number, or a list with one for each worker; the two ports
            of a message have the same.
        transfer: seconds that a full vector needs on a port: one number, or a list with one for
            each worker.
        convention: "blocking" or "pipelined".
        receive: as `transfer`, for receiving ports; None: the same as for sending ports.

    Returns:
        The times of each message. The result is deterministic; see above for ties.

    Raises:
        ValueError: if a time or size is negative, infinite or NaN; a sender or receiver is not a
            worker, both are the same, or their latencies differ; a message comes after one that
            does not exist, or, directly or indirectly, after itself; or the convention is unknown.

    Source: Liu and Zhang, section 1.3.1.
    """
    messages = list(messages)
    check_convention(convention)
    latencies, sending, receiving = (
        _ports("latency", latency),
        _ports("transfer", transfer),
        _ports("receive", transfer if receive is None else receive),
    )
    for i, message in enumerate(messages):
        _check(i, message, len(messages), sending, receiving, latencies)
        ends = _select(latencies, message.sender), _select(latencies, message.receiver)
        if ends[0] != ends[1]:
            raise ValueError(
                f"simulate: message {i} is between ports with latencies {ends[0]} and {ends[1]}; "
                "expected equal latencies"
            )
    _check_order(messages)
    takes = [
        message.size * max(_select(sending, message.sender), _select(receiving, message.receiver))
        for message in messages
    ]
    each = [_select(latencies, message.sender) for message in messages]
    return _Switch(messages, each, takes, overlap=convention == "pipelined").run()


class _Switch:
    """State of the simulation: ports, messages that are ready, and passages.

    A message that may start is in `heap`. A message whose port is busy waits in the port's queue in
    `queues`, of which only the first message is in the heap, so that a long queue is not
    rescheduled with every message.
    """

    def __init__(
        self,
        messages: list[Message],
        latencies: list[Number],
        takes: list[Number],
        *,
        overlap: bool,
    ) -> None:
        self.messages = messages
        self.latencies = latencies
        self.takes = takes
        self.overlap = overlap  # the latency occupies no port
        self.free: dict[_Port, Number] = {}  # when the port's next message may start
        self.queues: dict[_Port, list[tuple[Number, int]]] = {}
        self.first: dict[_Port, tuple[Number, int]] = {}  # the message of each queue in the heap
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
        """Returns when message i can start, and the port that it has to wait for, if any."""
        out, into = self._ports_of(i)
        when = [(ready, None), (self.free.get(out, ready), out), (self.free.get(into, ready), into)]
        return max(when, key=lambda pair: pair[0])

    def _offer(self, ready: Number, i: int) -> None:
        heapq.heappush(self.heap, (self._earliest(ready, i)[0], ready, i))

    def _send(self, i: int, ready: Number, start: Number) -> None:
        message, latency, takes = self.messages[i], self.latencies[i], self.takes[i]
        arrived = start + latency + takes
        sent, receiving = (start + takes, start + latency) if self.overlap else (arrived, start)
        self.passages[i] = Passage(
            message, self._computing(i), ready, start, takes, arrived, sent, receiving
        )
        out, into = self._ports_of(i)
        # If the latency occupies no port, the next message may start one latency before the
        # receiver's port is free.
        self.free[out], self.free[into] = sent, start + takes if self.overlap else arrived
        for j in self.followers[i]:
            self.missing[j] -= 1
            if not self.missing[j]:
                self._offer(self._ready(j), j)

    def _wait(self, port: _Port, ready: Number, i: int) -> None:
        heapq.heappush(self.queues.setdefault(port, []), (ready, i))

    def _advance(self, port: _Port) -> None:
        """Moves the first message of a port's queue to the heap; if it has to wait for another port
        first, it moves to that port's queue.
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
    """Raises ValueError if the convention is unknown."""
    if convention not in CONVENTIONS:
        raise ValueError(f"convention = {convention!r}; expected 'blocking' or 'pipelined'")


def require_seconds(what: str, value: Number) -> None:
    """Raises ValueError if the value is negative, infinite or NaN."""
    if not checks.is_number(value) or not 0 <= value < math.inf:
        raise ValueError(f"{what} = {checks.show(value)}; expected seconds >= 0, finite")


def _ports(what: str, values: Number | Sequence[Number]) -> Number | list[Number]:
    if isinstance(values, str | bytes) or (
        not isinstance(values, Sequence) and not getattr(values, "shape", ())
    ):
        require_seconds(f"simulate: {what}", values)
        return values
    if getattr(values, "ndim", 1) != 1 or not len(values):
        raise ValueError(f"simulate: {what} = {checks.show(values)}; expected seconds by worker")
    for worker, value in enumerate(values):
        require_seconds(f"simulate: {what} of worker {worker}", value)
    return list(values)


def _select(ports: Number | list[Number], worker: int) -> Number:
    return ports[worker] if isinstance(ports, list) else ports


def _check(i: int, message: Message, count: int, *ports: Number | list[Number]) -> None:
    num_workers = min((len(list_) for list_ in ports if isinstance(list_, list)), default=math.inf)
    if not isinstance(message, Message):
        raise ValueError(
            f"simulate: messages[{i}] = {checks.show(message)}; expected a network.Message"
        )
    for end, worker in (("from", message.sender), ("to", message.receiver)):
        if not checks.is_integer(worker) or not 0 <= worker < num_workers:
            raise ValueError(
                f"simulate: message {i} is {end} worker {worker}; expected a worker from 0 to "
                f"{num_workers - 1}"
                if num_workers < math.inf
                else f"simulate: message {i} is {end} worker {worker}; expected a number from 0 on"
            )
    if message.sender == message.receiver:
        raise ValueError(
            f"simulate: message {i} is from worker {message.sender} to itself; expected another "
            "receiver"
        )
    for what in ("compute", "ready"):
        require_seconds(f"simulate: message {i}: {what}", getattr(message, what))
    if not checks.is_number(message.size) or not 0 <= message.size < math.inf:
        raise ValueError(
            f"simulate: message {i}: size = {message.size}; expected a number of "
            "vectors >= 0, finite"
        )
    for j in message.after:
        if not 0 <= j < count:
            raise ValueError(
                f"simulate: message {i} comes after message {j}; expected a position from 0 to "
                f"{count - 1}"
            )


def _check_order(messages: list[Message]) -> None:
    """Raises ValueError if messages wait for each other in a cycle; the message names the cycle."""
    done: set[int] = set()
    for root in range(len(messages)):
        # Messages, each of which waits for the next, with the others that it still waits for.
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
                    f"simulate: messages {' after '.join(map(str, cycle))} form a cycle; expected "
                    "an order without cycles"
                )
            elif following not in done:
                path[following] = iter(messages[following].after)
