r"""Seconds that one round of messages takes on the survey's logical switch (section 1.3), in closed
form.

Each worker sends one message at a time and receives one at a time; it may do both at once. A
message has a latency l, and a full vector has a transfer time r. There are two conventions:

- `blocking`: a message occupies the sender's and the receiver's port for l + r. These are the
  costs that the survey prints.
- `pipelined`: the latency occupies no port, so that the latencies of consecutive messages overlap.
  These are the survey's rules as worded.

For N workers (the survey's chapter 1 writes N for N + 1 workers in places):

| pattern                       | blocking               | pipelined            |
|-------------------------------|------------------------|----------------------|
| one parameter server          | 2N(l + r)              | 2(l + N r)           |
| star: a link to each worker   | 2(l + r)               | the same             |
| ring all-reduce               | 2(N-1)(l + r/N)        | the same             |
| ring all-reduce, one piece    | 2(N-1)(l + r)          | the same             |
| N servers                     | 2(N-1)(l + r/N)        | 2l + 2(N-1) r/N      |
| all-gather                    | (N-1)(l + r)           | l + (N-1) r          |
| ring shift                    | l + r                  | the same             |
| gossip, degree k              | k(l + r)               | l + k r              |
| asynchronous server           | max(1, 2/N)(l + r)     | max(r, 2(l + r)/N)   |
| asynchronous gossip           | (l + r)/floor(N/2)     | the same             |

Star: one server that has two ports for each worker, as Kimad has it without congestion (section
3.1). Each link carries one message up, and then one down. In the event simulation, the server's
ports for worker n have the number N + n.

Gossip: the messages on a graph of degree k form a bipartite graph of senders and receivers of
degree k, whose edges can be coloured with k colours (König). So k rounds of one message per port
are sufficient, and no fewer are. On the ring, k = 2.

Asynchronous server: seconds from one update to the next if computation takes no time. N workers
take turns at the server's two ports, each of which a message occupies for l + r (or r). In the time
of one worker's round trip, 2(l + r), there are N updates, or as many as the busiest port allows.
Asynchronous gossip: at best all workers, or all but one, are in a pairwise exchange, which ends
with one update.

`clocks` has the completion times of workers that are not ready at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import jax
import numpy as np

from dsgd import checks
from dsgd.base import Pattern
from dsgd.graphs.matchings import matchings
from dsgd.graphs.topology import Topology
from dsgd.network.clocks import link_clock, server_clock, together
from dsgd.network.kinds import (
    AllGather,
    AllReduce,
    Asynchronous,
    NServers,
    OneServer,
    PointToPoint,
)
from dsgd.network.levels import (
    IDLE,
    Inside,
    around_ring,
    between_neighbours,
    clocks,
    in_blocks,
    over_cards,
)
from dsgd.network.switch import Convention, Message, Number, check_convention

Seconds = float | Fraction | np.ndarray | jax.Array


def _server_messages(N: int) -> list[Message]:
    up = [Message(n, N) for n in range(N)]
    return up + [Message(N, n, after=tuple(range(N))) for n in range(N)]


def _star_messages(N: int) -> list[Message]:
    up = [Message(n, N + n) for n in range(N)]
    return up + [Message(N + n, n, after=tuple(range(N))) for n in range(N)]


def _multi_server_messages(N: int) -> list[Message]:
    """Returns the messages of the multi-server exchange. In round k every worker sends to one other
    worker and receives from one, so that no port has two messages.
    """
    up = [Message(n, (n + k) % N, Fraction(1, N)) for k in range(1, N) for n in range(N)]
    sums: list[list[int]] = [[] for _ in range(N)]
    for i, message in enumerate(up):
        sums[message.receiver].append(i)
    return up + [
        Message(n, (n + k) % N, Fraction(1, N), tuple(sums[n]))
        for k in range(1, N)
        for n in range(N)
    ]


def _ring_messages(N: int) -> list[Message]:
    def previous(step: int, n: int) -> tuple[int, ...]:
        return ((step - 1) * N + (n - 1) % N,) if step else ()

    return [
        Message(n, (n + 1) % N, Fraction(1, N), previous(step, n))
        for step in range(2 * (N - 1))
        for n in range(N)
    ]


def _whole_ring_messages(N: int) -> list[Message]:
    return [Message(i % N, (i + 1) % N, after=(i - 1,) if i else ()) for i in range(2 * (N - 1))]


def _either(blocking: Callable, pipelined: Callable | None = None) -> Callable:
    """Returns seconds by convention; `blocking` applies to both if `pipelined` is None."""

    def seconds(N, latency, transfer, convention="blocking"):
        return (blocking if pipelined is None or convention == "blocking" else pipelined)(
            N, latency, transfer
        )

    return seconds


_at_one_port = _either(
    lambda N, latency, transfer: 2 * N * (latency + transfer),
    lambda N, latency, transfer: 2 * (latency + N * transfer),
)
parameter_server: OneServer = OneServer(
    "parameter_server",
    _at_one_port,
    volume=lambda N: 1,
    messages=_server_messages,
    clock=over_cards(server_clock, _at_one_port, shared=True),
)
r"""One server with one port: N messages arrive one after the other, then N are sent. Blocking:
$2N(l + r)$ seconds; pipelined: $2(l + Nr)$.
"""
star: OneServer = OneServer(
    "star",
    _either(lambda N, latency, transfer: 2 * (latency + transfer)),
    volume=lambda N: 1,
    messages=_star_messages,
    clock=over_cards(link_clock, _at_one_port, shared=False),
)
r"""One server with a link to each worker: all workers send at the same time, then the server sends
to all. $2(l + r)$ seconds.
"""
multi_server: NServers = NServers(
    "multi_server",
    _either(
        lambda N, latency, transfer: 2 * (N - 1) * (latency + transfer / N),
        lambda N, latency, transfer: 2 * latency * (N > 1) + 2 * (N - 1) * transfer / N,
    ),
    volume=lambda N: 2 * (N - 1) / N,
    messages=_multi_server_messages,
)
r"""N servers on the workers, each of one part of the vector. Blocking: $2(N - 1)(l + r/N)$ seconds;
pipelined: $2l + 2(N - 1) r/N$.
"""
ring_all_reduce: AllReduce = AllReduce(
    "ring_all_reduce",
    _either(lambda N, latency, transfer: 2 * (N - 1) * (latency + transfer / N)),
    volume=lambda N: 2 * (N - 1) / N,
    messages=_ring_messages,
)
r"""The parts of the vector travel around the ring, once to be summed and once to be distributed:
$2(N - 1)(l + r/N)$ seconds.
"""
ring_all_reduce_unpartitioned: AllReduce = AllReduce(
    "ring_all_reduce_unpartitioned",
    _either(lambda N, latency, transfer: 2 * (N - 1) * (latency + transfer)),
    volume=lambda N: 2 * (N - 1) / N,
    messages=_whole_ring_messages,
)
r"""The whole vector travels around the ring twice, from worker to worker: $2(N - 1)(l + r)$
seconds.
"""
all_gather: AllGather = AllGather(
    "all_gather",
    _either(
        lambda N, latency, transfer: (N - 1) * (latency + transfer),
        lambda N, latency, transfer: latency * (N > 1) + (N - 1) * transfer,
    ),
    volume=lambda N: N - 1,
    messages=lambda N: [Message(n, (n + k) % N) for k in range(1, N) for n in range(N)],
)
r"""Each worker sends its vector to all others. Blocking: $(N - 1)(l + r)$ seconds; pipelined:
$l + (N - 1) r$.
"""
ring_shift: PointToPoint = around_ring(
    PointToPoint(
        "ring_shift",
        _either(lambda N, latency, transfer: (latency + transfer) * (N > 1)),
        volume=lambda N: 1 * (N > 1),
        messages=lambda N: [Message(n, (n + 1) % N) for n in range(N)] if N > 1 else [],
    )
)
r"""Each worker sends its vector to one worker and receives that of another: $l + r$ seconds."""
local: Pattern = Pattern(
    "local",
    _either(lambda N, latency, transfer: 0 * (latency + transfer)),
    volume=lambda N: 0,
    messages=lambda N: [],
    clock=IDLE,
)
"""No worker sends anything, and none waits."""
asynchronous_server: Asynchronous = Asynchronous(
    "asynchronous_server",
    _either(
        lambda N, latency, transfer: (latency + transfer) * 2 / min(N, 2),
        lambda N, latency, transfer: np.maximum(transfer, 2 * (latency + transfer) / N),
    ),
    volume=lambda N: 1 / N,
)
asynchronous_server = asynchronous_server._replace(
    clock=over_cards(together(asynchronous_server), asynchronous_server.seconds, shared=True)
)
r"""One worker at a time sends to the server and receives from it: $l + r$ seconds per update;
pipelined: $\max(r, 2(l + r)/N)$.
"""
asynchronous_gossip: Asynchronous = Asynchronous(
    "asynchronous_gossip",
    _either(lambda N, latency, transfer: (latency + transfer) / max(1, N // 2) * (N > 1)),
    volume=lambda N: 2 / N * (N > 1),
)
r"""Pairs of workers exchange their vectors, as many at the same time as possible:
$(l + r) / \lfloor N/2 \rfloor$ seconds per update.
"""


@checks.arguments
def block_all_reduce(size: int) -> PointToPoint:
    r"""Returns the pattern of an all-reduce in each block of k consecutive workers, as
    `ring_all_reduce` among them: $2(k - 1)(l + r/k)$ seconds. On machines with several workers, a
    block within a machine needs none of the machine's card.

    Args:
        size: k.

    Raises:
        ValueError: if `size` is less than 1.
    """
    checks.positive_int("block_all_reduce: size", size)

    def seconds(N, latency, transfer, convention="blocking"):
        return ring_all_reduce.seconds(size, latency, transfer, convention)

    def messages(N):
        of_block = _ring_messages(size)
        return [
            message._replace(
                sender=first + message.sender,
                receiver=first + message.receiver,
                after=tuple(first // size * len(of_block) + i for i in message.after),
            )
            for first in range(0, N, size)
            for message in of_block
        ]

    return PointToPoint(
        f"block_all_reduce({size})",
        seconds,
        lambda N: ring_all_reduce.volume(size),
        messages,
        in_blocks(ring_all_reduce, size),
    )


@checks.arguments
def gossip(topology: Topology) -> PointToPoint:
    """Returns the pattern in which every worker sends its vector to each of its neighbours.

    Args:
        topology: the graph. The rounds of a schedule take turns, and the costs of its pattern are
            means over its rounds.

    Raises:
        ValueError: if a round of the topology has several exchanges (`topologies.chebyshev`).
    """
    topology.require_one_exchange("network.gossip")
    name, n = f"gossip({topology.name})", topology.n
    degrees = [
        int(most) for most in np.maximum(topology.out_degrees, topology.in_degrees).max(axis=1)
    ]
    turns = len(degrees)

    def need(N):
        if n != N:
            raise ValueError(f"{name}, of {n} workers, for {N} workers; expected the same number")

    def blocking_seconds(N, latency, transfer):
        need(N)
        return (
            sum(degree * (latency + transfer) for degree in degrees) / turns
            if turns > 1
            else degrees[0] * (latency + transfer)
        )

    def pipelined_seconds(N, latency, transfer):
        need(N)
        each = [latency * (degree > 0) + degree * transfer for degree in degrees]
        return sum(each) / turns if turns > 1 else each[0]

    def volume(N):
        need(N)
        return sum(len(links) for links in topology.links) / n / turns

    def messages(N):
        need(N)
        pairs = [(int(i), int(j)) for i, j in topology.links[0]]
        return [Message(*pair) for group in matchings(pairs, n) for pair in group]

    return PointToPoint(
        name,
        _either(blocking_seconds, pipelined_seconds),
        volume,
        messages if turns == 1 else None,
        between_neighbours(topology),
    )


@checks.arguments
def asynchronous_server_messages(
    compute: Sequence[Sequence[Number]], servers: int = 1
) -> list[Message]:
    r"""Lists the messages of an asynchronous server: each worker computes a gradient, sends it to
    the server, receives the new model, and begins again (the survey's section 4.1).

    With P servers, each has one part of the model, and messages are 1/P as long. A worker sends its
    parts one after the other, each when the previous one has arrived, and receives them in the same
    order. So all servers see the gradients in the same order.

    Args:
        compute: seconds of each worker's gradients, one list per worker with one number per lap (a
            gradient sent and a model received).
        servers: P; the servers are numbered after the workers.

    Returns:
        The messages, worker by worker and lap by lap: P messages to the servers, then P from them.

    Raises:
        ValueError: if there are no workers, or `servers` is less than 1.
    """
    checks.positive_int("asynchronous_server_messages: servers", servers)
    if not len(compute):
        raise ValueError(
            "asynchronous_server_messages: compute = []; expected at least one list of seconds"
        )
    N, size, messages = len(compute), Fraction(1, servers), []
    for worker, laps in enumerate(compute):
        last: tuple[int, ...] = ()
        for lap, seconds in enumerate(laps):
            first = len(messages)
            for part in range(servers):
                after, work = (last, seconds) if part == 0 else ((first + part - 1,), 0)
                messages.append(
                    Message(worker, N + part, size, after, work, label=f"gradient {lap}")
                )
            for part in range(servers):
                after = (first + part,) if part == 0 else (first + part, first + servers + part - 1)
                messages.append(Message(N + part, worker, size, after, label=f"model {lap}"))
            last = (len(messages) - 1,)
    return messages


@checks.arguments
def cost(
    pattern: Pattern,
    workers: int,
    latency: Seconds,
    transfer: Seconds,
    convention: Convention = "blocking",
    inside: Inside | None = None,
) -> Any:
    """Returns the seconds of one round.

    Args:
        pattern: how the messages flow.
        workers: N.
        latency: seconds per message, of any number type (float, `fractions.Fraction`, an array).
        transfer: seconds that a full vector needs on a port, of any number type.
        convention: "blocking" or "pipelined".
        inside: ports of the workers within a machine, if machines have several workers; `latency`
            and `transfer` are then those of the machines' network cards. None: one level.

    Returns:
        Seconds, of the type that arithmetic with the arguments gives.

    Raises:
        ValueError: if `workers` is less than 1, or not a multiple of `inside.size`; `latency` or
            `transfer` is negative or not finite; the convention is unknown; or what the pattern
            does on two levels is not known.

    Source: Liu and Zhang, section 1.3 and the equations of chapters 2, 3 and 5.
    """
    checks.positive_int("cost: workers", workers, most=None)
    numbers = [("latency", latency), ("transfer", transfer)]
    if inside is not None:
        size = checks.positive_int("cost: inside.size", inside.size)
        if workers % size:
            raise ValueError(
                f"cost: workers = {workers} on machines of {size}; expected a multiple of {size}"
            )
        numbers += [("inside.latency", inside.latency), ("inside.transfer", inside.transfer)]
    for what, value in numbers:
        if not np.all((value >= 0) & (value < np.inf)):  # also catches NaN
            raise ValueError(f"cost: {what} = {value}; expected seconds >= 0, finite")
    check_convention(convention)
    if inside is not None and inside.size == workers:
        latency, transfer, inside = inside.latency, inside.transfer, None
    if inside is None or inside.size == 1:
        seconds = pattern.seconds(workers, latency, transfer, convention)
    else:
        seconds = clocks(pattern).seconds(workers, latency, transfer, convention, inside)
    if not checks.is_number(seconds) and not checks.is_numeric(seconds):
        raise ValueError(
            f"cost: seconds of {pattern.name}, {convention}, returns {checks.kind(seconds)}; "
            "expected seconds"
        )
    return seconds


@checks.arguments
def round_seconds(
    pattern: Pattern,
    workers: int,
    bits_up: float,
    *,
    latency: float,
    bandwidth: float,
    convention: Convention = "blocking",
) -> float:
    """Returns the seconds of one round in which each worker sends `bits_up` bits.

    Args:
        pattern: how the messages flow.
        workers: N.
        bits_up: bits that a worker sends in one round, on average.
        latency: seconds per message.
        bandwidth: bits per second of a port, above 0.
        convention: as in `cost`.

    Raises:
        ValueError: if `bandwidth` is not positive, `bits_up` is negative or not finite, or as
            `cost`.
    """
    checks.positive_int("round_seconds: workers", workers, most=None)
    if not bandwidth > 0:
        raise ValueError(f"round_seconds: bandwidth = {bandwidth} bit/s; expected a number > 0")
    if not 0 <= bits_up < np.inf:
        raise ValueError(f"round_seconds: bits_up = {bits_up}; expected a finite number >= 0")
    volume = pattern.volume(workers)
    transfer = bits_up / volume / bandwidth if volume else 0.0
    return cost(pattern, workers, latency, transfer, convention)
