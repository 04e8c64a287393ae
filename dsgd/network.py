r"""What one round of messages costs on the survey's logical switch (section 1.3), in closed form.

Each worker sends one message and receives one at a time, both at once allowed. A message takes a latency l, and a
transfer time r for a full vector. Two readings of the rules:

- `blocking`: a message holds the sender's and the receiver's port for l + r. These are the costs that the survey prints.
- `pipelined`: latency holds no port, so that messages in a row overlap theirs. These are its rules as worded.

For N workers (the survey's chapter 1 writes N for N + 1 workers in places):

| pattern                       | blocking          | pipelined            |
|-------------------------------|-------------------|----------------------|
| one parameter server          | 2N(l + r)         | 2(l + N r)           |
| ring all-reduce               | 2(N-1)(l + r/N)   | the same             |
| ring all-reduce, one piece    | 2(N-1)(l + r)     | the same             |
| N servers                     | 2(N-1)(l + r/N)   | 2l + 2(N-1) r/N      |
| gossip, degree k              | k(l + r)          | l + k r              |

Gossip: the messages of a graph of degree k are a bipartite graph of senders and receivers with degree k, whose edges have k
colours (König): k rounds of one message a port, and no fewer. On the ring k = 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from dsgd.base import Pattern

Convention = Literal["blocking", "pipelined"]


def _pattern(name, blocking, vectors, pipelined=None) -> Pattern:
    return Pattern(name, blocking, pipelined or blocking, vectors)


parameter_server = _pattern(
    "parameter_server",
    blocking=lambda N, latency, transfer: 2 * N * (latency + transfer),
    pipelined=lambda N, latency, transfer: 2 * (latency + N * transfer),
    vectors=lambda N: 1,
)
multi_server = _pattern(
    "multi_server",
    blocking=lambda N, latency, transfer: 2 * (N - 1) * (latency + transfer / N),
    pipelined=lambda N, latency, transfer: 2 * latency * (N > 1) + 2 * (N - 1) * transfer / N,
    vectors=lambda N: 2 * (N - 1) / N,
)
ring_all_reduce = _pattern(
    "ring_all_reduce",
    blocking=lambda N, latency, transfer: 2 * (N - 1) * (latency + transfer / N),
    vectors=lambda N: 2 * (N - 1) / N,
)
ring_all_reduce_unpartitioned = _pattern(
    "ring_all_reduce_unpartitioned",
    blocking=lambda N, latency, transfer: 2 * (N - 1) * (latency + transfer),
    vectors=lambda N: 2 * (N - 1) / N,
)
local = _pattern("local", blocking=lambda N, latency, transfer: 0 * (latency + transfer), vectors=lambda N: 0)


def gossip(degree: int, mean_degree: float | None = None) -> Pattern:
    """Every worker sends its vector to each of its neighbours.

    Args:
        degree: most neighbours that a worker has (`Topology.degree`): its ports set the pace.
        mean_degree: neighbours of a worker on average; None: all have as many.

    Raises:
        ValueError: degree < 0, or a mean that is larger.
    """
    if degree < 0:
        raise ValueError(f"gossip of degree {degree}: need degree >= 0")
    mean = degree if mean_degree is None else mean_degree
    if not 0 <= mean <= degree:
        raise ValueError(f"gossip of degree {degree} with {mean} neighbours on average: need between 0 and the degree")
    return _pattern(
        f"gossip({degree})",
        blocking=lambda N, latency, transfer: degree * (latency + transfer),
        pipelined=lambda N, latency, transfer: latency * (degree > 0) + degree * transfer,
        vectors=lambda N: mean,
    )


def mean(patterns: Sequence[Pattern]) -> Pattern:
    """Patterns that take turns: a round's mean cost."""

    def of(cost):
        return lambda *arguments: sum(cost(pattern)(*arguments) for pattern in patterns) / len(patterns)

    names = ", ".join(dict.fromkeys(pattern.name for pattern in patterns))
    return _pattern(
        f"by turns {names}",
        blocking=of(lambda pattern: pattern.blocking),
        pipelined=of(lambda pattern: pattern.pipelined),
        vectors=of(lambda pattern: pattern.vectors),
    )


def every(period: int, pattern: Pattern) -> Pattern:
    """The pattern in one round of every `period`, nothing in the others: a round's mean cost."""
    return _pattern(
        f"every {period} rounds {pattern.name}",
        blocking=lambda N, latency, transfer: pattern.blocking(N, latency, transfer) / period,
        pipelined=lambda N, latency, transfer: pattern.pipelined(N, latency, transfer) / period,
        vectors=lambda N: pattern.vectors(N) / period,
    )


def cost(pattern: Pattern, workers: int, latency, transfer, convention: Convention = "blocking") -> Any:
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
        if not np.all(value >= 0):  # also catches NaN
            raise ValueError(f"cost with {what} = {value}: need seconds >= 0")
    if convention == "blocking":
        return pattern.blocking(workers, latency, transfer)
    if convention == "pipelined":
        return pattern.pipelined(workers, latency, transfer)
    raise ValueError(f"unknown convention {convention!r}: need 'blocking' or 'pipelined'")


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
    if not bits_up >= 0:
        raise ValueError(f"bits_up = {bits_up}: need >= 0")
    vectors = pattern.vectors(workers)
    transfer = bits_up / vectors / bandwidth if vectors else 0.0
    return cost(pattern, workers, latency, transfer, convention)


def _need_workers(workers: int) -> None:
    if workers < 1:
        raise ValueError(f"cost for {workers} workers: need at least 1")
