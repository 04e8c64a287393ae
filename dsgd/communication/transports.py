"""The kinds of exchanges: for each, how messages move between workers, their bits, their pattern on
the switch, and what absent workers and lost messages change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import network, workers
from dsgd.base import Pattern
from dsgd.communication import bits
from dsgd.communication.bits import Bits, Sizes
from dsgd.graphs.topology import Topology
from dsgd.network import AllReduce, NServers, OneServer
from dsgd.network.levels import around_ring
from dsgd.wire import counts


class Transport(NamedTuple):
    """How the messages of one exchange reach their receivers.

    Args:
        pattern: how the messages pass through the switch, for the clock.
        bits: (sizes of the messages that workers send, sizes of those that arrive) -> `Bits`. The
            sizes are the same int, or `[n]` by sender and `[m]` in the order in which `move`
            returns the messages.
        move: messages of the block's workers, leaves `[n, ...]` -> messages that arrive at them,
            `[m, ...]`.
        simulated: whether, on several devices, other collectives are used in place of the modelled
            messages (one server, pairs of workers chosen in the loop), so that the traffic between
            devices differs from that of the messages.
        label: text after the call's name, such as " on ring(8)".
        topology: the graph, if the messages are sent to neighbours.
        has_reply: whether the receivers reply in the same exchange.
        needs_all: why all workers and messages are needed; "" if workers may be absent and messages
            may be lost.
    """

    pattern: Pattern
    bits: Callable[[Sizes, Sizes], Bits]
    move: Callable = lambda messages: messages
    simulated: bool = False
    label: str = ""
    topology: Topology | None = None
    has_reply: bool = False
    needs_all: str = ""


def all_reduce(pattern: AllReduce, N: int) -> Transport:
    r"""Returns the transport of an all-reduce of uncompressed rows. On a ring each worker sends
    $2 \frac{N-1}{N} d$ elements on average.

    Padding is not counted: the program has one collective over d elements, in pieces that differ in
    length if N does not divide d. (Messages through servers are padded, and their padding counts.)
    If workers are absent, the all-reduce is among the workers that participate.

    Args:
        pattern: how the all-reduce is done; each worker sends, and receives, `pattern.volume(N)`
            times its own vector.
        N: number of workers.
    """

    def count(size, _):
        if not (participation := workers.participation()):
            sent = bits.to_one(round(pattern.volume(N) * size), N)
            return Bits(sent, sent)
        by_number = counts.table([0, *(round(pattern.volume(m) * size) for m in range(1, N + 1))])
        each = jnp.asarray(by_number)[jnp.sum(participation.present)]
        sent = jnp.where(participation.present[:, None], each, jnp.uint32(0))
        sent = workers.local_block(sent, N)
        return Bits(sent, sent, messages=_contributions(participation, N))

    on_ring = pattern.volume(N) == network.ring_all_reduce.volume(N)
    simulated = isinstance(pattern, OneServer) or not on_ring
    return Transport(pattern, count, simulated=simulated, label=f" via {pattern.name}")


def within_blocks(size: int, N: int) -> Transport:
    """Returns the transport of an all-reduce of uncompressed rows in each block of consecutive
    workers.

    Args:
        size: number of workers in a block.
        N: number of workers.
    """
    pattern = network.block_all_reduce(size)

    def count(bits_of_row, _):
        sent = bits.to_one(round(pattern.volume(N) * bits_of_row), N)
        return Bits(sent, sent)

    return Transport(
        pattern, count, label=f" via {pattern.name}", needs_all="a block needs all of its workers"
    )


def to_all(N: int) -> Transport:
    """Returns the transport of one message from each of N workers to all others."""
    return Transport(
        network.all_gather,
        lambda sent, arrived: Bits(bits.to_all(sent, N), bits.to_others(arrived, N)),
        workers.gather,
        needs_all="each worker needs the messages of all others",
    )


def to_neighbours(topology: Topology, turn: jax.Array, needs_all: str = "") -> Transport:
    """Returns the transport of messages from each worker to all of its neighbours. If workers are
    absent, messages are sent between those that participate; some of them may be lost.

    Args:
        topology: W.
        turn: number of the exchange; selects the graph if the topology is a schedule.
        needs_all: as in `Transport`.
    """

    def count(sent, arrived):
        if workers.participation():
            return _count_arrivals(sent, arrived, topology, turn)
        up, down = (
            workers.round_rows(numbers.astype(np.uint32), topology, turn)
            for numbers in (topology.out_degrees, topology.in_degrees)
        )
        n = len(up)
        received = (
            counts.scale(down, counts.from_bits(arrived, n))
            if isinstance(arrived, int)
            else counts.normalize(
                workers.neighbour_sum(counts.from_bits(arrived, len(arrived)), topology, turn)
            )
        )
        return Bits(counts.scale(up, counts.from_bits(sent, n)), received)

    return Transport(
        network.gossip(topology),
        count,
        lambda messages: workers.gather_neighbours(messages, topology, turn),
        label=f" on {topology.name}",
        topology=topology,
        needs_all=needs_all,
    )


def _count_arrivals(sent: Sizes, arrived: Sizes, topology: Topology, turn: jax.Array) -> Bits:
    """Returns the bits of messages to neighbours in a round with participation set."""
    up = workers.out_degree(topology, turn)
    rows = workers.table_size(topology) if isinstance(arrived, int) else len(arrived)
    sizes = counts.from_bits(arrived, rows)
    received, lost = (
        counts.normalize(workers.neighbour_sum(sizes, topology, turn, lost=lost))
        for lost in (False, True)
    )
    arrivals = workers.neighbour_sum(jnp.ones((rows, 1), jnp.uint32), topology, turn)
    return Bits(
        counts.scale(up, counts.from_bits(sent, len(up))),
        received,
        lost=lost,
        messages=jnp.concatenate([up[:, None], arrivals], axis=1),
    )


def to_servers(pattern: NServers, N: int) -> Transport:
    """Returns the transport of one message from each worker to each of N servers, which run on the
    workers: messages `[n, N, ...]`.
    """
    return Transport(
        pattern,
        lambda sent, arrived: Bits(bits.to_others(sent, N), bits.to_others(arrived, N)),
        workers.all_to_all,
        has_reply=True,
        needs_all="each worker is the server of a shard of the model, which no other worker has",
    )


def to_server(pattern: OneServer, N: int, senders: jax.Array | None = None) -> Transport:
    """Returns the transport of one message from each worker to one server, which is no worker. If
    workers are absent, those that participate send a message, which may be lost.

    Args:
        pattern: how the messages reach the server.
        N: number of workers.
        senders: workers of the block that send a message, bool `[n]`; None: all.
    """

    def count(sizes, _):
        sent = bits.to_one(sizes, N)
        total = Bits(sent, jnp.zeros_like(sent))
        if participation := workers.participation():
            messages = _contributions(participation, N)
            total = total._replace(up=counts.scale(messages[:, 0], sent), messages=messages)
        if senders is None:
            return total
        sends = senders[:, None]
        return jax.tree.map(lambda each: jnp.where(sends, each, jnp.uint32(0)), total)

    return Transport(pattern, count, simulated=True, has_reply=True)


def ring_hops(N: int) -> Transport:
    """Returns the transport of a hop of messages that go from worker to worker around a ring."""
    return Transport(
        around_ring(network.ring_all_reduce),
        lambda sent, arrived: Bits(bits.to_one(sent, N), bits.to_one(arrived, N)),
        lambda messages: workers.ring_shift(messages, 1),
        needs_all="each worker adds its own vector to the message of the worker before it",
    )


def _contributions(participation: workers.Participation, N: int) -> jax.Array:
    """Returns the number of contributions to a sum that each worker sends and that arrive, uint32
    `[n, 2]`.
    """
    parts = jnp.stack([participation.present, participation.counted], axis=1)
    return workers.local_block(parts.astype(jnp.uint32), N)
