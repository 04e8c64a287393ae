"""Counts the bits of messages of given sizes."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dsgd import workers
from dsgd.base import PyTree
from dsgd.wire import counts

Sizes = int | jax.Array
"""Bits of messages: an int if all have the same size, else uint32, one for each."""


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


class Arrays(NamedTuple):
    """The arrays of one message of an exchange.

    Args:
        number: how many there are.
        bits: their bits; if they are one shard of a message to several servers, those of all
            shards.
    """

    number: float = 1
    bits: float = 0

    def __add__(self, other: Arrays) -> Arrays:  # type: ignore[override]  # adds counts, does not concatenate tuples
        """Returns the arrays of two messages that are sent as one."""
        return Arrays(self.number + other.number, self.bits + other.bits)

    def times(self, factor: float) -> Arrays:
        """Returns a multiple of the number and of the bits."""
        return Arrays(factor * self.number, factor * self.bits)


def count_arrays(tree: PyTree, axes: int = 1) -> Arrays:
    """Returns the arrays of one of the messages in a tree, whose leaves have this number of axes
    before those of the message. Arrays without elements are not sent.
    """
    bits = [
        8 * leaf.dtype.itemsize * math.prod(leaf.shape[axes:])
        for leaf in jax.tree.leaves(tree)
        if leaf.size
    ]
    return Arrays(len(bits), sum(bits))


def none(N: int) -> Bits:
    """Returns the counts of an exchange in which none of the N workers sends anything."""
    zeros = to_one(0, N)
    return Bits(zeros, zeros)


def row_bits(tree: PyTree) -> int:
    """Returns the bits of one worker's rows of leaves `[n, ...]`, uncompressed."""
    return int(count_arrays(tree).bits)


def to_one(sizes: Sizes, N: int) -> jax.Array:
    """Returns the bits of one message per worker; `sizes` is `[n]`, or one int for all workers."""
    return counts.from_bits(sizes, workers.block_size(N))


def to_all(sizes: Sizes, N: int) -> jax.Array:
    """Returns the bits of N - 1 messages per worker; `sizes` is `[n]`, or one int for all."""
    if isinstance(sizes, int):
        return to_one((N - 1) * sizes, N)
    return counts.scale(jnp.full(len(sizes), N - 1, jnp.uint32), to_one(sizes, N))


def to_others(sizes: Sizes, N: int, but: jax.Array | None = None) -> jax.Array:
    """Returns the sum of `sizes`, `[n, N]`, `[N]` or one int for all, over all workers but one: the
    worker `but[i]` for row i, or, if `but` is None, the worker itself.
    """
    if isinstance(sizes, int):
        return to_one((N - 1) * sizes, N)
    left_out = jnp.arange(N)[None, :] == (workers.ids(N) if but is None else but)[:, None]
    each = jnp.where(left_out, jnp.uint32(0), jnp.broadcast_to(sizes, left_out.shape))
    return counts.normalize(jnp.sum(counts.from_bits(each, N), axis=1, dtype=jnp.uint32))


def from_server(size: Sizes, N: int) -> Bits:
    """Returns the bits of one message from a server to each worker, which is the same for all; if
    participation is set, to each worker that participates.

    Args:
        size: bits of the message, an int or a scalar.
        N: number of workers.
    """
    same = size if isinstance(size, int) else jnp.broadcast_to(size, (workers.block_size(N),))
    received = to_one(same, N)
    if participation := workers.participation():
        present = workers.local_block(participation.present, N).astype(jnp.uint32)
        received = counts.scale(present, received)
    return Bits(jnp.zeros_like(received), received)
