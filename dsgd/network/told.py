"""What a round sent, told as `Info`: of leaves that were all-reduced or went to neighbours, or of messages of some length."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import workers
from dsgd.base import Info, Pattern, PyTree
from dsgd.graphs.topology import Topology
from dsgd.network.patterns import ring_all_reduce
from dsgd.wire import counts


def nothing(N: int) -> Info:
    """Nobody sent anything.

    Args:
        N: number of workers.
    """
    none = counts.of(0, workers.ids(N).shape[0])
    return Info(none, none)


def all_reduced(tree: PyTree, N: int, pattern: Pattern = ring_all_reduce) -> Info:
    r"""Everybody's rows were summed, or averaged, as they are: $2 \frac{N-1}{N} d$ elements were sent by each, in the mean over workers.

    Nothing is padded: what the program holds is one collective over d elements, whose pieces, where N does not divide d, are not all as
    long. Messages through servers are, and count their padding. Of a round with a `workers.attendance`, it is among those that are there.

    Args:
        tree: leaves `[n, ...]`.
        N: number of workers.
        pattern: how, if not round a ring: each worker sends, and receives, `pattern.vectors(N)` times its rows.
    """
    if there := workers.attendance():
        each = counts.table([0, *(round(pattern.vectors(m) * bits_of(tree)) for m in range(1, N + 1))])
        among = jnp.asarray(each)[jnp.sum(there.present)]
        bits = workers.own(jnp.where(there.present[:, None], among, jnp.uint32(0)), N)
        parts = workers.own(jnp.stack([there.present, there.counted], axis=1).astype(jnp.uint32), N)
        return Info(bits, bits, messages=parts)
    bits = counts.of(round(pattern.vectors(N) * bits_of(tree)), workers.ids(N).shape[0])
    return Info(bits, bits)


def to_neighbours(tree: PyTree, topology: Topology, step: jax.Array) -> Info:
    """Every worker's rows went, as they are, to those that it sends to.

    Args:
        tree: leaves `[n, ...]`.
        topology: W.
        step: the present round, of a schedule.
    """
    bits = bits_of(tree)
    return messages(bits, bits, topology, step)


def messages(bits: int | jax.Array, arrived: int | jax.Array, topology: Topology, step: jax.Array) -> Info:
    """A message of so many bits went to each that one sends to (and that is there).

    Args:
        bits: an int, or uint32 `[n]` by sender.
        arrived: the same int, or those of the messages that `workers.fetch` brought, uint32 `[m]`: what has come says how long it is.
        topology: W.
        step: the present round, of a schedule.
    """
    if workers.attendance():
        up = workers.receivers(topology, step)
        sent = counts.times(up, counts.of(bits, up.shape[0]))
        each = counts.of(arrived, workers.table_rows(topology) if isinstance(arrived, int) else arrived.shape[0])
        heard, lost = (counts.carry(workers.sum_of_others(each, topology, step, lost=lost)) for lost in (False, True))
        came = workers.sum_of_others(jnp.ones((each.shape[0], 1), jnp.uint32), topology, step)
        return Info(sent, heard, lost=lost, messages=jnp.concatenate([up[:, None], came], axis=1))
    up, down = (workers.of_round(numbers.astype(np.uint32), topology, step) for numbers in (topology.sends, topology.receives))
    sent = counts.times(up, counts.of(bits, up.shape[0]))
    if isinstance(arrived, int):
        return Info(sent, counts.times(down, counts.of(arrived, down.shape[0])))
    return Info(sent, counts.carry(workers.sum_of_others(counts.of(arrived, arrived.shape[0]), topology, step)))


def both(info: Info, more: Info) -> Info:
    """What two exchanges of a round sent together. Metrics and times are the first one's."""
    lost = [bits for bits in (info.lost, more.lost) if bits is not None]
    messages = [numbers for numbers in (info.messages, more.messages) if numbers is not None]
    return info._replace(
        bits_up=counts.carry(info.bits_up + more.bits_up),
        bits_down=counts.carry(info.bits_down + more.bits_down),
        lost=counts.carry(sum(lost[1:], lost[0])) if lost else None,
        messages=sum(messages[1:], messages[0]) if messages else None,
    )


def only_if(now: jax.Array, info: Info) -> Info:
    """The same where it was sent, else nothing: of methods that send in some rounds only.

    Args:
        now: bool scalar.
        info: what such a round sends.
    """
    sent = info.bits_up, info.bits_down, info.lost, info.messages
    up, down, lost, messages = jax.tree.map(lambda numbers: jnp.where(now, numbers, jnp.uint32(0)), sent)
    return info._replace(bits_up=up, bits_down=down, lost=lost, messages=messages)


def bits_of(tree: PyTree) -> int:
    """Bits of one worker's part of leaves `[n, ...]`, sent as they are."""
    return sum(8 * leaf.dtype.itemsize * (leaf.size // leaf.shape[0]) for leaf in jax.tree.leaves(tree))
