r"""What one round of messages costs on the survey's logical switch (section 1.3), in closed form.

Each worker sends one message and receives one at a time, both at once allowed. A message takes a latency l, and a
transfer time r for a full vector. Two readings of the rules:

- `blocking`: a message holds the sender's and the receiver's port for l + r. These are the costs that the survey prints.
- `pipelined`: latency holds no port, so that messages in a row overlap theirs. These are its rules as worded.

For N workers (the survey's chapter 1 writes N for N + 1 workers in places):

| pattern                       | blocking               | pipelined            |
|-------------------------------|------------------------|----------------------|
| one parameter server          | 2N(l + r)              | 2(l + N r)           |
| ring all-reduce               | 2(N-1)(l + r/N)        | the same             |
| ring all-reduce, one piece    | 2(N-1)(l + r)          | the same             |
| N servers                     | 2(N-1)(l + r/N)        | 2l + 2(N-1) r/N      |
| gossip, degree k              | k(l + r)               | l + k r              |
| asynchronous server           | max(1, 2/N)(l + r)     | max(r, 2(l + r)/N)   |
| asynchronous gossip           | (l + r)/floor(N/2)     | the same             |

Gossip: the messages of a graph of degree k are a bipartite graph of senders and receivers with degree k, whose edges have k
colours (König): k rounds of one message a port, and no fewer. On the ring k = 2.

Asynchronous server: seconds from one update to the next, where nobody computes: N workers go round through the server's two ports, each
of which holds a message for l + r (or r), so that it is N trips of 2(l + r) a lap, or as many as the busiest port lets through.
Asynchronous gossip: at best, all but one at most are in an exchange with somebody, which ends with one update.

Workers are not always ready at once, nor are their ports equal: what a round of a pattern then does to every worker's clock is its
`clock`. It agrees with the table where all are equal. With a server it is the event simulation's, message by message. All-reduces and N
servers begin when the last worker is ready, and the slowest port sets the pace of all. In gossip, each neighbourhood begins when its last
worker is ready, and takes as long as its busiest port.

Where bandwidths change meanwhile, a port needs the seconds in which so many bits come together, sent without a pause from when its first
message begins, and received one latency later: with a server from each message's own beginning, in an all-reduce and among N servers from
the last worker's, in gossip from when the port's own neighbourhood is ready.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from dsgd import checks
from dsgd.base import Pattern, Period
from dsgd.graphs.matchings import matchings
from dsgd.graphs.topology import Topology
from dsgd.network.switch import Convention, Message, check_convention

Seconds = float | Fraction | np.ndarray | jax.Array


class Ports(NamedTuple):
    """What a round sends, as the clock sees it.

    Args:
        latency: seconds of a message.
        up: seconds that each worker's port needs for all that it sends in this round, `[N]`.
        down: the same for what it receives.
        changing: (begin `[k]`, workers int32 `[k]`) -> the two, `[k]` each, of what is sent from then on, where bandwidths change with
            the clock: those above are then of ports that begin when their worker is ready. None: they do not.
    """

    latency: Any
    up: jax.Array
    down: jax.Array
    changing: Callable | None = None

    def at(self, begin: jax.Array) -> tuple[jax.Array, jax.Array]:
        """`up` and `down` of ports that begin then, `[N]` each."""
        return self.changing(begin, jnp.arange(begin.shape[0])) if self.changing else (self.up, self.down)


class Exchange(NamedTuple):
    """How a round's messages went.

    Args:
        done: when each worker is done with them, `[N]`.
        up: seconds that each sending port needed for its bits, `[N]`.
        down: the same of the receiving ports.
    """

    done: jax.Array
    up: jax.Array
    down: jax.Array


@checks.arguments
def elapse(pattern: Pattern, finish: jax.Array, ports: Ports, convention: Convention, step: jax.Array) -> jax.Array:
    """When each worker is done with a round's messages.

    Args:
        pattern: how they flow.
        finish: when each has computed its gradient, `[N]`.
        ports: what they take.
        convention: "blocking" or "pipelined".
        step: the present round, of patterns that take turns.

    Returns:
        Seconds on the same clock, `[N]`.
    """
    return exchange(pattern, finish, ports, convention, step).done


@checks.arguments
def exchange(pattern: Pattern, finish: jax.Array, ports: Ports, convention: Convention, step: jax.Array) -> Exchange:
    """The same, and for how long ports were busy.

    Args:
        pattern, finish, ports, convention, step: as of `elapse`.
    """
    check_convention(convention)
    if np.ndim(finish) != 1 or not len(finish):
        raise ValueError(f"elapse: finish of shape {np.shape(finish)}: need seconds [N]")
    went = (pattern.clock or _together(pattern))(finish, ports, convention, step)
    return went if isinstance(went, Exchange) else Exchange(went, ports.up, ports.down)


def _together(pattern: Pattern) -> Callable:
    """All wait for the last, and for the slowest port: a clock from the closed form."""

    def clock(finish, ports, convention, step):
        N, last = finish.shape[0], jnp.broadcast_to(jnp.max(finish), finish.shape)
        vectors, (up, down) = pattern.vectors(N), ports.at(last)
        transfer = jnp.max(jnp.maximum(up, down)) / vectors if vectors else 0.0
        return Exchange(last + getattr(pattern, convention)(N, ports.latency, transfer), up, down)

    return clock


def _through_server(finish, ports, convention, step):
    """The server receives one by one, the first that is ready first; then it sends to all, one by one."""
    latency = ports.latency if convention == "blocking" else 0.0
    order = jnp.argsort(finish)
    if ports.changing:
        return _one_by_one(finish, ports, order, latency)
    # The last arrival is as late as any message with all that queue behind it.
    behind = jnp.cumsum((ports.up[order] + latency)[::-1])[::-1]
    received = jnp.max(finish[order] + behind)
    overlapped = 0.0 if convention == "blocking" else ports.latency
    return received + 2 * overlapped + jnp.cumsum(ports.down + latency)


def _one_by_one(finish, ports, order, held):
    """The same where each message's seconds depend on when it begins.

    Args:
        order: in which the server receives.
        held: for how long latency holds a port.
    """

    def receive(free, worker):
        start = jnp.maximum(free, finish[worker])
        up = ports.changing(start[None], worker[None])[0][0]
        return start + held + up, up

    def send(free, worker):
        down = ports.changing(free[None], worker[None])[1][0]
        arrived = free + held + down
        return arrived, (arrived, down)

    received, up = lax.scan(receive, jnp.float32(-jnp.inf), order)
    overlapped = ports.latency - held
    # Of the first model, what is not held: one latency till the last gradient is there, and one till this one begins to arrive.
    _, (done, down) = lax.scan(send, received + overlapped, jnp.arange(finish.shape[0]))
    return Exchange(done + overlapped, jnp.zeros_like(up).at[order].set(up), down)


def _apart(finish, ports, convention, step):
    return finish


def _server_messages(N: int) -> list[Message]:
    up = [Message(n, N) for n in range(N)]
    return up + [Message(N, n, after=tuple(range(N))) for n in range(N)]


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


parameter_server = Pattern(
    "parameter_server",
    blocking=lambda N, latency, transfer: 2 * N * (latency + transfer),
    pipelined=lambda N, latency, transfer: 2 * (latency + N * transfer),
    vectors=lambda N: 1,
    messages=_server_messages,
    clock=_through_server,
    stands_in=True,
)
multi_server = Pattern(
    "multi_server",
    blocking=lambda N, latency, transfer: 2 * (N - 1) * (latency + transfer / N),
    pipelined=lambda N, latency, transfer: 2 * latency * (N > 1) + 2 * (N - 1) * transfer / N,
    vectors=lambda N: 2 * (N - 1) / N,
    messages=_multi_server_messages,
)
ring_all_reduce = Pattern(
    "ring_all_reduce",
    blocking=lambda N, latency, transfer: 2 * (N - 1) * (latency + transfer / N),
    pipelined=lambda N, latency, transfer: 2 * (N - 1) * (latency + transfer / N),
    vectors=lambda N: 2 * (N - 1) / N,
    messages=_ring_messages,
)
ring_all_reduce_unpartitioned = Pattern(
    "ring_all_reduce_unpartitioned",
    blocking=lambda N, latency, transfer: 2 * (N - 1) * (latency + transfer),
    pipelined=lambda N, latency, transfer: 2 * (N - 1) * (latency + transfer),
    vectors=lambda N: 2 * (N - 1) / N,
    messages=_whole_ring_messages,
)
local = Pattern(
    "local",
    blocking=lambda N, latency, transfer: 0 * (latency + transfer),
    pipelined=lambda N, latency, transfer: 0 * (latency + transfer),
    vectors=lambda N: 0,
    messages=lambda N: [],
    clock=_apart,
)
asynchronous_server = Pattern(
    "asynchronous_server",
    blocking=lambda N, latency, transfer: (latency + transfer) * 2 / min(N, 2),
    pipelined=lambda N, latency, transfer: np.maximum(transfer, 2 * (latency + transfer) / N),
    vectors=lambda N: 1 / N,
    stands_in=True,
)
asynchronous_gossip = Pattern(
    "asynchronous_gossip",
    blocking=lambda N, latency, transfer: (latency + transfer) / max(1, N // 2) * (N > 1),
    pipelined=lambda N, latency, transfer: (latency + transfer) / max(1, N // 2) * (N > 1),
    vectors=lambda N: 2 / N * (N > 1),
    stands_in=True,
)
one_machine = local._replace(name="one_machine", stands_in=True)


@checks.arguments
def gossip(topology: Topology) -> Pattern:
    """Every worker sends its vector to each of its neighbours.

    Args:
        topology: whose neighbours; the rounds of a schedule take turns, and its costs are their means.
    """
    name = f"gossip({topology.name})"
    busiest = np.maximum(topology.sends, topology.receives).max(axis=1)
    rounds = [_gossip_round(name, links, int(most), topology.n) for links, most in zip(topology.links, busiest, strict=True)]
    clock = _among_neighbours(topology)
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


def _among_neighbours(topology: Topology) -> Callable:
    """Neighbours begin when all of them have computed, and are done when the busiest port among them has handled all of its own."""

    def clock(finish, ports, convention, step):
        # To whom each worker sends in this round, and from whom it receives.
        to, origin = (jnp.asarray(_lists(topology, end))[step % topology.period] for end in (0, 1))

        def busy(ends, own, others):
            """Each message holds a port for as long as the slower of its two ports needs."""
            messages = jnp.where(ends >= 0, jnp.maximum(own[:, None], others[ends]), 0)
            latencies = jnp.sum(ends >= 0, axis=1) if convention == "blocking" else jnp.any(ends >= 0, axis=1)
            return jnp.sum(messages, axis=1) + latencies * ports.latency

        def wait(times):
            """One's own, or the latest of those with whom one exchanges messages."""
            latest = (jnp.max(jnp.where(ends >= 0, times[ends], -jnp.inf), axis=1, initial=-jnp.inf) for ends in (to, origin))
            return reduce(jnp.maximum, latest, times)

        ready = wait(finish)
        up, down = whole = ports.at(ready)
        up, down = (seconds / jnp.maximum(1, jnp.sum(ends >= 0, axis=1)) for seconds, ends in ((up, to), (down, origin)))
        return Exchange(ready + wait(jnp.maximum(busy(to, up, down), busy(origin, down, up))), *whole)

    return clock


def _lists(topology: Topology, end: int) -> np.ndarray:
    """Of each worker in each round, who is at the other end of its messages, int32 `[period, n, K]`, filled up with -1.

    Args:
        end: 0 for those that it sends, 1 for those that it receives.
    """
    counts = (topology.sends, topology.receives)[end]
    lists = np.full((*counts.shape, counts.max()), -1, np.int32)
    for turn, links in enumerate(topology.links):
        own, other = links[:, end], links[:, 1 - end]
        order = np.argsort(own, kind="stable")
        place = np.arange(len(own)) - np.searchsorted(own[order], own[order])
        lists[turn, own[order], place] = other[order]
    return lists


@checks.arguments
def every(period: Period, pattern: Pattern) -> Pattern:
    """The pattern in the last round of every `period`, nothing in the others: its costs are means over rounds.

    Args:
        period: rounds; a traced one, of a sweep, has a clock, and its rounds are not listed.
        pattern: of that round.

    Raises:
        ValueError: period < 1.
    """
    if not isinstance(period, Tracer):
        checks.positive_int("every: period", period)

    def clock(finish, ports, convention, step):
        def silent(finish):
            return Exchange(finish, jnp.zeros_like(finish), jnp.zeros_like(finish))

        return lax.cond(
            (step + 1) % period == 0, lambda finish: exchange(pattern, finish, ports, convention, step // period), silent, finish
        )

    if isinstance(period, Tracer):
        costs = (_shared(cost, period) for cost in (pattern.blocking, pattern.pipelined, pattern.vectors))
        return Pattern("every few rounds", *costs, clock=clock, stands_in=pattern.stands_in)
    rounds = [turn for last in pattern.rounds or (pattern,) for turn in (*[local] * (period - 1), last)]
    return _by_turns(f"every {period} rounds {pattern.name}", rounds, clock)._replace(stands_in=pattern.stands_in)


def _shared(cost: Callable, period: jax.Array) -> Callable:
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
    return getattr(pattern, convention)(workers, latency, transfer)


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
