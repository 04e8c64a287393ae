"""Casts to floating-point types of few bits, and natural dithering."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def saturating_cast(x: np.ndarray, dtype: str) -> np.ndarray:
    """Returns float32 numbers after a cast that saturates."""
    most = float(jnp.finfo(dtype).max)
    return np.clip(x, -most, most).astype(dtype).astype(np.float32)


@pytest.mark.parametrize("dtype", UNSCALED)
@given(x=vectors(D))
def test_a_cast_without_scale_is_that_of_ml_dtypes_bit_for_bit(dtype, x):
    """Ties go to even codes; numbers below the smallest normal one are rounded to its multiples."""
    np.testing.assert_array_equal(np.asarray(seen(plain[dtype])(KEY, x)), saturating_cast(x, dtype))


@pytest.mark.parametrize("dtype", UNSCALED)
def test_ties_saturation_and_values_that_are_not_finite(dtype):
    values = numbers(dtype)
    values = values[:: max(1, values.size // 500)]
    ends = numbers(dtype)[-2:]
    middles = np.concatenate([values[:-1] + values[1:], [ends.sum()]]) / 2
    beyond = [min(ends[1] * 1.003, LARGEST), LARGEST, np.nan, np.inf, -np.inf]
    x = np.concatenate([values, middles, -middles, beyond]).astype(np.float32)
    found = np.asarray(seen(plain[dtype])(KEY, x))
    np.testing.assert_array_equal(found[:-3], saturating_cast(x[:-3], dtype))
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


def test_an_mx_block_has_a_shared_power_of_two_in_8_bits():
    block = buckets(cast("float4_e2m1fn", "power"), 32)
    assert mean_bits(block, 320) == 10 * (32 * 4 + 8)
    assert mean_bits(cast("float8_e5m2", "none"), 7) == 56
    assert mean_bits(natural_dithering(8), 9) == 8 * packed_bytes(9, 5) + 32
    x = np.concatenate([np.array([6, 0.5, -3, 1.5] * 8), 2.0**-20 * np.array([4, 1, -2, 0] * 8)])
    np.testing.assert_array_equal(np.asarray(seen(block)(KEY, x.astype(np.float32))), x)
