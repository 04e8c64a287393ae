"""Sparsification of random size: the selected elements, their thresholds, probabilities and bits,
next to the equations in numpy on the same draws.
"""

from __future__ import annotations

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsgd import compressors
from dsgd.compressors.places import selected_indices
from tests.dsgd.compressors.shared import (
    EPS,
    STANDARD_ERRORS,
    UNOPTIMIZED,
    largest,
    normal,
    seen,
    seen_often,
    sqnorm,
    standard_error,
)

DRAWS = 4_000
threshold, sampled_top_k, sidco, variance_optimal = (
    cache(make)
    for make in (
        compressors.threshold,
        compressors.sampled_top_k,
        compressors.sidco,
        compressors.variance_optimal,
    )
)


@cache
def bit_counter(compressor):
    """Returns a program (key, x) -> bits of the message."""
    return jax.jit(
        lambda key, x: compressor.bits(compressors.encode(compressor, key, x).message),
        compiler_options=UNOPTIMIZED,
    )


@pytest.mark.parametrize("d", [1, 31, 32, 33, 100])
def test_places_of_a_mask_are_those_of_its_true_elements(d):
    rng = np.random.default_rng(d)
    masks = np.stack([rng.random(d) < share for share in (0, 0.1, 0.5, 0.9, 1)])
    for room in {1, 1 + d // 2, d}:
        places = np.asarray(
            jax.jit(jax.vmap(lambda mask, room=room: selected_indices(mask, room)))(masks)
        )
        for mask, found in zip(masks, places, strict=True):
            used = found[found < d]
            assert (found[len(used) :] == d).all()
            assert len(used) == min(room, mask.sum())
            assert set(used) <= set(np.flatnonzero(mask))
            assert len(set(used)) == len(used)


def test_a_threshold_keeps_larger_elements_and_bounds_the_error_absolutely(key):
    d, v = 33, 0.7
    for x in (normal(d), np.full(d, np.float32(v)), np.full(d, -2, np.float32), 0 * normal(d)):
        kept = np.abs(x) > np.float32(v)
        np.testing.assert_array_equal(seen(threshold(v))(key, x), np.where(kept, x, 0))
        assert bit_counter(threshold(v))(key, x) == 32 + kept.sum() * (32 + 6)
        assert sqnorm(seen(threshold(v))(key, x) - x) <= d * v**2 * (1 + EPS)
    assert threshold(v).delta is None


def test_sampled_top_k_keeps_the_largest_of_those_that_reach_the_sampled_threshold(key):
    fraction, sample, d = 0.1, 0.2, 101
    k, s = 11, 21
    r = math.ceil(s * k / d)
    numbers = []
    for seed in range(20):
        x, mine = normal(d, seed), jax.random.fold_in(key, seed)
        drawn = np.abs(x[np.asarray(jax.random.randint(mine, (s,), 0, d))])
        m = min(k, int((np.abs(x) >= np.sort(drawn)[-r]).sum()))
        np.testing.assert_array_equal(seen(sampled_top_k(fraction, sample))(mine, x), largest(x, m))
        numbers.append(m)
    assert len(set(numbers)) > 3
    assert max(numbers) == k


def sidco_in_numpy(x: np.ndarray, fraction: float, stages: int) -> np.ndarray:
    """Returns a mask of the kept elements."""
    m, share = np.abs(x.astype(np.float64)), fraction ** (1 / stages)
    t = -m.mean() * math.log(share)
    for _ in range(stages - 1):
        above = m[m >= t]
        if above.size:
            t = above.min() - (above.mean() - above.min()) * math.log(share)
    return (m >= t) & (m > 0)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_sidco_keeps_the_elements_above_the_estimated_threshold(key, stages):
    compressor = sidco(0.05, stages)
    huge = np.float32(1e30) * normal(101, 1)
    for x in (normal(101), huge, 0 * normal(101), np.full(101, 2, np.float32)):
        np.testing.assert_array_equal(
            seen(compressor)(key, x), np.where(sidco_in_numpy(x, 0.05, stages), x, 0)
        )
    assert compressor.delta is None


def probabilities(x: np.ndarray, k: float) -> np.ndarray:
    """Returns min(1, c |x|) with the sum k, by bisection for log c; 1 if at most k are not 0."""
    m = np.abs(x.astype(np.float64))
    if (m > 0).sum() <= k:
        return (m > 0).astype(float)
    low, high = -200.0, 200.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if np.minimum(1, math.exp(middle) * m).sum() < k else (low, middle)
        )
    return np.minimum(1, math.exp(high) * m)


HARD = {
    "normal": normal(40),
    "cauchy": np.random.default_rng(1).standard_cauchy(40).astype(np.float32),
    "powers": np.float32(2.0) ** -np.arange(40, dtype=np.float32),
    "equal": np.full(40, -2, np.float32),
    "one large": np.r_[np.float32(100), np.full(39, np.float32(0.1))],
    "few": np.where(np.arange(40) < 4, normal(40), 0).astype(np.float32),
}


@pytest.mark.parametrize("name", HARD)
def test_variance_optimal_draws_elements_with_the_optimal_probabilities(key, name):
    fraction, d, x = 0.15, 40, HARD[name]
    p = probabilities(x, fraction * d)
    draws = seen_often(variance_optimal(fraction), DRAWS)(key, x)
    kept = draws != 0
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.where(p > 0, x / p, 0)
    np.testing.assert_allclose(draws, np.where(kept, values, 0), rtol=1e-5)
    assert (
        np.abs(kept.mean(axis=0) - p)
        <= STANDARD_ERRORS * np.sqrt(p * (1 - p) / DRAWS) + STANDARD_ERRORS**2 / DRAWS * (p < 0.01)
    ).all()
    error, optimal = sqnorm(draws - x), float((np.abs(x) * (np.abs(values) - np.abs(x))).sum())
    assert abs(error.mean() - optimal) <= STANDARD_ERRORS * standard_error(error) + 1e-5 * sqnorm(x)
    assert optimal <= (1 / fraction - 1) * sqnorm(x) * (1 + 1e-6)
    number = (p < 1).astype(int) @ kept.T
    bits = [
        bit_counter(variance_optimal(fraction))(each, x)
        for each in jax.random.split(key, DRAWS)[:3]
    ]
    certain = (p == 1).sum()
    assert bits == [96 + certain * (32 + 6) + n * (1 + 6) for n in number[:3]]


def test_messages_of_more_than_2_to_the_32_bits_are_refused():
    x = jax.ShapeDtypeStruct((2**27,), jnp.float32)
    with pytest.raises(ValueError, match=r"threshold\(1\) of 134217728 elements.*buckets"):
        jax.eval_shape(threshold(1.0).compress, jax.random.key(0), x)
