"""Casts to floating-point types of few bits, and natural dithering."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import algorithms
import dsgd
from dsgd import problems
from dsgd.compressors import buckets, cast, mean_bits, natural_dithering
from tests.dsgd.compressors.shared import (
    EPS,
    LARGEST,
    TINY,
    numbers,
    packed_bytes,
    rounding,
    seen,
    sqnorm,
    to_values,
    vectors,
)

D = 33
UNSCALED = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
SCALED = ("float16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn")
plain = {dtype: cast(dtype, "none") for dtype in UNSCALED}
scaled = {(dtype, scale): cast(dtype, scale) for dtype in SCALED for scale in ("largest", "power")}
KEY = jax.random.key(0)


def casted(x: np.ndarray, dtype: str) -> np.ndarray:
    """Returns float32 numbers after a cast that saturates."""
    most = float(jnp.finfo(dtype).max)
    return np.clip(x, -most, most).astype(dtype).astype(np.float32)


@pytest.mark.parametrize("dtype", UNSCALED)
@given(x=vectors(D))
def test_a_cast_without_scale_is_that_of_ml_dtypes_bit_for_bit(dtype, x):
    """Ties go to even codes; numbers below the smallest normal one are rounded to its multiples."""
    np.testing.assert_array_equal(np.asarray(seen(plain[dtype])(KEY, x)), casted(x, dtype))


@pytest.mark.parametrize("dtype", UNSCALED)
def test_ties_saturation_and_values_that_are_not_finite(dtype):
    values = numbers(dtype)
    values = values[:: max(1, values.size // 500)]
    ends = numbers(dtype)[-2:]
    middles = np.concatenate([values[:-1] + values[1:], [ends.sum()]]) / 2
    beyond = [min(ends[1] * 1.003, LARGEST), LARGEST, np.nan, np.inf, -np.inf]
    x = np.concatenate([values, middles, -middles, beyond]).astype(np.float32)
    found = np.asarray(seen(plain[dtype])(KEY, x))
    np.testing.assert_array_equal(found[:-3], casted(x[:-3], dtype))
    assert np.isnan(found[-3:]).all()


@pytest.mark.parametrize(("dtype", "scale"), scaled)
@given(data=st.data())
def test_a_scaled_cast_sends_the_nearest_number_and_contracts(dtype, scale, data):
    d = data.draw(st.sampled_from([1, 2, D]))
    x = data.draw(vectors(d))
    compressor, exact, values = scaled[dtype, scale], x.astype(np.float64), numbers(dtype)
    found = np.asarray(seen(compressor)(KEY, x), np.float64)
    largest = np.abs(exact).max()
    size = largest / values[-1]
    if scale == "power":
        size = 2.0 ** max(-126, math.ceil(math.log2(size or 1e-300)))
    near = to_values(values, size or 1, exact)
    distance = np.minimum(np.abs(near.down - exact), np.abs(near.up - exact))
    assert (np.abs(found - exact) <= distance + 8 * EPS * np.abs(exact) + 4 * TINY).all()
    if largest >= 2.0**-126 * values[-1]:
        bound = (1 - compressor.delta(d)) * sqnorm(exact) * (1 + 1e-5)
        assert sqnorm(found - exact) <= bound + rounding(x)


def one_and(d: int, one: float, others: float) -> np.ndarray:
    return np.concatenate([[one], np.full(d - 1, others)])


def above_power(dtype: str) -> float:
    """The place above 1 where rounding has its largest relative error."""
    return 1 + 2.0 ** -(jnp.finfo(dtype).nmant + 1)


# One element is the largest number of the type, or just above half of it. The others are just below
# half of the smallest number, or at the worst place above a power of two.
DELTAS = {
    f"{cast(dtype, scale).name}, {d}": (
        cast(dtype, scale),
        one_and(d, numbers(dtype)[-1] * (0.50001 if scale == "power" else 1), others),
        at_least,
    )
    for dtype, scale, d, others, at_least in (
        ("float4_e2m1fn", "largest", 10**4, 0.2499999, 0.9999),
        ("float8_e4m3fn", "largest", 3, 256 * above_power("float8_e4m3fn"), 0.9999),
        ("float8_e5m2", "largest", 100, 2.0**15 * above_power("float8_e5m2"), 0.9999),
        ("float16", "largest", 100, 2.0**15 * above_power("float16"), 0.999),
        ("float4_e2m1fn", "power", 10**4, 0.2499999, 0.999),
        ("float8_e4m3fn", "power", 10**4, 64 * above_power("float8_e4m3fn"), 0.99),
    )
}


@pytest.mark.parametrize("name", DELTAS)
def test_the_stated_contraction_of_a_cast_is_nearly_attained(name):
    compressor, x, at_least = DELTAS[name]
    x = x.astype(np.float32)
    error = sqnorm(np.asarray(seen(compressor)(KEY, x), np.float64) - x) / sqnorm(x)
    assert at_least * (1 - compressor.delta(x.size)) <= error
    assert error <= (1 - compressor.delta(x.size)) * (1 + 1e-4)


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("scale", ["largest", "power"])
def test_the_stated_variance_of_a_cast_is_nearly_attained_above_a_power_of_two(dtype, scale):
    gap, most = 2.0 ** -jnp.finfo(dtype).nmant, numbers(dtype)[-1]
    omega = cast(dtype, scale, stochastic=True).omega(100)
    power = 2.0 ** (math.frexp(most)[1] - 1)
    if scale == "largest":  # the largest element is exact; the others maximise variance - omega y^2
        x = one_and(100, most, power * (2 + gap) / (2 * (1 + omega)))
    else:
        x = np.full(100, power * 2 * (1 + gap) / (2 + gap))
    variance = to_values(numbers(dtype), 1.0, x).variance() / sqnorm(x)
    assert 0.9999 * omega <= variance <= omega * (1 + 1e-9)


def test_natural_dithering_nearly_attains_its_omega_in_the_euclidean_norm():
    """Many elements below the smallest level u, at 4u/9, and a few at 4/3 of other levels that fill
    up the norm.
    """
    levels, many = 7, 1000
    small = np.full(many, 4 / 9 * 2.0 ** (1 - levels))
    rest, large = 1 - small @ small, []
    for level in 4 / 3 * 2.0 ** -np.arange(1, levels):
        count = int(rest / level**2)
        large += [level] * count
        rest -= count * level**2
    x = np.concatenate([small, large])
    values = np.concatenate([[0], 2.0 ** np.arange(1 - levels, 1)])
    variance = to_values(values, float(np.linalg.norm(x)), x).variance() / sqnorm(x)
    omega = natural_dithering(levels).omega(x.size)
    assert 0.998 * omega <= variance <= omega


def test_an_mx_block_has_a_shared_power_of_two_in_8_bits():
    block = buckets(cast("float4_e2m1fn", "power"), 32)
    assert mean_bits(block, 320) == 10 * (32 * 4 + 8)
    assert mean_bits(cast("float8_e5m2", "none"), 7) == 56
    assert mean_bits(natural_dithering(8), 9) == 8 * packed_bytes(9, 5) + 32
    x = np.concatenate([np.array([6, 0.5, -3, 1.5] * 8), 2.0**-20 * np.array([4, 1, -2, 0] * 8)])
    np.testing.assert_array_equal(np.asarray(seen(block)(KEY, x.astype(np.float32))), x)


@pytest.mark.parametrize(
    "compressor",
    [cast("bfloat16", stochastic=True), cast("float8_e4m3fn", "power", stochastic=True)],
    ids=lambda c: c.name,
)
def test_a_run_of_which_the_model_leaves_the_range_is_reported_as_diverged(compressor, key, mesh):
    """Numbers that are not finite are decoded as NaN, not replaced by finite ones."""
    method = algorithms.compressed_sgd(optax.sgd(1e4), compressor)
    problem = problems.random_quadratic(2, 8, seed=0)
    with pytest.raises(dsgd.Diverged, match="the loss"):
        dsgd.run(method, problem, steps=20, key=key, mesh=mesh)


REFUSED = {
    "a scaled bfloat16": (
        {"dtype": "bfloat16", "scale": "power"},
        "cast: scale = 'power' for bfloat16; expected 'none'",
    ),
    "no NaN": (
        {"dtype": "float4_e2m1fn", "scale": "none"},
        "cast: scale = 'none' for float4_e2m1fn; expected 'largest' or 'power'",
    ),
    "out of range": (
        {"dtype": "float16", "scale": "none", "stochastic": True},
        "cast: scale = 'none' for stochastic float16; expected",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_casts_that_lose_values_silently_are_refused(what):
    arguments, message = REFUSED[what]
    with pytest.raises(ValueError, match=message):
        cast(**arguments)
    for levels in (0, 128):
        with pytest.raises(ValueError, match=f"natural_dithering: levels = {levels}; expected"):
            natural_dithering(levels)
