"""Packed codes: the minimal number of bytes of their planes, in a fixed order, and complete."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsgd.wire import codecs

# every number of bits beyond whole bytes, and of whole bytes
BITS = (*range(9), 13, 15, 16, 22, 29, 31, 32)
SIZES = (0, 1, 7, 8, 13, 64)
UNOPTIMIZED = {"xla_backend_optimization_level": 0}  # most of these tests' time is compilation


def sizes(bits: int) -> tuple[int, ...]:
    """Returns sizes; above 8 bits a third of them, such that each meets each number of high
    bits.
    """
    return SIZES if bits <= 8 else SIZES[bits % 3 :: 3]


def widths(bits: int) -> list[int]:
    """Returns the widths of planes: whole bytes, then the powers of two that remain."""
    return [8] * (bits // 8) + [width for width in (4, 2, 1) if bits % 8 & width]


def packed_by_hand(codes: list[int], bits: int) -> list[bytes]:
    """Returns whole bytes from the low bits of the codes, and narrower planes from the high
    bits.
    """
    planes, bottom, top = [], 0, bits
    for width in widths(bits):
        top -= 0 if width == 8 else width
        shift = bottom if width == 8 else top
        bottom += width
        size, room = -(-len(codes) * width // 8), 8 // width
        digits = [code >> shift & 2**width - 1 for code in codes]
        planes.append(
            bytes(
                sum(digit << k * width for k, digit in enumerate(digits[j::size][:room]))
                for j in range(size)
            )
        )
    return planes


def trits_by_hand(codes: list[int]) -> bytes:
    size = -(-len(codes) // 5)
    return bytes(sum(3**k * digit for k, digit in enumerate(codes[j::size])) for j in range(size))


def contents(size: int, below: int) -> np.ndarray:
    """Yields zeros, the largest code, and three draws."""
    kind = np.uint8 if below <= 256 else np.uint32
    draws = np.random.default_rng(size).integers(0, below, (3, size), kind)
    return np.concatenate([np.zeros((1, size), kind), np.full((1, size), below - 1, kind), draws])


def packing(bits: int | str) -> tuple[Callable, Callable, Callable[[list[int]], list[bytes]]]:
    """Returns programs that pack and unpack codes of the given bits, or trits; and the packing by
    hand.
    """
    if isinstance(bits, str):
        return (
            lambda codes: (codecs.pack_trits(codes),),
            lambda planes, d: codecs.unpack_trits(*planes, d),
            lambda codes: [trits_by_hand(codes)],
        )
    return (
        lambda codes: codecs.pack(codes, bits),
        lambda planes, d: codecs.unpack(planes, bits, d),
        lambda codes: packed_by_hand(codes, bits),
    )


@pytest.mark.parametrize("bits", [*BITS, "trits"])
def test_codes_are_decoded_from_the_minimal_number_of_bytes(bits):
    pack, unpack, by_hand = packing(bits)
    lengths, below = (SIZES, 3) if bits == "trits" else (sizes(bits), 2**bits)

    @partial(jax.jit, compiler_options=UNOPTIMIZED)
    def there_and_back(codes):
        packed = [jax.vmap(pack)(of_size) for of_size in codes]
        return packed, [
            jax.vmap(partial(unpack, d=d), axis_size=5)(one)
            for one, d in zip(packed, lengths, strict=True)
        ]

    codes = [contents(size, below) for size in lengths]
    for sent, packed, unpacked in zip(codes, *there_and_back(codes), strict=True):
        assert unpacked.dtype == sent.dtype
        assert all(plane.dtype == np.uint8 for plane in packed)
        for row, expected in enumerate(sent.tolist()):
            assert [np.asarray(plane[row]).tobytes() for plane in packed] == by_hand(expected)
        np.testing.assert_array_equal(unpacked, sent)


def test_a_code_of_few_bits_may_come_in_a_wide_type():
    codes = jnp.arange(13, dtype=jnp.uint32)
    packed = jax.jit(codecs.pack, static_argnums=1)(codes, 6)
    assert [np.asarray(plane).tobytes() for plane in packed] == packed_by_hand(codes.tolist(), 6)
    np.testing.assert_array_equal(codecs.unpack(packed, 6, 13), codes)


def test_an_index_takes_the_fewest_bits_that_distinguish_all_elements():
    dimensions = [1, 2, 3, 4, 5, 8, 9, 1000, 1024, 1025, 2**31]
    assert [*map(codecs.index_bits, dimensions)] == [0, 1, 2, 2, 3, 3, 4, 10, 10, 11, 31]
