r"""What one round of messages costs on the survey's logical switch (section 1.3), in closed form.

Each worker sends one message and receives one at a time, both at once allowed. A message takes a latency l, and a
transfer time r for a full vector. Two readings of the rules:

- `blocking`: a message holds the sender's and the receiver's port for l + r. These are the costs that the survey prints.
- `pipelined`: latency holds no port, so that messages in a row overlap theirs. These are its rules as worded.

For N workers (the survey's chapter 1 writes N for N + 1 workers in places):

| pattern                       | blocking               | pipelined            |
|-------------------------------|------------------------|----------------------|
| one parameter server          | 2N(l + r)              | 2(l + N r)           |
| star: a link to each worker   | 2(l + r)               | the same             |
| ring all-reduce               | 2(N-1)(l + r/N)        | the same             |
| ring all-reduce, one piece    | 2(N-1)(l + r)          | the same             |
| N servers                     | 2(N-1)(l + r/N)        | 2l + 2(N-1) r/N      |
| gossip, degree k              | k(l + r)               | l + k r              |
| asynchronous server           | max(1, 2/N)(l + r)     | max(r, 2(l + r)/N)   |
| asynchronous gossip           | (l + r)/floor(N/2)     | the same             |

Star: one server, too, but with two ports of its own for each worker, as Kimad has it without congestion (section 3.1): every link has
one message up, and then one down. Among the switch's ports, the server's for worker n are those of the number N + n.

Gossip: the messages of a graph of degree k are a bipartite graph of senders and receivers with degree k, whose edges have k
colours (König): k rounds of one message a port, and no fewer. On the ring k = 2.

Asynchronous server: seconds from one update to the next, where nobody computes: N workers go round through the server's two ports, each
of which holds a message for l + r (or r), so that it is N trips of 2(l + r) a lap, or as many as the busiest port lets through.
Asynchronous gossip: at best, all but one at most are in an exchange with somebody, which ends with one update.

What a round of a pattern does to workers that are not ready at once is in `clocks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from dsgd import checks
from dsgd.base import Pattern, Period
from dsgd.graphs.matchings import matchings
from dsgd.graphs.topology import Topology
from dsgd.network.clocks import Exchange, among_neighbours, apart, exchange, over_links, through_server
from dsgd.network.switch import Convention, Message, check_convention

Seconds = float | Fraction | np.ndarray | jax.Array


def _server_messages(N: int) -> list[Message]:
    up = [Message(n, N) for n in range(N)]
    return up + [Message(N, n, after=tuple(range(N))) for n in range(N)]


def _star_messages(N: int) -> list[Message]:
    up = [Message(n, N + n) for n in range(N)]
    return up + [Message(N + n, n, after=tuple(range(N))) for n in range(N)]


def _multi_server_messages(N: int) -> list[Message]:
    """In round k everybody sends to, and hears from, another one: no port has two."""
    up = [Message(n, (n + k) % N, Fraction(1, N)) for k in range(1, N) for n in range(N)]
    sums: list[list[int]] = [[] for _ in range(N)]
    for i, message in enumerate(up):
        sums[message.receiver].append(i)
    return up + [Message(n, (n + k) % N, Fraction(1, N), tuple(sums[n])) for k in range(1, N) for n in range(N)]


def _ring_messages(N: int) -> list[Message]:
    def received(step: int, n: int) -> tuple[int, ...]:
        return ((step - 1) * N + (n - 1) % N,) if step else ()

    return [Message(n, (n + 1) % N, Fraction(1, N), received(step, n)) for step in range(2 * (N - 1)) for n in range(N)]


def _whole_ring_messages(N: int) -> list[Message]:
    return [Message(i % N, (i + 1) % N, after=(i - 1,) if i else ()) for i in range(2 * (N - 1))]


parameter_server: Pattern = Pattern(
    "parameter_server",
    blocking=lambda N, latency, transfer: 2 * N * (latency + transfer),
    pipelined=lambda N, latency, transfer: 2 * (latency + N * transfer),
    vectors=lambda N: 1,
    messages=_server_messages,
    clock=through_server,
    stands_in=True,
)
r"""One server with one port: N messages come in one after the other, N go out. Blocking $2N(l + r)$ seconds, pipelined $2(l + Nr)$."""
star: Pattern = Pattern(
    "star",
    blocking=lambda N, latency, transfer: 2 * (latency + transfer),
    pipelined=lambda N, latency, transfer: 2 * (latency + transfer),
    vectors=lambda N: 1,
    messages=_star_messages,
    clock=over_links,
    stands_in=True,
)
r"""One server with a link to each worker: all send side by side, then the server to all. $2(l + r)$ seconds."""
multi_server: Pattern = Pattern(
    "multi_server",
    blocking=lambda N, latency, transfer: 2 * (N - 1) * (latency + transfer / N),
    pipelined=lambda N, latency, transfer: 2 * latency * (N > 1) + 2 * (N - 1) * transfer / N,
    vectors=lambda N: 2 * (N - 1) / N,
    messages=_multi_server_messages,
)
r"""N servers, each of one part of the vector, on the workers. Blocking $2(N - 1)(l + r/N)$ seconds, pipelined $2l + 2(N - 1) r/N$."""
ring_all_reduce: Pattern = Pattern(
    "ring_all_reduce",
    blocking=lambda N, latency, transfer: 2 * (N - 1) * (latency + transfer / N),
    pipelined=lambda N, latency, transfer: 2 * (N - 1) * (latency + transfer / N),
    vectors=lambda N: 2 * (N - 1) / N,
    messages=_ring_messages,
)
r"""The parts of the vector go round the ring, once to be summed and once to be told: $2(N - 1)(l + r/N)$ seconds."""
ring_all_reduce_unpartitioned: Pattern = Pattern(
    "ring_all_reduce_unpartitioned",
    blocking=lambda N, latency, transfer: 2 * (N - 1) * (latency + transfer),
    pipelined=lambda N, latency, transfer: 2 * (N - 1) * (latency + transfer),
    vectors=lambda N: 2 * (N - 1) / N,
    messages=_whole_ring_messages,
)
r"""The whole vector goes round the ring twice, from worker to worker: $2(N - 1)(l + r)$ seconds."""
local: Pattern = Pattern(
    "local",
    blocking=lambda N, latency, transfer: 0 * (latency + transfer),
    pipelined=lambda N, latency, transfer: 0 * (latency + transfer),
    vectors=lambda N: 0,
    messages=lambda N: [],
    clock=apart,
)
"""Nobody sends anything, and nobody waits."""
asynchronous_server: Pattern = Pattern(
    "asynchronous_server",
    blocking=lambda N, latency, transfer: (latency + transfer) * 2 / min(N, 2),
    pipelined=lambda N, latency, transfer: np.maximum(transfer, 2 * (latency + transfer) / N),
    vectors=lambda N: 1 / N,
    stands_in=True,
)
r"""One worker at a time sends to the server and hears from it: $l + r$ seconds an update, pipelined $\max(r, 2(l + r)/N)$."""
asynchronous_gossip: Pattern = Pattern(
    "asynchronous_gossip",
    blocking=lambda N, latency, transfer: (latency + transfer) / max(1, N // 2) * (N > 1),
    pipelined=lambda N, latency, transfer: (latency + transfer) / max(1, N // 2) * (N > 1),
    vectors=lambda N: 2 / N * (N > 1),
    stands_in=True,
)
r"""Pairs of workers exchange their vectors, as many side by side as there are: $(l + r) / \lfloor N/2 \rfloor$ seconds an update."""
one_machine: Pattern = local._replace(name="one_machine", stands_in=True)
"""As `local`, of methods that are on one machine: what crosses devices in a simulation is not counted."""


@checks.arguments
def gossip(topology: Topology) -> Pattern:
    """Every worker sends its vector to each of its neighbours.

    Args:
        topology: whose neighbours; the rounds of a schedule take turns, and its costs are their means.
    """
    name = f"gossip({topology.name})"
    busiest = np.maximum(topology.sends, topology.receives).max(axis=1)
    rounds = [_gossip_round(name, links, int(most), topology.n) for links, most in zip(topology.links, busiest, strict=True)]
    clock = among_neighbours(topology)
    pattern = rounds[0]._replace(clock=clock) if topology.period == 1 else _by_turns(name, rounds, clock)
    return pattern._replace(stands_in=topology.uniform)  # an all-reduce


def _gossip_round(name: str, links: np.ndarray, degree: int, n: int) -> Pattern:
    def of_all(value: Callable) -> Callable:
        def of(N, *seconds):
            if n != N:
                raise ValueError(f"{name}, of {n} workers, for {N} workers: need the same number")
            return value(*seconds)

        return of

    return Pattern(
        name,
        blocking=of_all(lambda latency, transfer: degree * (latency + transfer)),
        pipelined=of_all(lambda latency, transfer: latency * (degree > 0) + degree * transfer),
        vectors=of_all(lambda: len(links) / n),
        messages=of_all(lambda: [Message(*pair) for group in matchings([(int(i), int(j)) for i, j in links], n) for pair in group]),
    )


_LISTED = 10_000  # rounds of a period


@checks.arguments
def every(period: Period, pattern: Pattern) -> Pattern:
    """The pattern in the last round of every `period`, nothing in the others: its costs are means over rounds.

    Args:
        period: rounds; of a traced one, of a sweep, and of more than 10,000, rounds are not listed.
        pattern: of that round.

    Raises:
        ValueError: period < 1 or above 2^31 - 1.
    """
    if not isinstance(period, Tracer):
        period = checks.positive_int("every: period", period)

    def clock(finish, ports, convention, step):
        def silent(finish):
            return Exchange(finish, jnp.zeros_like(finish), jnp.zeros_like(finish))

        return lax.cond(
            (step + 1) % period == 0, lambda finish: exchange(pattern, finish, ports, convention, step // period), silent, finish
        )

    if isinstance(period, Tracer) or period * len(pattern.rounds or (pattern,)) > _LISTED:
        costs = (_shared(cost, period) for cost in (pattern.blocking, pattern.pipelined, pattern.vectors))
        name = "every few rounds" if isinstance(period, Tracer) else f"every {period} rounds {pattern.name}"
        return Pattern(name, *costs, clock=clock, stands_in=pattern.stands_in, period=period)
    rounds = [turn for last in pattern.rounds or (pattern,) for turn in (*[local] * (period - 1), last)]
    return _by_turns(f"every {period} rounds {pattern.name}", rounds, clock)._replace(stands_in=pattern.stands_in, period=period)


def _shared(cost: Callable, period: Period) -> Callable:
    return lambda *arguments: cost(*arguments) / period


def _by_turns(name: str, rounds: Sequence[Pattern], clock: Callable) -> Pattern:
    """Patterns that take turns."""

    def mean(cost):
        return lambda *arguments: sum(cost(pattern)(*arguments) for pattern in rounds) / len(rounds)

    return Pattern(
        name,
        blocking=mean(lambda pattern: pattern.blocking),
        pipelined=mean(lambda pattern: pattern.pipelined),
        vectors=mean(lambda pattern: pattern.vectors),
        clock=clock,
        rounds=tuple(rounds),
    )


@checks.arguments
def cost(pattern: Pattern, workers: int, latency: Seconds, transfer: Seconds, convention: Convention = "blocking") -> Any:
    """Seconds of one round.

    Args:
        pattern: how the messages flow.
        workers: N.
        latency: seconds of one message, any number type (float, `fractions.Fraction`, an array).
        transfer: seconds that a full vector needs on a port, likewise.
        convention: "blocking" or "pipelined".

    Returns:
        Seconds, of the type that the arguments' arithmetic gives.

    Raises:
        ValueError: workers < 1, a negative latency or transfer, or an unknown convention.

    Source: Liu and Zhang, section 1.3 and equation lines of chapters 2, 3, 5; the table above.
    """
    _need_workers(workers)
    for what, value in (("latency", latency), ("transfer", transfer)):
        if not np.all((value >= 0) & (value < np.inf)):  # also catches NaN
            raise ValueError(f"cost with {what} = {value}: need seconds >= 0, finite")
    check_convention(convention)
    seconds = getattr(pattern, convention)(workers, latency, transfer)
    if not checks.is_number(seconds) and not checks.is_numeric(seconds):
        raise ValueError(f"cost: {convention} of {pattern.name} gives {checks.typed(seconds)}; need seconds")
    return seconds


@checks.arguments
def round_seconds(
    pattern: Pattern, workers: int, bits_up: float, *, latency: float, bandwidth: float, convention: Convention = "blocking"
) -> float:
    """Seconds of one round in which each worker sends `bits_up` bits.

    Args:
        pattern: how the messages flow.
        workers: N.
        bits_up: bits that a worker sends in one round, on average.
        latency: seconds.
        bandwidth: bits per second of a port.
        convention: as in `cost`.

    Raises:
        ValueError: bandwidth <= 0, negative bits, or as `cost`.
    """
    _need_workers(workers)
    if not bandwidth > 0:
        raise ValueError(f"bandwidth = {bandwidth} bit/s: need > 0")
    if not 0 <= bits_up < np.inf:
        raise ValueError(f"bits_up = {bits_up}: need >= 0, finite")
    vectors = pattern.vectors(workers)
    transfer = bits_up / vectors / bandwidth if vectors else 0.0
    return cost(pattern, workers, latency, transfer, convention)


def _need_workers(workers: int) -> None:
    if workers < 1:
        raise ValueError(f"cost for {workers} workers: need at least 1, an integer")
