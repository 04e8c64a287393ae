"""Amounts up to a time, and times of an amount: compared with piecewise sums in float64, at early
and late clocks.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsgd import Now, Round
from dsgd.clusters import (
    Cluster,
    Quantity,
    bounded,
    constant,
    exponential,
    measured,
    per_server,
    sinusoid,
    slow,
    square_wave,
    trace,
)

KEY = jax.random.key(0)
NODES, WEIGHTS = np.polynomial.legendre.leggauss(30)
VALUES = np.array([3.0, 1.0, 4.0, 1.5, 9.0])
LONG = np.random.default_rng(0).uniform(0.5, 2.0, (2, 10_000))
# dyadic numbers: float32 represents them and the remainders of their periods
CLOCKS = [0.0, 0.75, 3.0, 10.375, 12288.0, 12289.125]
SECONDS = [1e-4, 0.03, 0.5, 2.0, 47.0]


def trace_of(values: np.ndarray, interval: float) -> Callable:
    return lambda t: values[np.floor(t / interval).astype(int) % len(values)]


def wave(t):
    return np.where(t % 4.0 < 1.0, 9.0, 1.0)


def sinus(t):
    return 300.0 * np.sin(0.5 * t) ** 2 + 0.5


# The quantity, its numpy version, and the times between which it is smooth.
CASES: dict[str, tuple[Quantity, Callable, float]] = {
    "trace": (trace(VALUES, 0.25), trace_of(VALUES, 0.25), 0.25),
    "each one's trace": (trace(LONG, 0.125), trace_of(LONG[1], 0.125), 0.125),
    "square wave": (square_wave(9.0, 1.0, 4.0, 0.25), wave, 1.0),
    "sinusoid": (sinusoid(300.0, 0.5, 0.5), sinus, 1.0),
    "fast sinusoid": (
        sinusoid(3.0, 64.0, 0.5),
        lambda t: 3 * np.sin(64.0 * t) ** 2 + 0.5,
        0.125,
    ),
    "sum of two": (
        square_wave(9.0, 1.0, 4.0, 0.25) + trace(VALUES, 0.25),
        lambda t: wave(t) + trace_of(VALUES, 0.25)(t),
        0.25,
    ),
    "slow": (
        slow(square_wave(9.0, 1.0, 4.0, 0.25), [1], 3.0),
        lambda t: 3 * wave(t),
        1.0,
    ),
    "per server": (
        per_server(trace(LONG[::-1], 0.125), 2),
        trace_of(LONG[1], 0.125),
        0.125,
    ),
    "custom": (
        Quantity(lambda key, clock, worker: 2 + jnp.sin(clock), "mine", positive=True),
        lambda t: 2 + np.sin(t),
        1.0,
    ),
}


def integral(rate: Callable, piece: float, clock: float, seconds: float) -> float:
    """Returns the integral in float64, from one multiple of `piece` to the next."""
    first = np.floor(clock / piece) + 1
    ends = np.arange(first, np.ceil((clock + seconds) / piece)) * piece
    ends = np.concatenate(
        [[clock], ends[(ends > clock) & (ends < clock + seconds)], [clock + seconds]]
    )
    middle, half = (ends[1:] + ends[:-1]) / 2, np.diff(ends) / 2
    return float(np.sum(half * (rate(middle[:, None] + half[:, None] * NODES) @ WEIGHTS)))


def grid(quantity: Quantity) -> tuple[np.ndarray, np.ndarray, Callable, Callable]:
    """Returns clocks and seconds, `[pairs]`, and the quantity's own two functions of such pairs for
    worker 1.
    """
    clocks, seconds = (np.float32(each).ravel() for each in np.meshgrid(CLOCKS, SECONDS))
    amount, needed = (
        jax.jit(jax.vmap(function, (None, 0, 0, None)))
        for function in (quantity.integrate, quantity.seconds)
    )
    return (
        clocks,
        seconds,
        lambda *pairs: np.asarray(amount(KEY, *pairs, 1)),
        lambda *pairs: np.asarray(needed(KEY, *pairs, 1)),
    )


@pytest.mark.parametrize("name", CASES)
def test_integrals_are_those_of_the_quantity(name):
    """Also for the shortest message at a late clock. A custom quantity is summed at 64 points,
    accurate to rounding over a few of its periods.
    """
    quantity, rate, piece = CASES[name]
    clocks, seconds, amount, needed = grid(quantity)
    late = clocks > 1000
    if name == "custom":
        clocks, seconds = clocks[~late], seconds[~late]

    def exactly(seconds):
        return [
            integral(rate, piece, float(clock), float(length))
            for clock, length in zip(clocks, seconds, strict=True)
        ]

    expected = exactly(seconds)
    np.testing.assert_allclose(amount(clocks, seconds), expected, rtol=5e-6)
    # At small rates, the last bits of the amount are many seconds: the amount at the computed time
    # is compared instead.
    np.testing.assert_allclose(exactly(needed(clocks, np.float32(expected))), expected, rtol=5e-6)
    assert needed(clocks, np.zeros_like(clocks)).max() == 0
    assert not quantity.time_invariant


def test_noise_is_a_factor_of_the_round():
    noisy, plain = sinusoid(3.0, 0.5, 1.0, noise=0.4), sinusoid(3.0, 0.5, 1.0)
    clocks, seconds, amount, _ = grid(noisy)
    factor = float(noisy.sample(KEY, jnp.float32(1), 1) / plain.sample(KEY, jnp.float32(1), 1))
    assert abs(factor - 1) > 0.05
    np.testing.assert_allclose(
        amount(clocks, seconds), factor * grid(plain)[2](clocks, seconds), rtol=1e-6
    )


STEADY = [
    *[
        constant([1, 2]),
        measured([1.0, 2.0]),
        constant(1.0) + exponential(1.0),
    ],
    *[
        bounded(constant(3.0), 1.0),
        slow(constant(2.0), [1], 3.0),
        trace([4.0], 1.0),
    ],
    *[
        sinusoid(0.0, 1.0, 2.0),
        sinusoid(1.0, 0.0, 2.0, 0.3),
        square_wave(2.0, 1.0, 1.0, 0.0),
    ],
]


@pytest.mark.parametrize("quantity", STEADY, ids=lambda quantity: quantity.name)
def test_bits_over_a_constant_bandwidth_are_divided_by_it(quantity):
    """Exactly."""
    bits, clock = jnp.float32(37.0), jnp.float32(5.3)
    rate = quantity.sample(KEY, clock, 1)
    assert quantity.seconds(KEY, clock, bits, 1) == bits / rate
    assert quantity.integrate(KEY, clock, jnp.float32(3.0), 1) == 3 * rate
    assert quantity.time_invariant
    assert not (quantity + trace([1.0, 2.0], 1.0)).time_invariant


def test_a_transfer_at_bandwidth_0_takes_infinite_time():
    gone = Quantity(lambda key, clock, worker: jnp.exp(-clock), "gone", positive=True)
    assert float(gone.seconds(KEY, jnp.float32(0), jnp.float32(2.0), 0)) > 1e30


def round_at(clock: float) -> Round:
    return Round(jnp.int32(0), 2, KEY, now=Now(None, jnp.float32(clock)))


def test_the_receiving_bandwidth_is_by_default_the_sending_bandwidth():
    """Receiving takes no time if there are no bandwidths."""
    wave = square_wave(8.0, 2.0, 4.0)
    for up, cluster in ((True, Cluster(constant(1.0), up=wave)), (False, Cluster(constant(1.0)))):
        assert cluster.time_invariant == (not up)
        for ports in (cluster.sending, cluster.receiving):
            bits, after = jnp.array([8.0, 16.0]), jnp.array([0.5, 1.0])
            seconds = ports(round_at(400.0), jnp.arange(2), bits, after)
            # 8 bits until the wave falls, 4 until it rises, and 4
            np.testing.assert_allclose(seconds, [1.0, 1 + 2 + 4 / 8] if up else 0, rtol=1e-6)


def test_a_windows_bandwidth_is_its_mean():
    """8 for two seconds, then 2 for two; a window without length is a point in time. Windows are
    separate for each worker, or common.
    """
    cluster = Cluster(constant(1.0), up=constant(4.0), down=square_wave(8.0, 2.0, 4.0))

    @jax.jit
    def windows(after, seconds):
        ids = jnp.arange(4)
        return cluster.bandwidths(round_at(400.0), ids, after, seconds), cluster.bandwidths(
            round_at(401.0), ids, 0.5, seconds[1]
        )[1]

    (up, down), of_all = windows(jnp.array([1.0, 1.0, 3.0, 0.0]), jnp.array([0.0, 2.0, 0.0, 6.0]))
    assert up.tolist() == [4] * 4
    np.testing.assert_allclose(down, [8, 5, 2, (8 + 2 + 8) / 3], rtol=1e-6)
    np.testing.assert_allclose(of_all, [(0.5 * 8 + 1.5 * 2) / 2] * 4, rtol=1e-6)
