"""1-bit SGD's compressor and dynamic codes of 8 bits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgd.compressors import eight_bit, one_bit
from dsgd.compressors.codebooks import dynamic_values
from tests.dsgd.compressors.shared import (
    EPS,
    TINY,
    rounding,
    seen,
    sqnorm,
    vectors,
)

D = 33
KEY = jax.random.key(0)
VALUES = np.sort(np.concatenate([[0, 1], dynamic_values(), -dynamic_values()]))


def two_means(x: np.ndarray) -> np.ndarray:
    """The quantization of Seide et al., with one pair of means."""
    negative = x < 0
    out = np.zeros_like(x)
    for part in (negative, ~negative):
        out[part] = x[part].mean() if part.any() else 0
    return out


@given(st.sampled_from([1, 2, D]).flatmap(vectors))
def test_one_bit_sends_the_means_of_both_signs_and_is_a_projection(x):
    """Denormals may be treated as 0, which is not negative."""
    x = np.where(np.abs(x) < TINY, np.float32(0), x)
    exact = x.astype(np.float64)
    found, expected = np.asarray(seen(one_bit)(KEY, x), np.float64), two_means(exact)
    size = np.abs(exact).max()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=EPS * size + x.size * TINY)
    error = sqnorm(expected - exact)
    assert error == pytest.approx(sqnorm(exact) - sqnorm(expected), abs=1e-12 * sqnorm(exact))
    bound = sqnorm(exact) - np.abs(exact).sum() ** 2 / x.size
    assert error <= bound + 1e-12 * sqnorm(exact)
    assert sqnorm(found - exact) <= bound * (1 + 1e-5) + rounding(x) + 1e-6 * sqnorm(exact)


def test_the_values_of_eight_bit_are_the_centres_of_parts_of_decades():
    """As printed by `bitsandbytes.functional.create_dynamic_map` of version 0.50.2."""
    assert VALUES.size == 256
    printed = [-0.99296874, -0.9789063, -0.96484375], [5.5e-07, 3.25e-06, 7.75e-06], [0.9789063, 1]
    for part, values in zip((slice(3), slice(128, 131), slice(-3, None, 2)), printed, strict=True):
        np.testing.assert_allclose(VALUES[part], values, rtol=1e-6)
    parts = np.split(dynamic_values(), 2 ** np.arange(1, 7) - 1)
    for i, part in enumerate(parts):
        edges = np.linspace(0.1, 1, 2**i + 1)
        np.testing.assert_allclose(part, (edges[1:] + edges[:-1]) / 2 * 10.0 ** (i - 6))


@given(st.sampled_from([1, 2, D]).flatmap(vectors))
def test_eight_bit_sends_the_nearest_value(x):
    exact = x.astype(np.float64)
    size = np.abs(exact).max()
    found = np.asarray(seen(eight_bit)(KEY, x), np.float64)
    nearest = np.abs(exact[:, None] - size * VALUES).min(axis=1)
    assert (np.abs(found - exact) <= nearest + 4 * EPS * np.abs(exact) + 4 * TINY).all()
    bound = (1 - eight_bit.delta(x.size)) * sqnorm(exact)
    assert sqnorm(found - exact) <= bound * (1 + 1e-4) + rounding(x)


def test_codes_of_eight_bits_are_bytes():
    message = eight_bit.compress(KEY, jnp.array([0.0, 1.0, -1.0, 1e-9])).message
    np.testing.assert_array_equal(message.codes[0], [0, 128, 255, 0])
