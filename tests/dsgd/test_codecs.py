"""Packed codes are what they say: as few bytes as possible, in a fixed order, and all there."""

from __future__ import annotations

import math
from functools import partial

import jax
import numpy as np
import pytest

from dsgd import codecs

BITS = range(1, 9)
SIZES = (1, 2, 7, 8, 13, 255)


def packed_by_hand(codes: np.ndarray, bits: int) -> bytes:
    """All codes as one long binary number, the first in front, zeros behind up to the next byte."""
    binary = "".join(format(code, f"0{bits}b") for code in codes.tolist())
    binary += "0" * (-len(binary) % 8)
    return bytes(int(binary[i : i + 8], 2) for i in range(0, len(binary), 8))


@partial(jax.jit, static_argnums=1)
def there_and_back(codes: dict[int, np.ndarray], bits: int):
    packed = {size: codecs.pack(code, bits) for size, code in codes.items()}
    return packed, {size: codecs.unpack(packed[size], bits, size) for size in codes}


@pytest.mark.parametrize("bits", BITS)
def test_packed_size_is_the_fewest_bytes(bits):
    assert [codecs.packed_size(d, bits) for d in range(100)] == [math.ceil(d * bits / 8) for d in range(100)]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("content", ["ones", "random", "zeros"])
def test_codes_come_back_from_exactly_the_bytes_that_they_need(bits, content):
    codes = {
        size: {
            "ones": np.full(size, 2**bits - 1, np.uint8),
            "random": np.random.default_rng(size).integers(0, 2**bits, size, np.uint8),
            "zeros": np.zeros(size, np.uint8),
        }[content]
        for size in SIZES
    }
    packed, unpacked = there_and_back(codes, bits)
    for size in SIZES:
        assert packed[size].dtype == unpacked[size].dtype == np.uint8
        assert packed[size].shape == (codecs.packed_size(size, bits),)
        assert np.asarray(packed[size]).tobytes() == packed_by_hand(codes[size], bits)
        np.testing.assert_array_equal(unpacked[size], codes[size])
