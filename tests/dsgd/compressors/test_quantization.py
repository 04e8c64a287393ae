"""Quantizers round each element to one of two values, with the stated probabilities, variance and
bounds.
"""

from __future__ import annotations

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgd import Compressor, compressors
from tests.dsgd.compressors.shared import (
    EPS,
    LARGEST,
    TINY,
    Rounding,
    as_bits,
    numbers,
    rounding,
    see,
    seen,
    seen_where,
    sqnorm,
    to_values,
    vectors,
)

D = 33
PARTS = 64  # probabilities on a lattice are multiples of 1 / PARTS
BITS = (1, 3, 8)
quantization, clipping, qsgd, dithering = (
    cache(make)
    for make in (
        compressors.random_quantization,
        compressors.clipping,
        compressors.qsgd,
        compressors.natural_dithering,
    )
)


def to_knobs(steps: int, x: np.ndarray) -> Rounding:
    """The rounding of (3.3)."""
    low, step = x.min(), (x.max() - x.min()) / steps
    place = np.divide(x - low, step, out=np.zeros_like(x), where=step > 0)
    k = np.clip(np.floor(place), 0, steps - 1)
    return Rounding(low + k * step, low + (k + 1) * step, place - k)


def to_levels(levels: int, x: np.ndarray, order: float = 2) -> Rounding:
    """The rounding of Alistarh et al., section 3.1, with the norm of this order."""
    norm = np.linalg.norm(x, order)
    place = levels * np.abs(x) / (norm or 1)
    floor = np.floor(place)
    unit = np.sign(x) * norm / levels
    return Rounding(floor * unit, (floor + 1) * unit, place - floor)


def to_the_largest(x: np.ndarray) -> Rounding:
    """The rounding of Wen et al., (1)."""
    largest = np.abs(x).max()
    return Rounding(np.zeros_like(x), largest * np.sign(x), np.abs(x) / (largest or 1))


def clipped_to_the_largest(limit: float, x: np.ndarray) -> Rounding:
    """The rounding of Wen et al., (1), after clipping to multiples of the root mean square."""
    sigma = np.sqrt(np.mean(x**2))
    return to_the_largest(np.clip(x, -limit * sigma, limit * sigma))


def to_powers(x: np.ndarray) -> Rounding:
    """The rounding of Horvath et al., definition 1; from 0 to the smallest normal number is one
    step.
    """
    power = np.exp2(np.frexp(np.abs(x))[1] - 1.0)
    below = np.where(np.abs(x) < TINY, 0, power)
    step = np.where(np.abs(x) < TINY, TINY, power)
    return Rounding(np.sign(x) * below, np.sign(x) * (below + step), (np.abs(x) - below) / step)


def to_powers_of_the_norm(levels: int, x: np.ndarray, order: float = 2) -> Rounding:
    """The rounding of Horvath et al., definition 2, with the norm of this order."""
    values = np.concatenate([[0], 2.0 ** np.arange(1 - levels, 1)])
    return to_values(values, np.linalg.norm(x, order) or 1, x)


def to_floats(dtype: str, scale: str, x: np.ndarray) -> Rounding:
    values = numbers(dtype)
    relative = np.abs(x).max() / values[-1]
    if scale == "power":
        relative = 2.0 ** max(-126, np.ceil(np.log2(relative or 1e-300)))
    return to_values(values, relative or 1, x)


CASTS = {
    f"cast({dtype}{f', {scale}' if scale == 'power' else ''}, stochastic)": (
        compressors.cast(dtype, scale, stochastic=True),
        partial(to_floats, dtype, scale),
    )
    for dtype in ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn")
    for scale in ("largest", "power")
}
QUANTIZERS = {
    **{
        f"random_quantization({bits})": (quantization(bits), partial(to_knobs, 2**bits - 1))
        for bits in (2, 8)
    },
    **{f"qsgd({levels})": (qsgd(levels), partial(to_levels, levels)) for levels in (1, 127)},
    "qsgd(2, linf)": (qsgd(2, "linf"), partial(to_levels, 2, order=np.inf)),
    "ternary": (compressors.ternary, to_the_largest),
    "natural": (compressors.natural, to_powers),
    "clipped_ternary(2.5)": (
        compressors.clipped_ternary(2.5),
        partial(clipped_to_the_largest, 2.5),
    ),
    **{
        f"natural_dithering({levels})": (
            dithering(levels),
            partial(to_powers_of_the_norm, levels),
        )
        for levels in (1, 7, 127)
    },
    "natural_dithering(4, linf)": (
        dithering(4, "linf"),
        partial(to_powers_of_the_norm, 4, order=np.inf),
    ),
    **CASTS,
}
every_quantizer = pytest.mark.parametrize(
    ("compressor", "oracle"), QUANTIZERS.values(), ids=QUANTIZERS
)
every_bits = pytest.mark.parametrize("bits", BITS)


def seen_at(compressor: Compressor, x: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Returns the decoded messages if the elements draw these numbers `[PARTS, d]`; natural
    compression draws bits.
    """
    return seen_where(compressor)(x, uniform=uniform, bits=as_bits(uniform))


@every_quantizer
@given(st.data())
def test_an_element_is_rounded_up_if_its_draw_is_below_the_probability(compressor, oracle, data):
    d = data.draw(st.sampled_from([1, 2, D]))
    x = data.draw(vectors(d))
    uniform = np.random.default_rng(d).random((PARTS, d), np.float32)
    exact = oracle(x.astype(np.float64))
    if compressor.unbiased:
        assert exact.variance() <= compressor.omega(d) * sqnorm(x) * (1 + 1e-12) + rounding(x)
    draws = seen_at(compressor, x, uniform)
    tolerance = 4 * EPS * max(np.abs(exact.down).max(), np.abs(exact.up).max()) + 4 * d * TINY
    expected = np.where(uniform < exact.probability, exact.up, exact.down)
    # A position of 255 times a float32 has only 4 digits of its fraction, and denormals are
    # flushed.
    distance = np.abs(uniform - exact.probability)
    certain = np.minimum(distance, 1 - distance) > 1e-4
    assert (np.abs(draws - expected) <= tolerance)[certain].all()
    assert (
        np.minimum(np.abs(draws - exact.up), np.abs(draws - exact.down))
        <= np.abs(exact.up - exact.down) + tolerance
    ).all()


@pytest.mark.parametrize(
    "compressor", [each for each, _ in QUANTIZERS.values() if each.unbiased], ids=lambda c: c.name
)
def test_levels_are_exact_even_at_a_draw_of_zero(compressor):
    x = np.zeros(D, np.float32)
    x[5] = 2
    np.testing.assert_array_equal(
        seen_at(compressor, x, np.zeros((PARTS, D), np.float32)), np.tile(x, (PARTS, 1))
    )


@pytest.mark.parametrize("bits", [3, 8])
def test_no_draw_moves_the_largest_element(key, bits):
    """It is a level: many copies of it give many draws."""
    low, high = np.sort(np.random.default_rng(bits).normal(size=(2, 64)).astype(np.float32), axis=0)
    x = np.tile(high[:, None], 2**14)
    x[:, 0] = low
    draws = jax.jit(jax.vmap(lambda key, x: see(quantization(bits), key, x)))(
        jax.random.split(key, 64), x
    )
    np.testing.assert_array_equal(draws, x)


@pytest.mark.parametrize(
    "compressor",
    [
        *(qsgd(127), qsgd(2, "linf"), compressors.ternary, compressors.sign),
        *map(quantization, BITS),
    ],
    ids=lambda c: c.name,
)
def test_single_elements_and_vectors_of_two_values_are_sent_exactly(key, compressor):
    """They are the ends of the range, and nothing is drawn for two elements."""
    exact = [[2.5], [-1e30], [1e-30], [0.0]]
    if "quantization" in compressor.name:
        pairs = [[-1.0, 3.0], [7.0, 7.0], [1.0, -1e-3], [3e38, -3e38], [np.inf, 1.0]]
        constants = [D * [value] for value in (0.0, -0.0, -3.14159, 1e-30, LARGEST, -LARGEST)]
        for x in exact + pairs:
            assert "random_bits" not in str(jax.make_jaxpr(compressor.compress)(key, jnp.array(x)))
            assert compressor.omega(len(x)) == 0
        assert "random_bits" in str(jax.make_jaxpr(compressor.compress)(key, jnp.zeros(3)))
        exact += pairs + constants
    for values in exact:
        x = np.array(values, np.float32)
        np.testing.assert_array_equal(seen(compressor)(key, x), x)


@pytest.mark.parametrize(
    "compressor",
    [qsgd(127), qsgd(2, "linf"), compressors.ternary, compressors.natural, clipping(1)],
    ids=lambda c: c.name,
)
def test_the_largest_finite_numbers_are_decoded(key, compressor):
    """The reciprocals of these numbers are out of range."""
    for share in (0.5, 0.9):
        x = np.zeros(D, np.float32)
        x[4] = -share * LARGEST
        draw = np.asarray(seen(compressor)(key, x), np.float64)
        np.testing.assert_array_equal(draw[x == 0], 0)
        assert LARGEST / 4 <= -draw[4] <= LARGEST


@given(st.sampled_from([1, 2, D]).flatmap(vectors))
def test_sign_is_the_mean_magnitude_with_signs_and_contracts(x):
    """Denormals may be treated as 0, whose sign is plus."""
    seen_signs = np.asarray(seen(compressors.sign)(jax.random.key(0), x), np.float64)
    exact = x.astype(np.float64)
    mean = np.abs(exact).mean()
    np.testing.assert_allclose(np.abs(seen_signs), mean, rtol=1e-5, atol=x.size * TINY)
    assert ((seen_signs < 0) == (exact <= -TINY))[
        (seen_signs != 0) & ((exact <= -TINY) | (exact >= 0))
    ].all()
    error = sqnorm(seen_signs - exact)
    assert error <= (1 - compressors.sign.delta(x.size)) * sqnorm(exact) * (1 + 1e-5) + rounding(x)


@every_bits
@given(vectors(D))
def test_clipping_cuts_the_mantissa_and_contracts(bits, x):
    cut = np.asarray(seen(clipping(bits))(jax.random.key(0), x))
    exact, normals = x.astype(np.float64), np.abs(x) >= TINY
    step = np.exp2(np.frexp(exact)[1] - 1.0 - bits)
    np.testing.assert_array_equal(cut[normals], (np.trunc(exact / step) * step)[normals])
    assert (np.signbit(cut) == np.signbit(x)).all()
    assert sqnorm(cut - exact) <= (1 - clipping(bits).delta(D)) * sqnorm(exact) + rounding(x)


@pytest.mark.parametrize(
    "compressor",
    [quantization(4), qsgd(7), compressors.ternary, compressors.natural],
    ids=lambda given: given.name,
)
def test_codes_are_drawn_once_for_all_uses(compressor, key):
    """The random bits of codes are the most expensive part of a round: sums over workers read the
    stored codes.
    """
    assert "materialize" in str(jax.make_jaxpr(compressor.compress)(key, jnp.ones(3)))
