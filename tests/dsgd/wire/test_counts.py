"""Counts in 32-bit digits against Python's integers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsgd.wire import counts

MOST = 2**64 - 1
WORKERS = 5

carry, total, times, of_array = (
    jax.jit(function)
    for function in (
        counts.normalize,
        counts.total,
        counts.scale,
        lambda bits: counts.from_bits(bits, WORKERS),
    )
)


def count_of(*values: int) -> np.ndarray:
    """Returns base-2^16 digits, least significant first, by Python's arithmetic."""
    return np.array(
        [[value // 2 ** (16 * i) % 2**16 for i in range(4)] for value in values], np.uint32
    )


def number(count: jax.Array) -> list[int] | int:
    return counts.to_int(np.asarray(count)).tolist()


def whole(largest: int):
    """Draws integers up to `largest`, including its end and the limits of digits, of float32 and of
    float64.
    """
    edges = [
        edge
        for bits in (0, 16, 24, 31, 32, 48, 53)
        for edge in (2**bits - 1, 2**bits, 2**bits + 1)
        if edge <= largest
    ]
    return st.one_of(st.integers(0, largest), st.sampled_from([*edges, largest]))


@given(whole(MOST))
def test_from_a_python_integer(bits):
    count = counts.from_bits(bits, 3)
    assert count.dtype == jnp.uint32
    np.testing.assert_array_equal(count, count_of(bits, bits, bits))


@given(st.lists(whole(2**32 - 1), min_size=WORKERS, max_size=WORKERS))
def test_from_an_array(bits):
    np.testing.assert_array_equal(of_array(np.array(bits, np.uint32)), count_of(*bits))


@given(st.lists(whole(MOST), min_size=WORKERS, max_size=WORKERS))
def test_to_int(values):
    result = counts.to_int(count_of(*values))
    assert result.dtype == np.uint64
    assert result.tolist() == values


def factor_and_count():
    return st.integers(0, 2**16 - 1).flatmap(
        lambda factor: st.tuples(st.just(factor), whole(MOST // max(factor, 1)))
    )


@given(st.lists(factor_and_count(), min_size=WORKERS, max_size=WORKERS))
def test_scale(pairs):
    factors, values = zip(*pairs, strict=True)
    product = times(np.array(factors, np.uint32), count_of(*values))
    np.testing.assert_array_equal(product, count_of(*(factor * value for factor, value in pairs)))


@given(st.lists(whole(MOST // WORKERS), min_size=WORKERS, max_size=WORKERS))
def test_total(values):
    np.testing.assert_array_equal(total(count_of(*values)), count_of(sum(values))[0])


def test_total_of_65535_counts():
    """The largest supported sum: every digit of every count is maximal."""
    k, each = 2**16 - 1, 2**48 - 1
    everybody = np.broadcast_to(count_of(each)[0], (k, 4))
    assert number(total(everybody)) == k * each


@given(st.lists(st.integers(0, 2**32 - 2**16), min_size=3, max_size=3), st.integers(0, 2**15))
def test_normalize_keeps_the_number_and_makes_every_digit_small(low, high):
    digits = [*low, high]
    carried = carry(np.array(digits, np.uint32))
    assert carried.max() < 2**16
    assert number(carried) == sum(digit * 2 ** (16 * i) for i, digit in enumerate(digits))


def test_digits_stay_small_if_each_sum_is_carried_once():
    big = (1 << 63) // 40_000
    total = np.zeros(4, np.uint32)
    for _ in range(40_000 - 1):
        count = total + counts.table([big])[0]
        total = np.concatenate([[0], count[:-1] >> 16]).astype(np.uint32) + (count & 0xFFFF)
    last = np.asarray(counts.carry(jnp.asarray(total + counts.table([big])[0])))
    assert last[:3].max() < 1 << 17
    assert counts.to_int(last) == 40_000 * big
