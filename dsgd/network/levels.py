"""Two levels: machines with k workers each, which exchange messages over ports of their own, and
share the machine's network card for messages to other machines.

A message within a machine passes the ports of its two workers. A message between machines passes
the two cards, and occupies no port of a worker.

- All-reduces are hierarchical: the workers of each machine sum their vectors, the machines sum the
  sums over the cards, and the result goes to all workers of each machine. What the workers of a
  machine send to another machine in one step is one message.
- An all-gather sends each vector to each other machine once, those of a machine in one message;
  then the workers of each machine forward the vectors of all machines to each other.
- N servers, gossip and rings send each message on its own. Those within machines and those between
  them flow at the same time.
- A server that is no worker is reached over the cards. A star's server has a port for each card.

With one machine, or one worker on each machine, there is one level. The table of costs is in
docs/explanation/clock.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsgd.base import Pattern
from dsgd.graphs.topology import Topology
from dsgd.network.clocks import (
    Ports,
    Timing,
    duration,
    idle_clock,
    neighbour_clock,
    neighbourhoods,
    neighbours_at,
    server_clock,
    together,
)
from dsgd.network.kinds import AllGather, AllReduce, NServers, OneServer
from dsgd.network.switch import Convention


class Inside(NamedTuple):
    """Ports of the workers within a machine, for `network.cost`.

    Args:
        size: k, the number of workers on a machine.
        latency: seconds per message within a machine.
        transfer: seconds that a full vector needs on a worker's port.
    """

    size: int
    latency: Any
    transfer: Any


class Levels(NamedTuple):
    """Ports of two levels and the bits of a round, in place of `Ports`.

    Args:
        size: k, the number of workers on a machine, which are consecutive; more than 1, and less
            than the number of workers, which it divides.
        up: bits that each worker sends in this round, `[N]`.
        down: bits that each worker receives, including messages that are lost, `[N]`.
        inside: (bits sent, bits received), `[N]` each -> the `Ports` of the workers within the
            machines.
        cards: (begin, workers int32, bits sent, bits received), `[n]` each -> the `Ports` of n
            streams of messages that begin then and pass the cards of the machines with these
            workers.
    """

    size: int
    up: jax.Array
    down: jax.Array
    inside: Callable[[jax.Array, jax.Array], Ports]
    cards: Callable[[jax.Array, jax.Array, jax.Array, jax.Array], Ports]

    @property
    def machines(self) -> int:
        """M."""
        return self.up.shape[0] // self.size

    def card_ports(self, begin: jax.Array, up: jax.Array, down: jax.Array) -> Ports:
        """Returns the ports of the cards, `[M]`, for messages that begin at `begin`, `[M]`.

        Args:
            begin: seconds, `[M]`.
            up, down: bits between machines that each worker sends and receives, `[N]`.
        """
        up, down = (each.reshape(-1, self.size).sum(axis=1) for each in (up, down))
        return self.cards(begin, jnp.arange(self.machines) * self.size, up, down)

    def timing(self, done: jax.Array, inside: Any, cards: Any) -> Timing:
        """Returns the timing of the workers; a worker's busy time is that of the busier one of its
        port and its machine's card.

        Args:
            done: when each worker is done, `[N]`.
            inside: busy times of the workers' ports, up and down, `[N]`.
            cards: busy times of the cards, up and down, `[M]`.
        """
        up, down = (
            jnp.maximum(port, jnp.repeat(card, self.size))
            for port, card in zip(inside, cards, strict=True)
        )
        return Timing(done, up, down)


@dataclass(frozen=True, eq=False)
class Clocks:
    """`Pattern.clock` of a pattern that states what it does on two levels.

    Args:
        one_level: the clock on one level, as `Pattern.clock`.
        two_levels: (finish `[N]`, `Levels`, convention, step) -> the `Timing`.
        seconds: (N, latency, transfer, convention, `Inside`) -> seconds of one exchange on two
            levels in closed form; latency and transfer are those of the cards.
    """

    one_level: Callable
    two_levels: Callable
    seconds: Callable

    def __call__(
        self,
        finish: jax.Array,
        ports: Ports | Levels,
        convention: Convention,
        step: jax.Array,
    ) -> Timing | jax.Array:
        """Returns the result of the clock for these ports."""
        clock = self.two_levels if isinstance(ports, Levels) else self.one_level
        return clock(finish, ports, convention, step)


def clocks(pattern: Pattern) -> Clocks:
    """Returns the clocks of a pattern on one level and on two.

    Raises:
        ValueError: if the pattern does not state what it does on two levels, and its kind does not
            determine it.
    """
    if isinstance(pattern.clock, Clocks):
        return pattern.clock
    if pattern.clock is None and not isinstance(pattern, OneServer):
        for kind, split in _SPLITS.items():
            if isinstance(pattern, kind):
                return _in_parts(pattern, split)
    raise ValueError(
        f"{pattern.name}: its messages on machines with several workers are not known; expected "
        "one of dsgd.network's patterns for rounds, or a network.AllReduce, AllGather or NServers "
        "without a clock; or a cluster with nodes=None"
    )


class Part(NamedTuple):
    """The part of a pattern's messages that passes the ports of one level: messages as those of the
    pattern among `ports` ports.

    Args:
        ports: their number.
        vectors: length of what they exchange, in vectors of one worker.
        divisor: the length is `vectors / divisor`.
        messages: number of messages in place of each message of the pattern.
    """

    ports: int
    vectors: int = 1
    divisor: int = 1
    messages: int = 1

    def latency(self, latency: Any, convention: Convention) -> Any:
        """Returns the latency of several messages, which follow each other on a port."""
        return self.messages * latency if convention == "blocking" else latency

    def seconds(self, pattern: Pattern, latency: Any, transfer: Any, convention: Convention) -> Any:
        """Returns the seconds of the messages, of the type that arithmetic with the arguments
        gives.
        """
        transfer = self.vectors * transfer / self.divisor
        return pattern.seconds(self.ports, self.latency(latency, convention), transfer, convention)

    def volume(self, pattern: Pattern) -> float:
        """Returns the number of vectors that each port sends."""
        return pattern.volume(self.ports) * self.vectors / self.divisor


class Split(NamedTuple):
    """The two parts of a pattern's messages.

    Args:
        inside: the part within machines.
        cards: the part between machines.
        before: the share of the part within machines that comes before the other part, as the rest
            comes after it; None: the two parts flow at the same time.
    """

    inside: Part
    cards: Part
    before: float | None = None


def _all_reduce(k: int, M: int) -> Split:
    return Split(Part(k), Part(M), before=0.5)


def _all_gather(k: int, M: int) -> Split:
    return Split(Part(k, M), Part(M, k), before=0.0)


def _servers(k: int, M: int) -> Split:
    return Split(Part(k, divisor=M), Part(M, k, messages=k * k))


def _around_ring(k: int, M: int) -> Split:
    return Split(Part(k * M), Part(k * M))


# A kind may be derived from another one: the first that fits applies.
_SPLITS = {AllGather: _all_gather, NServers: _servers, AllReduce: _all_reduce}


def around_ring(pattern: Any) -> Any:
    """Returns the pattern of messages from each worker to the next one, with what it does on
    two levels.
    """
    return pattern._replace(clock=_in_parts(pattern, _around_ring))


def _in_parts(pattern: Pattern, split: Callable[[int, int], Split]) -> Clocks:
    """Returns what a pattern does if all messages begin when the last worker is ready."""

    def seconds(N, latency, transfer, convention, inside):
        within, between, before = split(inside.size, N // inside.size)
        first = within.seconds(pattern, inside.latency, inside.transfer, convention)
        second = between.seconds(pattern, latency, transfer, convention)
        return first + second if before is not None else np.maximum(first, second)

    def clock(finish, levels, convention, step):
        k, M, N = levels.size, levels.machines, finish.shape[0]
        within, between, before = split(k, M)
        whole, last = pattern.volume(N), jnp.broadcast_to(jnp.max(finish), finish.shape)

        def bits(part, workers):
            """Returns the bits of a level, up and down, where `workers` share a port."""
            share = part.volume(pattern) / (workers * whole) if whole else 0.0
            return share * levels.up, share * levels.down

        first, *ports = _duration(
            pattern, within, last, levels.inside(*bits(within, 1)), convention
        )
        begin = last[:M] + (before or 0) * first
        second, *cards = _duration(
            pattern, between, begin, levels.card_ports(begin, *bits(between, k)), convention
        )
        total = first + second if before is not None else jnp.maximum(first, second)
        return levels.timing(last + total, ports, cards)

    return Clocks(together(pattern), clock, seconds)


def _duration(
    pattern: Pattern, part: Part, begin: jax.Array, ports: Ports, convention: Convention
) -> tuple[jax.Array, jax.Array, jax.Array]:
    latency = part.latency(ports.latency, convention)
    return duration(pattern, part.ports, begin, ports._replace(latency=latency), convention)


def in_blocks(ring: Pattern, size: int) -> Clocks:
    """Returns what blocks of consecutive workers do, each of which begins an all-reduce when its
    last worker is ready. On two levels, blocks are parts of machines, or several machines.

    Args:
        ring: the all-reduce.
        size: number of workers in a block.
    """

    def parts(k: int) -> tuple[int, int]:
        """Returns the number of workers of a block on each of its machines, and the number of these
        machines.
        """
        if size % k and k % size:
            raise ValueError(
                f"block_all_reduce({size}) on machines of {k} workers: a block has a part of a "
                "machine; expected blocks within machines or of whole machines"
            )
        return min(size, k), max(1, size // k)

    def elapse(count, begin, ports, convention, each):
        """Returns the seconds of the all-reduces of `count` ports, `each` of which belong to a
        block, `[blocks]`, and how long the ports are busy.
        """
        up, down = ports.at_times(begin)
        busiest = jnp.max(jnp.maximum(up, down).reshape(-1, each), axis=1)
        vectors = ring.volume(count)
        transfer = busiest / vectors if vectors else 0.0 * busiest
        return ring.seconds(count, ports.latency, transfer, convention), up, down

    def last_ready(finish):
        return jnp.repeat(jnp.max(finish.reshape(-1, size), axis=1), size)

    def one_level(finish, ports, convention, step):
        last = last_ready(finish)
        seconds, up, down = elapse(size, last, ports, convention, size)
        return Timing(last + jnp.repeat(seconds, size), up, down)

    def two_levels(finish, levels, convention, step):
        within, machines = parts(levels.size)
        last, whole = last_ready(finish), ring.volume(size) or 1
        share = ring.volume(within) / whole
        ports = levels.inside(share * levels.up, share * levels.down)
        seconds, *inside = elapse(within, last, ports, convention, size)
        begin = (last + jnp.repeat(seconds / 2, size))[:: levels.size]
        # Blocks within machines have no messages for the cards.
        share = ring.volume(machines) / (levels.size * whole)
        ports = levels.card_ports(begin, share * levels.up, share * levels.down)
        between, *cards = elapse(machines, begin, ports, convention, machines)
        # Either the machines of a block, or the blocks of a machine, have the same seconds.
        between = jnp.repeat(between, len(finish) // len(between))
        return levels.timing(last + jnp.repeat(seconds, size) + between, inside, cards)

    def seconds(N, latency, transfer, convention, inside):
        within, machines = parts(inside.size)
        first = ring.seconds(within, inside.latency, inside.transfer, convention)
        return first + ring.seconds(machines, latency, transfer, convention)

    return Clocks(one_level, two_levels, seconds)


def over_cards(one_level: Callable, seconds: Callable, *, shared: bool) -> Clocks:
    """Returns what a server does that is no worker: all messages pass the cards.

    Args:
        one_level: the clock on one level.
        seconds: (N, latency, transfer, convention) -> seconds of N workers at one port of the
            server.
        shared: whether all workers share a port of the server; otherwise, it has one for each card.
    """

    def on_levels(N, latency, transfer, convention, inside):
        return seconds(N if shared else inside.size, latency, transfer, convention)

    def clock(finish, levels, convention, step):
        first = jnp.arange(len(finish)) // levels.size * levels.size
        ports = levels.cards(finish, first, levels.up, levels.down)
        groups = 1 if shared else levels.machines
        timing = server_clock(finish, ports, convention, step, groups)
        return timing if isinstance(timing, Timing) else Timing(timing, ports.up, ports.down)

    return Clocks(one_level, clock, on_levels)


IDLE = Clocks(
    idle_clock,
    lambda finish, levels, convention, step: Timing(finish, levels.up, levels.down),
    lambda N, latency, transfer, convention, inside: 0 * transfer,
)
"""Clocks of workers that send nothing; their bits are 0, as are the times of their ports."""


def between_neighbours(topology: Topology) -> Clocks:
    """Returns what gossip does: gossip of the workers on the links within machines, and at the same
    time gossip of the machines, one message for each link between them.
    """

    def seconds(N, latency, transfer, convention, inside):
        def busiest(links, n):
            return max(int(np.bincount(end, minlength=n).max()) for end in links.T)

        def port(degree, latency, transfer):
            held = degree if convention == "blocking" else degree > 0
            return held * latency + degree * transfer

        def turn(links):
            machines = links // inside.size
            same = machines[:, 0] == machines[:, 1]
            within = busiest(links[same], N), inside.latency, inside.transfer
            between = busiest(machines[~same], N // inside.size), latency, transfer
            return np.maximum(port(*within), port(*between))

        turns = [turn(np.asarray(links)) for links in topology.links]
        return sum(turns) / len(turns) if len(turns) > 1 else turns[0]

    def clock(finish, levels, convention, step):
        k, M = levels.size, levels.machines
        machine = (np.arange(len(finish)) // k)[:, None]
        ends = neighbours_at(topology, step)
        totals = [jnp.maximum(1, jnp.sum(lists >= 0, axis=1)) for lists in ends]

        def bits(lists):
            """Returns the bits of the messages to, and from, the workers in these lists."""
            return [
                bits * jnp.sum(each >= 0, axis=1) / total
                for bits, each, total in zip((levels.up, levels.down), lists, totals, strict=True)
            ]

        within = [jnp.where(lists // k == machine, lists, -1) for lists in ends]
        between = [jnp.where(lists // k == machine, -1, lists) for lists in ends]
        ports = levels.inside(*bits(within))
        inner = neighbourhoods(within[0], within[1], finish, ports, convention)
        # Workers without messages to other machines do not wait for those of their machine.
        sends = jnp.any(jnp.concatenate(between, axis=1) >= 0, axis=1)
        ready = jnp.max(jnp.where(sends, finish, -jnp.inf).reshape(M, k), axis=1)
        of_machines = [jnp.where(lists < 0, -1, lists // k).reshape(M, -1) for lists in between]
        ports = levels.card_ports(ready, *bits(between))
        outer = neighbourhoods(of_machines[0], of_machines[1], ready, ports, convention)
        arrived = jnp.where(sends, jnp.repeat(outer.done, k), -jnp.inf)
        return levels.timing(jnp.maximum(inner.done, arrived), inner[1:], outer[1:])

    return Clocks(neighbour_clock(topology), clock, seconds)
