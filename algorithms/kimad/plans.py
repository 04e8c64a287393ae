"""A round's budgets, of what monitors say; and what was true."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.kimad import budgets
from algorithms.kimad.monitors import Monitor
from dsgd.base import Measured, PyTree, Round


class Memory(NamedTuple):
    """What the monitors of the links remember, of those to the server and those from it."""

    up: PyTree
    down: PyTree


class Plan(NamedTuple):
    """The budgets in bits, of each worker `[N]` and of the server, and what they come of, for the history."""

    up: jax.Array
    down: jax.Array
    shown: dict[str, jax.Array]


def first_memory(monitor: Monitor, N: int) -> Memory:
    """Nothing has gone over any link."""
    return Memory(monitor.start(N), monitor.start(N))


def observed(monitor: Monitor, memory: Memory, measured: Measured | None) -> Memory:
    """After the last round's messages."""
    if measured is None:
        return memory
    up, down = (
        jnp.where(bits > 0, bits / seconds, jnp.nan)
        for bits, seconds in ((measured.bits_up, measured.up), (measured.bits_down, measured.down))
    )
    return Memory(monitor.observe(memory.up, up), monitor.observe(memory.down, down))


def of_round(
    monitor: Monitor,
    memory: Memory,
    round: Round,
    round_time: float | jax.Array,
    seconds: np.ndarray | jax.Array | None,
    congestion: float | jax.Array,
    period: int,
) -> Plan:
    """This round's budgets.

    Args:
        monitor, memory: of the links.
        round: now.
        round_time, congestion: as of `budgets.budget`.
        seconds: T_comp; None: as measured.
        period: gradients of an update.
    """
    ids, computing = jnp.arange(round.workers), _computing(seconds, round, period)
    longest = jnp.max(computing)
    begin = computing - (1 - 1 / period) * longest  # by this round's clock: rounds before it have computed, too
    up_seconds = budgets.seconds(round_time, computing, congestion).up
    down_seconds = budgets.seconds(round_time, longest, congestion).down
    if round.cluster is None:
        true_up = true_down = jnp.full(round.workers, jnp.inf, jnp.float32)
    else:
        arrived = jnp.max(begin + up_seconds) + round.cluster.latency
        true_up, _ = round.cluster.bandwidths(round, ids, begin, up_seconds)
        _, true_down = round.cluster.bandwidths(round, ids, arrived + round.cluster.latency, down_seconds)
    up, down = monitor.estimate(memory.up, true_up), monitor.estimate(memory.down, true_down)
    to_all = jnp.where(
        jnp.asarray(congestion) > 0, budgets.bits(jnp.min(down), down_seconds), jnp.inf
    )  # whose time is neglected needs none
    shown = {"estimated_up": up, "estimated_down": down, "bandwidth_up": true_up, "bandwidth_down": true_down}
    return Plan(budgets.bits(up, up_seconds), to_all, {} if round.cluster is None else shown)


def _computing(seconds: np.ndarray | jax.Array | None, round: Round, period: int) -> jax.Array:
    """T_comp of each worker, `[N]`."""
    if seconds is not None:
        return jnp.broadcast_to(jnp.asarray(seconds, jnp.float32), (round.workers,))
    if round.measured is None:
        return jnp.zeros(round.workers, jnp.float32)
    return period * jnp.nansum(round.measured.compute, axis=1)
