"""Few elements with their places: which ones, how often, how far from x, and in how many bits."""

from __future__ import annotations

import itertools
import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dsgd import codecs, compressors
from dsgd.compressors import sparsification
from tests.dsgd.compressors.shared import (
    EPS,
    HUGE,
    STANDARD_ERRORS,
    TINY,
    as_bits,
    largest,
    midpoints,
    normal,
    packed_bytes,
    rounding,
    see,
    seen,
    seen_often,
    seen_where,
    sent,
    sqnorm,
    standard_error,
    vectors,
)

DRAWS = 20_000
SIGN, TERNARY, QSGD = compressors.sign, compressors.ternary, compressors.qsgd(2)
top_k, random_k, random_sparsification = (
    cache(make)
    for make in (compressors.top_k, compressors.random_k, compressors.random_sparsification)
)
every_selection = pytest.mark.parametrize(
    "select", [compressors.top_k, compressors.random_k], ids=["top_k", "random_k"]
)


@pytest.mark.parametrize(
    ("fraction", "d", "k"),
    [(0.1, 33, 4), (0.5, 8, 4), (1.0, 7, 7), (0.01, 9, 1), (0.3, 10, 3), (0.7, 1, 1)],
)
def test_top_k_keeps_the_largest_elements_as_they_are(key, fraction, d, k):
    for x in (
        normal(d),
        np.float32(HUGE) * normal(d, 1),
        np.full(d, -2.5, np.float32),
        np.round(normal(d, 2)),
    ):
        np.testing.assert_array_equal(seen(top_k(fraction))(key, x), largest(x, k))
    assert top_k(fraction).delta(d) == k / d  # which is reached at equal elements


@given(
    st.sampled_from([(0.3, 9), (0.1, 33), (1.0, 7)]).flatmap(
        lambda case: st.tuples(st.just(case), vectors(case[1]))
    )
)
def test_top_k_contracts_whatever_it_is_given(case):
    (fraction, d), x = case
    kept, exact = np.asarray(seen(top_k(fraction))(jax.random.key(0), x)), x.astype(np.float64)
    assert (np.isclose(kept, x, rtol=0, atol=TINY) | (kept == 0)).all()
    assert sqnorm(kept - exact) == pytest.approx(
        sqnorm(largest(exact, math.ceil(fraction * d)) - exact), abs=rounding(x)
    )
    assert sqnorm(kept - exact) <= (1 - top_k(fraction).delta(d)) * sqnorm(exact) * (
        1 + 1e-12
    ) + rounding(x)


@pytest.mark.parametrize("values", [SIGN, QSGD], ids=lambda c: c.name)
def test_the_errors_of_dropping_and_of_sending_values_are_orthogonal(key, values):
    d, k = 33, 4
    x, compressor = normal(d), top_k(0.1, values)
    message = jax.jit(compressor.compress)(key, x).message
    places = np.asarray(codecs.unpack(message.places, 6, k))
    np.testing.assert_array_equal(np.sort(places), np.flatnonzero(largest(x, k)))
    of_values = sqnorm(values.decompress(message.values, k) - x[places])
    error = sqnorm(compressor.decompress(message, d) - x)
    assert of_values > 0
    assert error == pytest.approx(sqnorm(x - largest(x, k)) + of_values, rel=1e-6)
    assert compressor.delta(d) == pytest.approx(values.delta(k) * k / d)


def test_top_k_of_values_without_a_contraction_has_none():
    assert TERNARY.delta(16) is None
    assert top_k(1.0, TERNARY).delta(16) is None
    assert top_k(0.25, TERNARY).delta(16) == pytest.approx((1 - TERNARY.omega(4)) / 4)


@pytest.mark.parametrize(
    ("select", "kind"), [(compressors.top_k, "bfloat16"), (compressors.random_k, "float32")]
)
def test_what_is_decoded_of_messages_that_nobody_reads_is_made_without_them(key, select, kind):
    """As much, and the same, as receivers decode from the messages."""
    compressor, d = select(0.1), 33
    x = jnp.asarray([normal(d, seed) for seed in range(500)], kind)
    keys = jax.random.split(key, len(x))

    def compiled(function):
        return jax.jit(jax.vmap(function)).lower(keys, x).compile()

    received = compiled(lambda key, x: see(compressor, key, x))
    decoded = compiled(lambda key, x: compressors.encode(compressor, key, x).decoded)
    assert "TopK" in received.as_text()
    assert "TopK" not in decoded.as_text()
    assert "sort" not in decoded.as_text()
    np.testing.assert_array_equal(decoded(keys, x), received(keys, x))
    assert (np.count_nonzero(decoded(keys, x), axis=1) == 4).all()


# 32 random bits: they differ in the 30 that are used, and are the smallest and the largest ones.
DISTINCT_BITS = np.array([0, 4, 2**32 - 8, 2**32 - 1], np.uint32)
PERMUTATIONS = np.array(list(itertools.permutations(DISTINCT_BITS)))


@pytest.mark.parametrize(("fraction", "k"), [(0.25, 1), (0.5, 2), (0.7, 3), (1.0, 4)])
def test_over_all_orders_random_k_takes_every_subset_as_often_and_has_the_stated_variance(
    fraction, k
):
    x = np.array([1, -2, 3, 5], np.float32)
    draws = seen_where(random_k(fraction))(x, bits=PERMUTATIONS)
    subsets = dict.fromkeys(itertools.combinations(range(4), k), 0)
    for draw in draws:
        subsets[tuple(np.flatnonzero(draw).tolist())] += 1
    assert set(subsets.values()) == {24 // len(subsets)}
    assert (np.isclose(draws, x * 4 / k) | (draws == 0)).all()
    np.testing.assert_allclose(draws.mean(axis=0), x, rtol=2 * EPS)
    assert random_k(fraction).omega(4) == 4 / k - 1
    assert sqnorm(draws - x).mean() == pytest.approx((4 / k - 1) * sqnorm(x), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("x", [[1.25, -2.5, 3.0, 5.0], [1, 1, 1, 1], [4, 0, 0, 1]], ids=str)
def test_random_k_of_quantized_values_is_unbiased_with_its_omega(x):
    """Over all orders, and for each over many draws of the values."""
    x, compressor, parts = np.array(x, np.float32), random_k(0.5, TERNARY), 1024
    draws = seen_where(compressor)(
        x, bits=np.tile(PERMUTATIONS, (parts, 1)), uniform=np.repeat(midpoints(parts), 24)
    )
    np.testing.assert_allclose(draws.mean(axis=0), x, atol=4 * np.abs(x).max() / parts)
    assert sqnorm(draws - x).mean() <= compressor.omega(4) * sqnorm(x) * (1 + 4 / parts)
    assert compressor.omega(4) == pytest.approx(2 * (1 + TERNARY.omega(2)) - 1)


def test_random_k_takes_every_element_and_every_pair_as_often(key):
    """Real draws; without replacement, a pair is rarer than two independent elements."""
    fraction, d, k = 0.1, 33, 4
    taken = seen_often(random_k(fraction), DRAWS)(key, np.ones(d, np.float32)) > 0
    assert (taken.sum(axis=1) == k).all()
    share = k / d
    assert (
        np.abs(taken.mean(axis=0) - share)
        <= STANDARD_ERRORS * math.sqrt(share * (1 - share) / DRAWS)
    ).all()
    pairs, pair = (taken[:, 1:] & taken[:, :-1]).mean(axis=0), share * (k - 1) / (d - 1)
    assert (np.abs(pairs - pair) <= STANDARD_ERRORS * math.sqrt(pair * (1 - pair) / DRAWS)).all()


@every_selection
def test_a_share_of_d_that_is_a_whole_number_is_not_rounded_up(select):
    """As 0.07 * 100 is, in floating point."""
    for d in (100, 1000, 10**6):
        for percent in range(1, 101):
            assert sparsification.kept(percent / 100, d) == percent * d // 100
    assert [sparsification.kept(0.1, d) for d in (1, 9, 10, 11, 20, 21)] == [1, 1, 1, 2, 2, 3]
    assert compressors.mean_bits(select(0.1), 1000) == 100 * 32 + 8 * packed_bytes(100, 10)


@every_selection
@pytest.mark.parametrize("d", [1, 2, 3, 64, 333])
def test_a_message_is_k_values_and_as_many_places_of_log_d_bits(select, d):
    compressor, k = select(0.3, QSGD), math.ceil(0.3 * d)
    message = jax.eval_shape(compressor.compress, jax.random.key(0), jnp.zeros(d)).message
    places = math.ceil(math.log2(d))
    assert sum(plane.size for plane in message.places) == packed_bytes(k, places)
    assert compressor.bits(message) == 8 * packed_bytes(k, places) + 8 * packed_bytes(k, 3) + 32


def test_places_weigh_as_they_do_and_values_of_random_number_as_many_as_are_used(key):
    compressor = top_k(0.5, random_sparsification(0.5))
    message = jax.jit(compressor.compress)(key, jnp.ones(100)).message
    used = int((np.asarray(message.values.values) != 0).sum())
    assert int(compressor.bits(message)) == 8 * packed_bytes(50, 7) + 32 + used * (32 + 6)
    assert compressors.mean_bits(compressor, 100) == pytest.approx(
        8 * packed_bytes(50, 7) + 32 + 25 * (32 + 6), rel=2e-3
    )


@pytest.mark.parametrize("p", [0.25])
def test_over_all_draws_random_sparsification_keeps_every_subset_with_its_probability(p):
    """Three gaps of three elements, 64 draws each: every probability of a gap, p (1 - p)^g, is a
    multiple of 1 / 64.
    """
    x = np.array([1, -2, 3], np.float32)
    bits = as_bits(np.array(list(itertools.product(midpoints(64), repeat=3))))
    draws = seen_where(random_sparsification(p))(x, bits=bits)
    kept = draws != 0
    for subset in itertools.product([False, True], repeat=3):
        assert (kept == subset).all(axis=1).sum() == 64**3 * p ** sum(subset) * (1 - p) ** (
            3 - sum(subset)
        )
    np.testing.assert_allclose(draws.mean(axis=0), x, rtol=1e-6)
    assert (
        sqnorm(draws - x).mean()
        == pytest.approx((1 / p - 1) * sqnorm(x), rel=1e-6)
        == random_sparsification(p).omega(3) * sqnorm(x)
    )


@pytest.mark.parametrize("p", [0.9])
def test_masks_of_real_draws_are_of_independent_elements(key, p):
    kept = seen_often(random_sparsification(p), DRAWS)(key, np.ones(4, np.float32)) != 0
    observed = np.bincount(kept @ [8, 4, 2, 1], minlength=16)
    expected = [
        DRAWS * p ** sum(mask) * (1 - p) ** (4 - sum(mask))
        for mask in itertools.product([0, 1], repeat=4)
    ]
    assert stats.chisquare(observed, expected).pvalue > 1e-4


@pytest.mark.parametrize("p", [0.02])
def test_every_element_is_kept_as_often_and_is_scaled_up(key, p):
    d = 101
    x = normal(d)
    draws = seen_often(random_sparsification(p), DRAWS)(key, x)
    kept = draws != 0
    np.testing.assert_allclose(draws[kept], np.broadcast_to(x / p, draws.shape)[kept], rtol=2 * EPS)
    assert (np.abs(kept.mean(axis=0) - p) <= STANDARD_ERRORS * math.sqrt(p * (1 - p) / DRAWS)).all()
    for lag in (1, 2, 50):
        both = (kept[:, lag:] & kept[:, :-lag]).mean(axis=0)
        assert (np.abs(both - p**2) <= STANDARD_ERRORS * math.sqrt(p**2 * (1 - p**2) / DRAWS)).all()
    count = kept.sum(axis=1)
    assert abs(count.mean() - d * p) <= STANDARD_ERRORS * math.sqrt(d * p * (1 - p) / DRAWS)
    assert abs(count.var() - d * p * (1 - p)) <= STANDARD_ERRORS * standard_error(
        (count - d * p) ** 2
    )


def test_random_sparsification_contracts_above_one_half_only():
    assert [random_sparsification(p).delta(9) for p in (0.1, 0.5)] == [None, None]
    assert random_sparsification(0.8).delta(9) == pytest.approx(0.75)
    assert (random_sparsification(1.0).omega(5), random_sparsification(1.0).delta(5)) == (0, 1)


@pytest.mark.parametrize("p", [1e-9, 1e-3, 0.1, 0.9, 1.0])
def test_the_capacity_is_exceeded_with_probability_1e12_by_bernstein_and_is_the_least_that_is(p):
    def bernstein(room: int) -> float:
        more = room - d * p
        return math.exp(-(more**2) / 2 / (d * p * (1 - p) + more / 3)) if more > 0 else 1.0

    for d in (1, 2, 10, 333, 10**4, 10**6, 2**26):
        room = sparsification.capacity(p, d)
        assert stats.binom.sf(room, d, p) <= 1e-12
        if room < d:
            assert bernstein(room) <= 1.0000001e-12 < bernstein(room - 1)
        else:
            assert room == d


def test_bits_count_what_is_used_and_its_number():
    p, d = 0.1, 333
    compressor = random_sparsification(p)
    messages, bits = sent(compressor, jax.random.split(jax.random.key(0), DRAWS // 10), d)
    kept = (np.asarray(messages.values) != 0).sum(axis=1)
    each = 32 + math.ceil(math.log2(d))
    np.testing.assert_array_equal(bits, 32 + kept * each)
    assert abs(bits.mean() - (32 + p * d * each)) <= STANDARD_ERRORS * standard_error(bits) + 1e-9
    error = math.sqrt(p * (1 - p) * d) * each / math.sqrt(2**14)
    assert (
        abs(compressors.mean_bits(compressor, d) - (32 + p * d * each))
        <= STANDARD_ERRORS * error + 1e-9
    )
    assert messages.values.shape[1] == sparsification.capacity(p, d)
    assert sum(plane.shape[1] for plane in messages.places) == packed_bytes(
        sparsification.capacity(p, d), each - 32
    )


@pytest.mark.parametrize(("p", "d"), [(2e-9, 2**30), (1e-7, 2**24 + 1)])
def test_places_neither_wrap_nor_round_where_gaps_are_longer_than_float32_and_32_bits(key, p, d):
    draws, size = 5000, 60
    often = jax.jit(jax.vmap(lambda key: sparsification._bernoulli_places(key, p, d, size)))
    places = np.asarray(often(jax.random.split(key, draws)), np.int64)
    assert (places <= d).all()
    assert ((np.diff(places) > 0) | (places[:, 1:] == d)).all()
    found, mean = places[places < d], draws * d * p
    assert abs(found.size - mean) <= STANDARD_ERRORS * math.sqrt(mean + 1)
    if mean > 1000:
        assert stats.kstest(found / d, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("value", [0.0, -0.1, 1.5, math.nan, math.inf])
def test_shares_outside_0_to_1(value):
    with pytest.raises(
        ValueError, match=rf"^top_k: fraction = {value}; expected a number in \(0, 1\]$"
    ):
        compressors.top_k(value)
    with pytest.raises(
        ValueError, match=rf"^random_k: fraction = {value}; expected a number in \(0, 1\]$"
    ):
        compressors.random_k(value, SIGN)
    with pytest.raises(
        ValueError,
        match=rf"^random_sparsification: probability = {value}; expected a number in \(0, 1\]$",
    ):
        compressors.random_sparsification(value)
