r"""Integrals of quantities over time, $\int_t^{t+s} B(u)\,du$, and their inverses.

Integrals are computed from what remains of a period or an interval at t, never as the difference of
two large numbers. A short message is therefore as accurate at a late clock as at an early one, up
to the float32 rounding of the clock itself.
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
    """Integrates by Gauss-Legendre quadrature with 64 nodes. It is exact up to rounding for smooth
    rates; a jump of the rate causes an error of up to a fortieth of the jump times s.

    Args:
        rate: function of the clock.
        clock, seconds: t and s.
    """
    clocks = clock + seconds * jnp.asarray((1 + _NODES) / 2, jnp.float32)
    return seconds * jnp.sum(jnp.asarray(_WEIGHTS / 2, jnp.float32) * jax.vmap(rate)(clocks))


def integrate_sinusoid(
    eta: float, theta: float, delta: float, clock: jax.Array, seconds: jax.Array
) -> jax.Array:
    r"""Integrates a squared sine:

    $$ \int_t^{t+s} \eta \sin^2(\theta u) + \delta\,du = s \left(\delta + \eta \left[\tfrac12 (1 -
    \operatorname{sinc} \theta s) + \sin^2(\theta (t + \tfrac s2)) \operatorname{sinc} \theta
    s\right]\right) $$

    No term is negative while sinc is not negative.
    """
    x = theta * seconds
    square = x * x
    # Taylor series of 1 - sinc x, whose direct computation loses all digits near 0.
    series = square / 6 * (1 - square / 20 * (1 - square / 42))
    one_minus_sinc = jnp.where(x < 0.5, series, 1 - jnp.sin(x) / jnp.where(x > 0, x, 1))
    # theta * (clock + seconds / 2) would lose digits of a short message at a late clock.
    start = theta * clock
    middle = jnp.sin(start) * jnp.cos(x / 2) + jnp.cos(start) * jnp.sin(x / 2)
    return seconds * (delta + eta * (one_minus_sinc / 2 + middle**2 * (1 - one_minus_sinc)))


def integrate_square_wave(
    high: float, low: float, period: float, duty: float, clock: jax.Array, seconds: jax.Array
) -> jax.Array:
    """Integrates a rate that is `high` in the first part of each period, then `low`."""
    phase, first = jnp.mod(clock, period), duty * period
    in_first_period = jnp.minimum(seconds, period - phase)
    periods = jnp.floor((seconds - in_first_period) / period)
    rest = jnp.clip(seconds - in_first_period - periods * period, 0, period)
    seconds_high = (
        jnp.clip(first - phase, 0, in_first_period) + periods * first + jnp.minimum(rest, first)
    )
    return high * seconds_high + low * jnp.maximum(seconds - seconds_high, 0)


def cumulative_sums(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the cumulative sums of two repetitions of each row, `[rows, samples]`, beginning with
    0, as two float32 arrays (large and small parts) `[rows, 2 samples + 1]`, so that differences of
    sums keep float32 accuracy.
    """
    sums = np.concatenate(
        [np.zeros((len(table), 1)), np.cumsum(np.tile(table.astype(np.float64), 2), axis=1)], axis=1
    )
    large = sums.astype(np.float32)
    return large, (sums - large).astype(np.float32)


def integrate_trace(
    table: np.ndarray,
    sums: tuple[np.ndarray, np.ndarray],
    interval: float,
    row: jax.Array | int,
    clock: jax.Array,
    seconds: jax.Array,
) -> jax.Array:
    """Integrates a recording that repeats when it ends.

    Args:
        table: `[rows, samples]`.
        sums: `cumulative_sums(table)`.
        interval: seconds per sample.
        row: row of the table.
        clock, seconds: t and s.
    """
    n = table.shape[1]
    values, (large, small) = jnp.asarray(table)[row], (jnp.asarray(part)[row] for part in sums)
    place = jnp.floor(clock / interval)
    index = place.astype(jnp.int32) % n
    in_first_sample = jnp.minimum(seconds, (1 - (clock / interval - place)) * interval)
    samples = (seconds - in_first_sample) / interval
    laps = jnp.floor(samples / n)
    samples = jnp.clip(samples - laps * n, 0, n)
    whole_samples = jnp.minimum(jnp.floor(samples), n - 1)
    start, end = index + 1, index + 1 + whole_samples.astype(jnp.int32)
    passed = (large[end] - large[start]) + (small[end] - small[start])
    return in_first_sample * values[index] + interval * (
        laps * large[n] + passed + (samples - whole_samples) * values[end % n]
    )


def seconds_needed(amount: Callable[[jax.Array], jax.Array], wanted: jax.Array) -> jax.Array:
    """Returns the least number of seconds whose amount is at least `wanted`; inf if no finite
    number of seconds suffices.

    Nonnegative float32 numbers are ordered as their bits are as integers, so 31 bisections of the
    integers find the exact float32 number.

    Args:
        amount: nondecreasing function of the seconds.
        wanted: a scalar; for 0 the result is 0.
    """

    def halve(_, ends):
        low, high = ends  # the amount is too small at low, and sufficient at high
        middle = low + (high - low) // 2
        enough = amount(lax.bitcast_convert_type(middle, jnp.float32)) >= wanted
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    ends = lax.fori_loop(0, 31, halve, (jnp.int32(-1), jnp.int32(_LARGEST)))
    seconds = lax.bitcast_convert_type(ends[1], jnp.float32)
    return jnp.where(ends[1] == _LARGEST, jnp.inf, seconds)
