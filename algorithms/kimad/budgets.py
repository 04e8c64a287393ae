"""How many bits a round's time leaves for a message, and the budgets of a round, of what monitors
report.
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
from dsgd.base import Measured, PyTree, Round

Numbers = Annotated[
    float | Sequence[float] | np.ndarray | jax.Array, "a number, or a list or an array of numbers"
]

# the largest float32 that is a uint32
LARGEST = float(np.nextafter(np.float32(2**32), np.float32(0)))


class Budget(NamedTuple):
    """Bits, or seconds, of a message to the server, and of one from it."""

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
    r"""The bits that fill a round: one message up and one down take what computation leaves of its
    time.

    $$ \frac{c_u}{B_u} + \frac{c_d}{B_d} = t - T_{comp}, \quad \frac{c_d}{B_d} = a \frac{c_u}{B_u}
       \qquad\Rightarrow\qquad c_u = B_u \frac{t - T_{comp}}{1 + a}, \quad c_d = a B_d \frac{t -
       T_{comp}}{1 + a} $$

    With a = 1 the first is equation 2. With a = 0 all the time is the uplink's.

    In the paper both messages are as long, and a bit of the second takes a times as long as one of
    the first: $B_d = B_u / a$, so that $c_d = c_u$.

    Args:
        up: $B_u$, bits per second of the uplink, any shape.
        round_time: t, seconds.
        computation: $T_{comp}$, seconds; where it leaves nothing, the bits are 0.
        congestion: a, seconds of the downlink for each second of the uplink.
        down: $B_d$, of the downlink; None: $B_u / a$, the paper's.

    Raises:
        ValueError: bandwidths or times that are negative or NaN, a round without time, a congestion
            that is not finite; shapes that do not fit together.

    Source: Xin et al., "Kimad", section 3.1.
    """
    given = 0.0 if down is None else down
    for what, value, least in (
        ("up", up, "bits per second >= 0"),
        ("down", given, "bits per second >= 0"),
        ("computation", computation, "seconds >= 0"),
    ):
        _need("kimad.budget", what, value, least, lambda x: x >= 0)
    need_times("kimad.budget", round_time, congestion)
    _need_one_shape(
        up=up, down=given, round_time=round_time, computation=computation, congestion=congestion
    )
    times = message_seconds(round_time, computation, congestion)
    to_server = bits(up, times.up)
    return Budget(to_server, to_server if down is None else bits(down, times.down))


def message_seconds(round_time: Numbers, computation: Numbers, congestion: Numbers) -> Budget:
    r"""The seconds that each message has, $\frac{t - T_{comp}}{1 + a}$ and a times that.

    Args:
        round_time, computation, congestion: as of `budget`.
    """
    t, computing, a = map(_real, (round_time, computation, congestion))
    up = jnp.maximum(0, t - computing) / (1 + a)
    return Budget(up, a * up)


def bits(bandwidth: Numbers, seconds: jax.Array) -> jax.Array:
    """What fits into them, 0 into no time whatever the bandwidth."""
    return jnp.where(seconds > 0, _real(bandwidth) * seconds, 0)


def _real(values: Numbers) -> jax.Array:
    """In float32 at least: differences of small integers, and products of half precision, would
    overflow.
    """
    array = jnp.asarray(values)
    return (
        array.astype(jnp.promote_types(array.dtype, jnp.float32))
        if array.dtype.itemsize < 4
        else array
    )


def need_times(caller: str, round_time: Numbers, congestion: Numbers) -> None:
    """Raises a ValueError where a round has no time, or a is no number >= 0."""
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
    """Rounded down to uint32; what nobody knows (NaN), and all above 2^32, is as much as there can
    be.
    """
    return jnp.minimum(jnp.where(jnp.isnan(budget), LARGEST, budget), LARGEST).astype(jnp.uint32)


def _need(caller: str, what: str, value: Numbers, needed: str, holds) -> None:
    if isinstance(value, Tracer):
        return
    wrong = np.asarray(value, float)[~holds(np.asarray(value, float))]
    if wrong.size:
        raise ValueError(f"{caller}: {what} = {wrong.flat[0]:g}; need {needed}")


def _need_one_shape(**values: Numbers) -> None:
    shapes = {what: np.shape(value) for what, value in values.items() if np.ndim(value)}
    try:
        np.broadcast_shapes(*shapes.values())
    except ValueError:
        given = ", ".join(f"{what} {list(shape)}" for what, shape in shapes.items())
        raise ValueError(
            f"kimad.budget: {given}: need numbers, or arrays whose shapes broadcast"
        ) from None


# --- A round.


class Memory(NamedTuple):
    """What the monitors of the links remember, of those to the server and those from it."""

    up: PyTree
    down: PyTree


class Plan(NamedTuple):
    """The budgets in bits, of each worker `[N]` and of the server, and what they come of, for the
    history.
    """

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
    computation: np.ndarray | jax.Array | None,
    congestion: float | jax.Array,
    period: int,
) -> Plan:
    """This round's budgets.

    Args:
        monitor, memory: of the links.
        round: now.
        round_time, congestion: as of `budget`.
        computation: T_comp; None: as measured.
        period: gradients of an update.
    """
    ids, computing = jnp.arange(round.workers), _computing(computation, round, period)
    longest = jnp.max(computing)
    # by this round's clock: rounds before it have computed, too
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
    # if its time is neglected, it has no bound
    to_all = jnp.where(jnp.asarray(congestion) > 0, bits(jnp.min(down), down_seconds), jnp.inf)
    shown = {
        "estimated_up": up,
        "estimated_down": down,
        "bandwidth_up": true_up,
        "bandwidth_down": true_down,
    }
    return Plan(bits(up, up_seconds), to_all, {} if round.cluster is None else shown)


def _computing(computation: np.ndarray | jax.Array | None, round: Round, period: int) -> jax.Array:
    """T_comp of each worker, `[N]`."""
    if computation is not None:
        return jnp.broadcast_to(jnp.asarray(computation, jnp.float32), (round.workers,))
    if round.measured is None:
        return jnp.zeros(round.workers, jnp.float32)
    return period * jnp.nansum(round.measured.compute, axis=1)
