"""Counts the bits of an exchange: of leaves that are all-reduced, gathered or sent to neighbours
uncompressed, and of messages of given sizes.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import workers
from dsgd.base import Pattern, PyTree
from dsgd.graphs.topology import Topology
from dsgd.wire import counts


class Bits(NamedTuple):
    """Bits that the workers of a block sent and received. Counts are those of `dsgd.wire.counts`,
    uint32 `[n, 4]`.

    Args:
        up: bits that each worker sent.
        down: bits that each worker received.
        lost: bits of messages to each worker that were sent but did not arrive; None if no message
            can be lost. The receiving port was busy for as long as if they had arrived.
        messages: number of messages that each worker sent and that arrived at it, uint32 `[n, 2]`.
            In an all-reduce or an exchange with servers, a worker's contribution to the sum counts
            as one message. None: messages are not counted, because all of them arrive.
    """

    up: jax.Array
    down: jax.Array
    lost: jax.Array | None = None
    messages: jax.Array | None = None

    def __add__(self, other: Bits) -> Bits:  # type: ignore[override]  # adds counts, does not concatenate tuples
        """Returns the total of two exchanges of a round."""
        lost = [bits for bits in (self.lost, other.lost) if bits is not None]
        messages = [numbers for numbers in (self.messages, other.messages) if numbers is not None]
        return Bits(
            counts.normalize(self.up + other.up),
            counts.normalize(self.down + other.down),
            counts.normalize(sum(lost[1:], lost[0])) if lost else None,
            sum(messages[1:], messages[0]) if messages else None,
        )


def none(N: int) -> Bits:
    """Returns the counts of an exchange in which none of the N workers sends anything."""
    zeros = counts.from_bits(0, workers.ids(N).shape[0])
    return Bits(zeros, zeros)


def all_reduced(size: int, N: int, pattern: Pattern) -> Bits:
    r"""Returns the bits of an all-reduce of the workers' rows, uncompressed. On a ring each worker
    sends $2 \frac{N-1}{N} d$ elements on average.

    Padding is not counted: the program has one collective over d elements, whose pieces differ in
    length if N does not divide d. (Messages through servers are padded, and their padding counts.)
    If `workers.participation` is set, the all-reduce is among the workers that participate.

    Args:
        size: bits of one worker's vector.
        N: number of workers.
        pattern: how the all-reduce is done; each worker sends, and receives, `pattern.volume(N)`
            times its own vector.
    """
    if participation := workers.participation():
        sizes = counts.table([0, *(round(pattern.volume(m) * size) for m in range(1, N + 1))])
        bits_sent = jnp.asarray(sizes)[jnp.sum(participation.present)]
        bits = workers.local_block(
            jnp.where(participation.present[:, None], bits_sent, jnp.uint32(0)), N
        )
        parts = workers.local_block(
            jnp.stack([participation.present, participation.counted], axis=1).astype(jnp.uint32), N
        )
        return Bits(bits, bits, messages=parts)
    bits = counts.from_bits(round(pattern.volume(N) * size), workers.ids(N).shape[0])
    return Bits(bits, bits)


def to_server(sizes: int | jax.Array, N: int) -> Bits:
    """Returns the bits of one message from each worker to a server; if participation is set, from
    each worker that participates.

    Args:
        sizes: bits of the messages: uint32 `[n]`, or one int for all workers.
        N: number of workers.
    """
    sent = to_one(sizes, N)
    if not (participation := workers.participation()):
        return Bits(sent, jnp.zeros_like(sent))
    parts = workers.local_block(
        jnp.stack([participation.present, participation.counted], axis=1).astype(jnp.uint32), N
    )
    return Bits(counts.scale(parts[:, 0], sent), jnp.zeros_like(sent), messages=parts)


def from_server(size: int | jax.Array, N: int) -> Bits:
    """Returns the bits of one message from a server to each worker, which is the same for all; if
    participation is set, to each worker that participates.

    Args:
        size: bits of the message: a uint32 scalar, or an int.
        N: number of workers.
    """
    n = workers.ids(N).shape[0]
    received = to_one(size if isinstance(size, int) else jnp.broadcast_to(size, (n,)), N)
    if participation := workers.participation():
        present = workers.local_block(participation.present, N).astype(jnp.uint32)
        received = counts.scale(present, received)
    return Bits(jnp.zeros_like(received), received)


def to_neighbours(
    bits: int | jax.Array, arrived: int | jax.Array, topology: Topology, step: jax.Array
) -> Bits:
    """Returns the bits of messages from each worker to all of its neighbours; if participation is
    set, to those neighbours that participate.

    Args:
        bits: bits of one message: an int if it is the same for all workers, or uint32 `[n]`, by
            sender.
        arrived: the same int, or the sizes of the messages that `workers.gather_neighbours`
            returned, uint32 `[m]`: receivers read the size from the message itself.
        topology: W.
        step: number of the exchange; selects the graph if the topology is a schedule.
    """
    if workers.participation():
        up = workers.out_degree(topology, step)
        sent = counts.scale(up, counts.from_bits(bits, up.shape[0]))
        sizes = counts.from_bits(
            arrived, workers.table_size(topology) if isinstance(arrived, int) else arrived.shape[0]
        )
        received, lost = (
            counts.normalize(workers.neighbour_sum(sizes, topology, step, lost=lost))
            for lost in (False, True)
        )
        arrivals = workers.neighbour_sum(jnp.ones((sizes.shape[0], 1), jnp.uint32), topology, step)
        return Bits(
            sent, received, lost=lost, messages=jnp.concatenate([up[:, None], arrivals], axis=1)
        )
    up, down = (
        workers.of_round(numbers.astype(np.uint32), topology, step)
        for numbers in (topology.out_degrees, topology.in_degrees)
    )
    sent = counts.scale(up, counts.from_bits(bits, up.shape[0]))
    if isinstance(arrived, int):
        return Bits(sent, counts.scale(down, counts.from_bits(arrived, down.shape[0])))
    return Bits(
        sent,
        counts.normalize(
            workers.neighbour_sum(counts.from_bits(arrived, arrived.shape[0]), topology, step)
        ),
    )


def to_one(sizes: int | jax.Array, N: int) -> jax.Array:
    """Returns the bits of one message per worker; `sizes` is `[n]`, or one int for all workers."""
    return counts.from_bits(sizes, workers.ids(N).shape[0])


def to_all(sizes: int | jax.Array, N: int) -> jax.Array:
    """Returns the bits of N - 1 messages per worker; `sizes` is `[n]`, or one int for all."""
    n = workers.ids(N).shape[0]
    return (
        counts.from_bits((N - 1) * sizes, n)
        if isinstance(sizes, int)
        else counts.scale(jnp.full(n, N - 1, jnp.uint32), counts.from_bits(sizes, n))
    )


def to_others(sizes: int | jax.Array, N: int, but: jax.Array | None = None) -> jax.Array:
    """Returns the sum of `sizes`, `[n, N]`, `[N]` or one int for all, over all workers but one: the
    worker `but[i]` for row i, or, if `but` is None, the worker itself.
    """
    ids = workers.ids(N)
    if isinstance(sizes, int):
        return counts.from_bits((N - 1) * sizes, ids.shape[0])
    left_out = jnp.arange(N)[None, :] == (ids if but is None else but)[:, None]
    each = jnp.where(left_out, jnp.uint32(0), jnp.broadcast_to(sizes, left_out.shape))
    return counts.normalize(jnp.sum(counts.from_bits(each, N), axis=1, dtype=jnp.uint32))


def of_tree(tree: PyTree) -> int:
    """Returns the bits of one worker's rows of leaves `[n, ...]`, uncompressed."""
    return sum(
        8 * leaf.dtype.itemsize * (leaf.size // leaf.shape[0]) for leaf in jax.tree.leaves(tree)
    )
