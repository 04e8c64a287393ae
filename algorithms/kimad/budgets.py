"""Budgets in bits: the bits that fit into a round's time, and the budgets of a round from the
monitors' estimates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from algorithms.kimad.monitors import Monitor
from dsgd import checks
from dsgd.base import PyTree, Round, Timings

Numbers = Annotated[
    float | Sequence[float] | np.ndarray | jax.Array, "a number, or a list or an array of numbers"
]

# the largest float32 that is a uint32
LARGEST = float(np.nextafter(np.float32(2**32), np.float32(0)))


class Budget(NamedTuple):
    """Bits, or seconds, of a message to the server (`up`) and from the server (`down`)."""

    up: jax.Array
    down: jax.Array


@checks.arguments
def budget(
    up: Numbers,
    round_time: Numbers,
    computation: Numbers = 0.0,
    congestion: Numbers = 1.0,
    down: Numbers | None = None,
) -> Budget:
    r"""Returns the bits that fill a round: one message up and one message down take the time that
    computation leaves.

    $$ \frac{c_u}{B_u} + \frac{c_d}{B_d} = t - T_{comp}, \quad \frac{c_d}{B_d} = a \frac{c_u}{B_u}
       \qquad\Rightarrow\qquad c_u = B_u \frac{t - T_{comp}}{1 + a}, \quad c_d = a B_d \frac{t -
       T_{comp}}{1 + a} $$

    With a = 1 the first equation is equation 2. With a = 0 the uplink has all the time.

    In the paper both messages have the same length, and a bit of the second one takes a times as
    long as a bit of the first: $B_d = B_u / a$, so that $c_d = c_u$.

    Args:
        up: $B_u$, bandwidth of the uplink in bits per second, any shape.
        round_time: t, seconds.
        computation: $T_{comp}$, seconds; if it is t or more, the bits are 0.
        congestion: a, seconds of the downlink for each second of the uplink.
        down: $B_d$, bandwidth of the downlink in bits per second; None: $B_u / a$, as in the paper.

    Raises:
        ValueError: if bandwidths or times are negative or NaN, the round time is not positive and
            finite, the congestion is not finite, or the shapes do not broadcast.

    Source: Xin et al., "Kimad", section 3.1.
    """
    given = 0.0 if down is None else down
    for what, value, least in (
        ("up", up, "bits per second >= 0"),
        ("down", given, "bits per second >= 0"),
        ("computation", computation, "seconds >= 0"),
    ):
        _need("kimad.budget", what, value, least, lambda x: x >= 0)
    require_times("kimad.budget", round_time, congestion)
    _require_one_shape(
        up=up, down=given, round_time=round_time, computation=computation, congestion=congestion
    )
    times = message_seconds(round_time, computation, congestion)
    to_server = bits(up, times.up)
    return Budget(to_server, to_server if down is None else bits(down, times.down))


def message_seconds(round_time: Numbers, computation: Numbers, congestion: Numbers) -> Budget:
    r"""Returns the seconds available for each message, $\frac{t - T_{comp}}{1 + a}$ up and a times
    that down.

    Args:
        round_time, computation, congestion: see `budget`.
    """
    t, computing, a = map(_real, (round_time, computation, congestion))
    up = jnp.maximum(0, t - computing) / (1 + a)
    return Budget(up, a * up)


def bits(bandwidth: Numbers, seconds: jax.Array) -> jax.Array:
    """Returns the bits that fit into the seconds; 0 if there is no time, for any bandwidth."""
    return jnp.where(seconds > 0, _real(bandwidth) * seconds, 0)


def _real(values: Numbers) -> jax.Array:
    """Converts to float32 or more, because differences of small integers and products in half
    precision would overflow.
    """
    array = jnp.asarray(values)
    return (
        array.astype(jnp.promote_types(array.dtype, jnp.float32))
        if array.dtype.itemsize < 4
        else array
    )


def require_times(caller: str, round_time: Numbers, congestion: Numbers) -> None:
    """Raises a ValueError if a round time is not positive and finite, or the congestion is not a
    finite number >= 0.
    """
    _need(
        caller, "round_time", round_time, "seconds > 0, finite", lambda x: (x > 0) & np.isfinite(x)
    )
    _need(
        caller,
        "congestion",
        congestion,
        "a finite number >= 0",
        lambda x: (x >= 0) & np.isfinite(x),
    )


def whole_bits(budget: jax.Array) -> jax.Array:
    """Rounds bits down to uint32. NaN (unknown bandwidth) and all values above 2^32 become the
    largest number.
    """
    return jnp.minimum(jnp.where(jnp.isnan(budget), LARGEST, budget), LARGEST).astype(jnp.uint32)


def _need(caller: str, what: str, value: Numbers, needed: str, holds) -> None:
    if isinstance(value, Tracer):
        return
    wrong = np.asarray(value, float)[~holds(np.asarray(value, float))]
    if wrong.size:
        raise ValueError(f"{caller}: {what} = {wrong.flat[0]:g}; expected {needed}")


def _require_one_shape(**values: Numbers) -> None:
    shapes = {what: np.shape(value) for what, value in values.items() if np.ndim(value)}
    try:
        np.broadcast_shapes(*shapes.values())
    except ValueError:
        given = ", ".join(f"{what} {list(shape)}" for what, shape in shapes.items())
        raise ValueError(
            f"kimad.budget: {given}; expected numbers, or arrays whose shapes broadcast"
        ) from None


# --- A round.


class Memory(NamedTuple):
    """States of the monitors of the links to the server (`up`) and from it (`down`)."""

    up: PyTree
    down: PyTree


class Plan(NamedTuple):
    """Budgets of a round.

    Args:
        up: bits of each worker, `[N]`.
        down: bits of the server.
        shown: estimated and true bandwidths, for the history.
    """

    up: jax.Array
    down: jax.Array
    shown: dict[str, jax.Array]


def first_memory(monitor: Monitor, N: int) -> Memory:
    """Returns the states before any link has carried a message."""
    return Memory(monitor.start(N), monitor.start(N))


def update_monitor(monitor: Monitor, memory: Memory, measured: Timings | None) -> Memory:
    """Returns the states updated with the last round's messages."""
    if measured is None:
        return memory
    up, down = (
        jnp.where(bits > 0, bits / seconds, jnp.nan)
        for bits, seconds in ((measured.bits_up, measured.up), (measured.bits_down, measured.down))
    )
    return Memory(monitor.observe(memory.up, up), monitor.observe(memory.down, down))


def budget_of_round(
    monitor: Monitor,
    memory: Memory,
    round: Round,
    round_time: float | jax.Array,
    computation: np.ndarray | jax.Array | None,
    congestion: float | jax.Array,
    period: int,
) -> Plan:
    """Returns the budgets of a round.

    Args:
        monitor, memory: of the links.
        round: the current round.
        round_time, congestion: see `budget`.
        computation: T_comp; None: as measured.
        period: number of gradients in an update.
    """
    ids, computing = jnp.arange(round.workers), _computing(computation, round, period)
    longest = jnp.max(computing)
    # on this round's clock; earlier rounds of the period have computed, too
    begin = computing - (1 - 1 / period) * longest
    up_seconds = message_seconds(round_time, computing, congestion).up
    down_seconds = message_seconds(round_time, longest, congestion).down
    if round.cluster is None:
        true_up = true_down = jnp.full(round.workers, jnp.inf, jnp.float32)
    else:
        arrived = jnp.max(begin + up_seconds) + round.cluster.latency
        true_up, _ = round.cluster.bandwidths(round, ids, begin, up_seconds)
        _, true_down = round.cluster.bandwidths(
            round, ids, arrived + round.cluster.latency, down_seconds
        )
    up, down = monitor.estimate(memory.up, true_up), monitor.estimate(memory.down, true_down)
    # without congestion the downlink's time is neglected, and its message is not limited
    to_all = jnp.where(jnp.asarray(congestion) > 0, bits(jnp.min(down), down_seconds), jnp.inf)
    shown = {
        "estimated_up": up,
        "estimated_down": down,
        "bandwidth_up": true_up,
        "bandwidth_down": true_down,
    }
    return Plan(bits(up, up_seconds), to_all, {} if round.cluster is None else shown)


def _computing(computation: np.ndarray | jax.Array | None, round: Round, period: int) -> jax.Array:
    """Returns T_comp of each worker, `[N]`."""
    if computation is not None:
        return jnp.broadcast_to(jnp.asarray(computation, jnp.float32), (round.workers,))
    if round.timings is None:
        return jnp.zeros(round.workers, jnp.float32)
    return period * jnp.nansum(round.timings.compute, axis=1)
