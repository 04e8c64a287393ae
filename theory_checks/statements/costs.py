r"""What messages cost on the survey's switch: closed forms written down once more, held to the project's and to its event simulation.

N workers, latency l, transfer r of a full vector; blocking, as the survey counts, and pipelined, where latency holds no port:

- one server: each of its ports has N messages, up and then down: $2N(l + r)$; pipelined, $2(l + Nr)$.
- star, one server with a link to each worker (Kimad, section 3.1): a message up and one down on each, $2(l + r)$ either way.
- ring all-reduce: $2(N-1)$ steps, in each one message of 1/N a port: $2(N-1)(l + r/N)$ either way. In one piece: $2(N-1)(l + r)$.
- N servers: N - 1 messages of 1/N a port, twice: $2(N-1)(l + r/N)$; pipelined, $2l + 2(N-1)r/N$.
- all-gather: N - 1 messages a port: $(N-1)(l + r)$; pipelined, $l + (N-1)r$. Ring shift: one message a port, $l + r$ either way.
- gossip on a ring: two messages a port (one, if N = 2): $2(l + r)$; pipelined, $l + 2r$.
- one asynchronous server, nobody computing: N trips of $2(l + r)$ a lap, or as many as its busiest port lets through: an update every
  $\max(1, 2/N)(l + r)$; pipelined, $\max(r, 2(l + r)/N)$.

Times are fractions: nothing is rounded on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp

import topologies
from dsgd import network
from dsgd.base import Pattern
from theory_checks.machinery.statement import Draws, Outcome, Statement
from theory_checks.statements import bits

CONVENTIONS: tuple[network.Convention, ...] = ("blocking", "pipelined")
_Cost = Callable[[int, Fraction, Fraction], Fraction]


class Known(NamedTuple):
    """A pattern of N workers, and what it costs, from N, latency and transfer."""

    make: Callable[[int], Pattern]
    blocking: _Cost
    pipelined: _Cost


def _steps(N: int, latency: Fraction, transfer: Fraction) -> Fraction:
    return 2 * (N - 1) * (latency + transfer)


PATTERNS: dict[str, Known] = {
    "one server": Known(
        lambda N: network.parameter_server,
        lambda N, latency, transfer: 2 * N * (latency + transfer),
        lambda N, latency, transfer: 2 * (latency + N * transfer),
    ),
    "star": Known(
        lambda N: network.star,
        lambda N, latency, transfer: 2 * (latency + transfer),
        lambda N, latency, transfer: 2 * (latency + transfer),
    ),
    "ring all-reduce": Known(
        lambda N: network.ring_all_reduce,
        lambda N, latency, transfer: _steps(N, latency, transfer / N),
        lambda N, latency, transfer: _steps(N, latency, transfer / N),
    ),
    "ring, one piece": Known(lambda N: network.ring_all_reduce_unpartitioned, _steps, _steps),
    "N servers": Known(
        lambda N: network.multi_server,
        lambda N, latency, transfer: _steps(N, latency, transfer / N),
        lambda N, latency, transfer: 2 * latency + 2 * (N - 1) * transfer / N,
    ),
    "all-gather": Known(
        lambda N: network.all_gather,
        lambda N, latency, transfer: (N - 1) * (latency + transfer),
        lambda N, latency, transfer: latency + (N - 1) * transfer,
    ),
    "ring shift": Known(
        lambda N: network.ring_shift,
        lambda N, latency, transfer: latency + transfer,
        lambda N, latency, transfer: latency + transfer,
    ),
    "gossip on a ring": Known(
        lambda N: network.gossip(topologies.ring(N)),
        lambda N, latency, transfer: bits.degree(N) * (latency + transfer),
        lambda N, latency, transfer: latency + bits.degree(N) * transfer,
    ),
}


def _fraction(draws: Draws, most: int) -> Fraction:
    return Fraction(draws.integer(0, most), draws.integer(1, 8))


def rounds(draws: Draws) -> list[Outcome]:
    """One pattern, of 2 to 9 workers."""
    name = draws.choice(tuple(PATTERNS))
    return of_pattern(name, draws.integer(2, 9), _fraction(draws, 20), _fraction(draws, 20), PATTERNS[name].make)


def of_pattern(name: str, N: int, latency: Fraction, transfer: Fraction, make: Callable[[int], Pattern]) -> list[Outcome]:
    """What the project says, what its switch takes, and how much its ports have to do."""
    found, pattern = [], make(N)
    for convention, right in zip(CONVENTIONS, PATTERNS[name][1:], strict=True):
        formula = network.cost(pattern, N, latency, transfer, convention)
        takes = network.simulate(pattern.messages(N) if pattern.messages else [], latency, transfer, convention).seconds
        exact = right(N, latency, transfer)
        for what, seconds in (("closed form", formula), ("switch", takes)):
            case = f"{name}, {N} workers, {convention}, {what}"
            found.append(Outcome(float(seconds), float(exact), case=case, equality=True))
    return found


def clocks(name: str, N: int, make: Callable[[int], Pattern]) -> list[Outcome]:
    """Where all begin at once, a run's clock ends as the closed form says."""
    latency, transfer, pattern, found = 1.5, 5.0, make(N), []
    ports = jnp.full(N, pattern.vectors(N) * transfer)
    for convention, right in zip(CONVENTIONS, PATTERNS[name][1:], strict=True):
        done = network.elapse(pattern, jnp.zeros(N), network.Ports(latency, ports, ports), convention, jnp.int32(0))
        exact = float(right(N, Fraction(latency), Fraction(transfer)))
        found.append(Outcome(float(done.max()), exact, case=f"{name}, {N} workers, {convention}, clock", equality=True))
    return found


def examples(draws: Draws) -> list[Outcome]:
    """With another latency and transfer: M1's port receives two messages from 6 on, and the first one has started at 5."""
    latency, transfer = _fraction(draws, 20), _fraction(draws, 20)
    return example(latency, transfer, 1 + 2 * (latency + transfer))


def example(
    latency: Fraction, transfer: Fraction, seconds: Fraction, simulate: Callable[..., network.Timeline] = network.simulate
) -> list[Outcome]:
    """Example 1.3.1, and 1.3.2 with half the data: the third message waits for the second."""
    listed = [network.Message(0, 1, ready=5), network.Message(1, 0, ready=6), network.Message(2, 0, ready=6)]
    shown = simulate(listed, latency, transfer)
    case = f"latency {latency}, transfer {transfer}"
    return [Outcome(float(shown.seconds - shown.start), float(seconds), case=case, equality=True)]


def laps(draws: Draws) -> list[Outcome]:
    """An asynchronous server of 1 to 5 workers."""
    return of_laps(draws.integer(1, 5), _fraction(draws, 20), _fraction(draws, 20))


def of_laps(N: int, latency: Fraction, transfer: Fraction, pattern: Pattern = network.asynchronous_server) -> list[Outcome]:
    """Seconds from one update to the next, in closed form and on the switch, after some laps that settle who queues behind whom."""
    found, few, more = [], 12, 16
    for convention in CONVENTIONS:
        ends = [
            network.simulate(network.asynchronous_server_messages([[0] * laps] * N), latency, transfer, convention).seconds
            for laps in (few, more)
        ]
        each = latency + transfer
        exact = max(each, 2 * each / N) if convention == "blocking" else max(transfer, 2 * each / N)
        formula = Fraction(network.cost(pattern, N, latency, transfer, convention))
        for what, seconds in (("closed form", formula), ("switch", (ends[1] - ends[0]) / (N * (more - few)))):
            found.append(Outcome(float(seconds), float(exact), case=f"{N} workers, {convention}, {what}", equality=True))
    return found


STATEMENTS = [
    Statement(
        "cost of a round of messages",
        "sections 1.3, 5.1; Kimad, section 3.1",
        "exact: closed forms, event simulation, clock",
        rounds,
        [
            *(partial(of_pattern, name, 4, Fraction(3, 2), Fraction(5), make) for name, (make, *_) in PATTERNS.items()),
            *(partial(clocks, name, 4, make) for name, (make, *_) in PATTERNS.items()),
        ],
    ),
    Statement(
        "cost of an asynchronous server",
        "section 4.1",
        "exact: closed form, event simulation",
        laps,
        [partial(of_laps, N, Fraction(3, 2), Fraction(5)) for N in (1, 2, 3)],
    ),
    Statement(
        "three messages take 14, or 9",
        "Examples 1.3.1, 1.3.2",
        "latency 1.5, transfer 5 and 2.5; any others",
        examples,
        [partial(example, Fraction(3, 2), Fraction(5), Fraction(14)), partial(example, Fraction(3, 2), Fraction(5, 2), Fraction(9))],
    ),
]
