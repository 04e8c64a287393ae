"""Bits of an exchange: of leaves that are all-reduced, gathered or sent to neighbours as they are,
and of messages of some length.
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
    """What the workers of a block sent and received; counts of `dsgd.counts`, uint32 `[n, 4]`.

    Args:
        up: bits that each worker sent.
        down: bits that each worker received.
        lost: bits of messages to each worker that were sent and did not arrive; None: none. Its
            port was busy as long.
        messages: how many messages each worker sent, and how many arrived at it, uint32 `[n, 2]`:
            of all-reduces and of servers, its part of the sum. None: they are not counted, as on
            clusters where all arrive.
    """

    up: jax.Array
    down: jax.Array
    lost: jax.Array | None = None
    messages: jax.Array | None = None

    def __add__(self, other: Bits) -> Bits:  # type: ignore[override]  # of two exchanges, not of tuples
        """What two exchanges of a round sent together."""
        lost = [bits for bits in (self.lost, other.lost) if bits is not None]
        messages = [numbers for numbers in (self.messages, other.messages) if numbers is not None]
        return Bits(
            counts.carry(self.up + other.up),
            counts.carry(self.down + other.down),
            counts.carry(sum(lost[1:], lost[0])) if lost else None,
            sum(messages[1:], messages[0]) if messages else None,
        )


def none(N: int) -> Bits:
    """No worker of N sent anything."""
    nothing = counts.of(0, workers.ids(N).shape[0])
    return Bits(nothing, nothing)


def all_reduced(size: int, N: int, pattern: Pattern) -> Bits:
    r"""The workers' rows are summed, or averaged, as they are: each sends $2 \frac{N-1}{N} d$
    elements round a ring, in the mean.

    Nothing is padded: the program has one collective over d elements, whose pieces, if N does not
    divide d, differ in length. Messages through servers are padded, and count their padding. In a
    round with a `workers.attendance`, it is among the workers that participate.

    Args:
        size: bits of one worker's vector.
        N: number of workers.
        pattern: each worker sends, and receives, `pattern.vectors(N)` times its rows.
    """
    if there := workers.attendance():
        each = counts.table([0, *(round(pattern.vectors(m) * size) for m in range(1, N + 1))])
        among = jnp.asarray(each)[jnp.sum(there.present)]
        bits = workers.own(jnp.where(there.present[:, None], among, jnp.uint32(0)), N)
        parts = workers.own(jnp.stack([there.present, there.counted], axis=1).astype(jnp.uint32), N)
        return Bits(bits, bits, messages=parts)
    bits = counts.of(round(pattern.vectors(N) * size), workers.ids(N).shape[0])
    return Bits(bits, bits)


def to_neighbours(
    bits: int | jax.Array, arrived: int | jax.Array, topology: Topology, step: jax.Array
) -> Bits:
    """A message of so many bits goes to each neighbour that a worker sends to (and that
    participates).

    Args:
        bits: an int, or uint32 `[n]` by sender.
        arrived: the same int, or those of the messages that `workers.fetch` brought, uint32 `[m]`:
            a message shows its own length.
        topology: W.
        step: of a schedule.
    """
    if workers.attendance():
        up = workers.receivers(topology, step)
        sent = counts.times(up, counts.of(bits, up.shape[0]))
        each = counts.of(
            arrived, workers.table_rows(topology) if isinstance(arrived, int) else arrived.shape[0]
        )
        heard, lost = (
            counts.carry(workers.sum_of_others(each, topology, step, lost=lost))
            for lost in (False, True)
        )
        came = workers.sum_of_others(jnp.ones((each.shape[0], 1), jnp.uint32), topology, step)
        return Bits(sent, heard, lost=lost, messages=jnp.concatenate([up[:, None], came], axis=1))
    up, down = (
        workers.of_round(numbers.astype(np.uint32), topology, step)
        for numbers in (topology.sends, topology.receives)
    )
    sent = counts.times(up, counts.of(bits, up.shape[0]))
    if isinstance(arrived, int):
        return Bits(sent, counts.times(down, counts.of(arrived, down.shape[0])))
    return Bits(
        sent,
        counts.carry(workers.sum_of_others(counts.of(arrived, arrived.shape[0]), topology, step)),
    )


def to_one(sizes: int | jax.Array, N: int) -> jax.Array:
    """One message of each worker, of sizes `[n]` or one size for all."""
    return counts.of(sizes, workers.ids(N).shape[0])


def to_all(sizes: int | jax.Array, N: int) -> jax.Array:
    """N - 1 messages of each worker, of sizes `[n]` or one size for all."""
    n = workers.ids(N).shape[0]
    return (
        counts.of((N - 1) * sizes, n)
        if isinstance(sizes, int)
        else counts.times(jnp.full(n, N - 1, jnp.uint32), counts.of(sizes, n))
    )


def to_others(sizes: int | jax.Array, N: int, but: jax.Array | None = None) -> jax.Array:
    """The sum of sizes `[n, N]` or `[N]` over all workers except one, `but` `[n]`; None: except the
    worker itself.
    """
    ids = workers.ids(N)
    if isinstance(sizes, int):
        return counts.of((N - 1) * sizes, ids.shape[0])
    left_out = jnp.arange(N)[None, :] == (ids if but is None else but)[:, None]
    each = jnp.where(left_out, jnp.uint32(0), jnp.broadcast_to(sizes, left_out.shape))
    return counts.carry(jnp.sum(counts.of(each, N), axis=1, dtype=jnp.uint32))


def of_tree(tree: PyTree) -> int:
    """Bits of one worker's part of leaves `[n, ...]`, sent as they are."""
    return sum(
        8 * leaf.dtype.itemsize * (leaf.size // leaf.shape[0]) for leaf in jax.tree.leaves(tree)
    )
