r"""How much of something has come by a time, $\int_t^{t+s} B(u)\,du$, and how long so much takes.

Integrals are written in what is left of a period or an interval at t, never as the difference of
two large numbers: at a late clock a short message is as exact as at an early one, but for what
float32 holds of the clock itself.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_LARGEST = int(np.finfo(np.float32).max.view(np.int32))


def quadrature(
    rate: Callable[[jax.Array], jax.Array], clock: jax.Array, seconds: jax.Array
) -> jax.Array:
    """Gauss-Legendre of 64 nodes: to rounding where the rate is smooth; a jump costs it up to a
    fortieth of itself.

    Args:
        rate: of the clock.
        clock, seconds: t and s.
    """
    clocks = clock + seconds * jnp.asarray((1 + _NODES) / 2, jnp.float32)
    return seconds * jnp.sum(jnp.asarray(_WEIGHTS / 2, jnp.float32) * jax.vmap(rate)(clocks))


def of_sinusoid(
    eta: float, theta: float, delta: float, clock: jax.Array, seconds: jax.Array
) -> jax.Array:
    r"""$\int \eta \sin^2(\theta u) + \delta\,du = s \left(\delta + \eta \left[\tfrac12 (1 - \operatorname{sinc} \theta s)
    + \sin^2(\theta (t + \tfrac s2)) \operatorname{sinc} \theta
    s\right]\right)$: no term is negative as long as sinc is not."""
    x = theta * seconds
    square = x * x
    # of 1 - sinc x, which is rounded away near 0
    series = square / 6 * (1 - square / 20 * (1 - square / 42))
    apart = jnp.where(x < 0.5, series, 1 - jnp.sin(x) / jnp.where(x > 0, x, 1))
    start = theta * clock  # which a late clock would round half a short message away from
    middle = jnp.sin(start) * jnp.cos(x / 2) + jnp.cos(start) * jnp.sin(x / 2)
    return seconds * (delta + eta * (apart / 2 + middle**2 * (1 - apart)))


def of_square_wave(
    high: float, low: float, period: float, duty: float, clock: jax.Array, seconds: jax.Array
) -> jax.Array:
    """High for the first part of each period, then low."""
    phase, first = jnp.mod(clock, period), duty * period
    begun = jnp.minimum(seconds, period - phase)
    whole = jnp.floor((seconds - begun) / period)
    rest = jnp.clip(seconds - begun - whole * period, 0, period)
    above = jnp.clip(first - phase, 0, begun) + whole * first + jnp.minimum(rest, first)
    return high * above + low * jnp.maximum(seconds - above, 0)


def sums_of(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of `[rows, samples]`: the sums of the first k of each row, twice over, as two float32 whose
    differences are exact enough, `[rows, 2 samples + 1]` each."""
    sums = np.concatenate(
        [np.zeros((len(table), 1)), np.cumsum(np.tile(table.astype(np.float64), 2), axis=1)], axis=1
    )
    large = sums.astype(np.float32)
    return large, (sums - large).astype(np.float32)


def of_trace(
    table: np.ndarray,
    sums: tuple[np.ndarray, np.ndarray],
    interval: float,
    row: jax.Array | int,
    clock: jax.Array,
    seconds: jax.Array,
) -> jax.Array:
    """A recording that begins again when it is over.

    Args:
        table: `[rows, samples]`.
        sums: of it, from `sums_of`.
        interval: seconds of a sample.
        row: which.
        clock, seconds: t and s.
    """
    n = table.shape[1]
    values, (large, small) = jnp.asarray(table)[row], (jnp.asarray(part)[row] for part in sums)
    place = jnp.floor(clock / interval)
    now = place.astype(jnp.int32) % n
    begun = jnp.minimum(seconds, (1 - (clock / interval - place)) * interval)
    later = (seconds - begun) / interval  # in samples
    laps = jnp.floor(later / n)
    later = jnp.clip(later - laps * n, 0, n)
    whole = jnp.minimum(jnp.floor(later), n - 1)
    start, end = now + 1, now + 1 + whole.astype(jnp.int32)
    passed = (large[end] - large[start]) + (small[end] - small[start])
    return begun * values[now] + interval * (
        laps * large[n] + passed + (later - whole) * values[end % n]
    )


def needed(amount: Callable[[jax.Array], jax.Array], wanted: jax.Array) -> jax.Array:
    """The least number of seconds in which so much comes.

    Float32 that are not negative are in the order of their bits as integers: 31 halvings from all
    of them to one.

    Args:
        amount: of seconds; it grows with them.
        wanted: a scalar; 0 comes in no time.
    """

    def halve(_, ends):
        low, high = ends  # too few, and enough
        middle = low + (high - low) // 2
        enough = amount(lax.bitcast_convert_type(middle, jnp.float32)) >= wanted
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    ends = lax.fori_loop(0, 31, halve, (jnp.int32(-1), jnp.int32(_LARGEST)))
    return lax.bitcast_convert_type(ends[1], jnp.float32)
