"""Sparsification: the selected elements, their probabilities, the error, and the bits."""

from __future__ import annotations

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dsgd import compressors
from dsgd.compressors import sparsification
from dsgd.wire import codecs
from tests.dsgd.compressors.shared import (
    EPS,
    HUGE,
    STANDARD_ERRORS,
    largest,
    normal,
    packed_bytes,
    see,
    seen,
    seen_often,
    sent,
    sqnorm,
    standard_error,
)

DRAWS = 20_000
SIGN, TERNARY, QSGD = compressors.sign, compressors.ternary, compressors.qsgd(2)
top_k, random_k, random_sparsification = (
    cache(make)
    for make in (compressors.top_k, compressors.random_k, compressors.random_sparsification)
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
    assert top_k(fraction).delta(d) == k / d  # attained by equal elements


@pytest.mark.parametrize(("d", "k"), [(13, 2), (16, 2), (3, 1), (9, 2)])
def test_block_top_k_keeps_the_blocks_of_largest_norm(key, d, k):
    """The last block is shorter; its padding is not counted."""
    compressor = compressors.block_top_k(0.4, 4)
    for x in (normal(d), np.float32(HUGE) * normal(d, 1), np.r_[normal(d - 1), np.float32(3)]):
        parts = [x[start : start + 4].astype(float) for start in range(0, d, 4)]
        chosen = np.argsort([-sqnorm(part) for part in parts], kind="stable")[:k]
        expected = np.concatenate([part * (i in chosen) for i, part in enumerate(parts)])
        np.testing.assert_array_equal(seen(compressor)(key, x), expected.astype(np.float32))
    assert compressor.delta(d) == k / len(parts)


def test_top_k_in_one_chunk_is_top_k_and_small_last_chunks_do_not_lose_places(key):
    for d in (9, 16):
        x = normal(d)
        np.testing.assert_array_equal(seen(compressors.chunked_top_k(3, d))(key, x), largest(x, 3))
    x = normal(11)
    expected = np.r_[largest(x[:8].reshape(2, 4), 3).ravel(), x[8:]]
    np.testing.assert_array_equal(seen(compressors.chunked_top_k(3, 4))(key, x), expected)


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


@pytest.mark.parametrize(
    ("select", "kind"), [(compressors.top_k, "bfloat16"), (compressors.random_k, "float32")]
)
def test_decoded_messages_are_computed_without_messages_that_nothing_reads(key, select, kind):
    """They equal the messages decoded by receivers."""
    compressor, d = select(0.1), 33
    x = jnp.asarray([normal(d, seed) for seed in range(500)], kind)
    keys = jax.random.split(key, len(x))

    def compile_program(function):
        return jax.jit(jax.vmap(function)).lower(keys, x).compile()

    received = compile_program(lambda key, x: see(compressor, key, x))
    decoded = compile_program(lambda key, x: compressors.encode(compressor, key, x).decoded)
    assert "TopK" in received.as_text()
    assert "TopK" not in decoded.as_text()
    assert "sort" not in decoded.as_text()
    np.testing.assert_array_equal(decoded(keys, x), received(keys, x))
    assert (np.count_nonzero(decoded(keys, x), axis=1) == 4).all()


def test_random_k_selects_all_elements_and_all_pairs_equally_often(key):
    """Without replacement, a pair is less likely than two independent elements; equal elements
    attain omega.
    """
    fraction, d, k = 0.1, 33, 4
    draws, omega = seen_often(random_k(fraction), DRAWS)(key, np.ones(d, np.float32)), d / k - 1
    taken = draws > 0
    assert (taken.sum(axis=1) == k).all()
    np.testing.assert_allclose(draws[taken], d / k, rtol=2 * EPS)
    assert random_k(fraction).omega(d) == omega
    np.testing.assert_allclose(sqnorm(draws - 1), omega * d, rtol=1e-5)
    share = k / d
    assert (
        np.abs(taken.mean(axis=0) - share)
        <= STANDARD_ERRORS * math.sqrt(share * (1 - share) / DRAWS)
    ).all()
    pairs, pair = (taken[:, 1:] & taken[:, :-1]).mean(axis=0), share * (k - 1) / (d - 1)
    assert (np.abs(pairs - pair) <= STANDARD_ERRORS * math.sqrt(pair * (1 - pair) / DRAWS)).all()


def test_a_share_of_d_that_is_a_whole_number_is_not_rounded_up():
    """0.07 * 100 is rounded up in floating point."""
    for d in (100, 1000, 10**6):
        for percent in range(1, 101):
            assert sparsification.selected_count(percent / 100, d) == percent * d // 100
    assert [sparsification.selected_count(0.1, d) for d in (1, 9, 10, 11, 20, 21)] == [
        1,
        1,
        1,
        2,
        2,
        3,
    ]


@pytest.mark.parametrize("p", [0.02, 0.9])
def test_all_elements_are_kept_equally_often_and_scaled_up(key, p):
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


def test_constants_are_those_of_the_choice_and_of_the_values():
    """Random sparsification contracts from a probability of one half on, top-k if its values do."""
    assert random_k(0.5, TERNARY).omega(4) == pytest.approx(2 * (1 + TERNARY.omega(2)) - 1)
    assert [random_sparsification(p).omega(9) for p in (0.25, 0.5)] == [3, 1]
    assert top_k(1.0, TERNARY).delta(16) is TERNARY.delta(16) is None
    assert top_k(0.25, TERNARY).delta(16) == pytest.approx((1 - TERNARY.omega(4)) / 4)
    assert [random_sparsification(p).delta(9) for p in (0.1, 0.5)] == [None, None]
    assert random_sparsification(0.8).delta(9) == pytest.approx(0.75)
    assert (random_sparsification(1.0).omega(5), random_sparsification(1.0).delta(5)) == (0, 1)


@pytest.mark.parametrize("p", [1e-9, 1e-3, 0.1, 0.9, 1.0])
def test_the_capacity_is_the_smallest_with_bernstein_probability_1e12(p):
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


def used_entries(values: jax.Array) -> np.ndarray:
    """Returns the number of sent elements of each message."""
    return (np.asarray(values) != 0).reshape(len(values), -1).sum(axis=1)


# The compressor, d, the bits of its messages, and their mean.
RANDOM_SIZES = [
    (
        random_sparsification(0.1),
        333,
        lambda messages: 32 + used_entries(messages.values) * (32 + 9),
        32 + 33.3 * (32 + 9),
    ),
    (
        compressors.buckets(random_sparsification(0.3), 16),
        41,
        lambda messages: 3 * 32 + sum(used_entries(part.values) for part in messages) * (32 + 4),
        3 * 32 + 0.3 * 41 * (32 + 4),
    ),
    (
        top_k(0.5, random_sparsification(0.5)),
        100,
        lambda messages: (
            8 * packed_bytes(50, 7) + 32 + used_entries(messages.values.values) * (32 + 6)
        ),
        8 * packed_bytes(50, 7) + 32 + 25 * (32 + 6),
    ),
]


@pytest.mark.parametrize(
    ("compressor", "d", "count", "mean"), RANDOM_SIZES, ids=[row[0].name for row in RANDOM_SIZES]
)
def test_bits_count_the_used_entries_and_their_number(key, compressor, d, count, mean):
    messages, bits = sent(compressor, jax.random.split(key, DRAWS // 10), d)
    np.testing.assert_array_equal(bits, count(messages))
    assert abs(bits.mean() - mean) <= STANDARD_ERRORS * standard_error(bits)
    error = bits.std() / math.sqrt(2**14)
    assert abs(compressors.mean_bits(compressor, d) - mean) <= STANDARD_ERRORS * error + 1e-9
    if compressor is random_sparsification(0.1):
        room = sparsification.capacity(0.1, d)
        assert messages.values.shape[1] == room
        assert sum(plane.shape[1] for plane in messages.places) == packed_bytes(room, 9)


@pytest.mark.parametrize(("p", "d"), [(2e-9, 2**30), (1e-7, 2**24 + 1)])
def test_indices_neither_wrap_nor_round_if_gaps_exceed_float32_and_32_bits(key, p, d):
    draws, size = 5000, 60
    often = jax.jit(jax.vmap(lambda key: sparsification._bernoulli_places(key, p, d, size)))
    places = np.asarray(often(jax.random.split(key, draws)), np.int64)
    assert (places <= d).all()
    assert ((np.diff(places) > 0) | (places[:, 1:] == d)).all()
    found, mean = places[places < d], draws * d * p
    assert abs(found.size - mean) <= STANDARD_ERRORS * math.sqrt(mean + 1)
    if mean > 1000:
        assert stats.kstest(found / d, "uniform").pvalue > 1e-4
