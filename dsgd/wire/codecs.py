"""Packing of small integers into bytes, so that messages have the size that is reported for
them.

The layout needs only one pass: the codes of a byte come from distant places of the vector (for
1-bit codes, from every eighth of it), not from neighbours. Packing then consists of shifts of
contiguous slices, which XLA fuses with the computation of the codes into one vectorised loop. If
the number of bits does not divide a byte, codes are split into planes whose widths do. Each plane
is a separate array, because a concatenation would become a loop with a branch for every byte.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, UInt8, UInt32

from dsgd import checks

BYTE = 8
_WIDEST = 32  # maximum number of bits of a code
TRITS = 5  # ternary digits in a byte: 3^5 = 243


def index_bits(d: int) -> int:
    """Returns the number of bits of an index into d elements, ceil(log2 d)."""
    return (d - 1).bit_length()


def pack(codes: UInt8[Array, " d"] | UInt32[Array, " d"], bits: int) -> tuple[jax.Array, ...]:
    """Packs d codes below 2^bits into planes.

    The planes contain the lowest byte of every code, the next byte, and so on, and then the
    remaining bits in widths of 4, 2 and 1, of which the first holds the highest bits.

    If a byte has room for s codes, byte j of a plane of m bytes holds the codes j, j + m, j + 2m,
    ..., j + (s - 1)m, from its lowest bit upwards.

    Args:
        codes: `[d]`, uint8 or uint32.
        bits: number of bits of a code, 0 to 32 (0 to 8 for uint8 codes). With 0 all codes are 0.

    Returns:
        uint8 arrays, `[ceil(d * width / 8)]` for each plane's width.

    Raises:
        ValueError: if `bits` is out of range or exceeds the codes' type, or a code needs more bits.
            Values of traced codes are not validated.
    """
    bits = _require_bits("pack", bits)
    if (
        jnp.ndim(codes) != 1
        or codes.dtype not in (jnp.uint8, jnp.uint32)
        or bits > BYTE * codes.dtype.itemsize
    ):
        expected = "uint32 [d]" if bits > BYTE else "uint8 or uint32 [d]"
        raise ValueError(
            f"codecs.pack: codes = {checks.kind(codes)} for bits = {bits}; expected {expected}"
        )
    if not isinstance(codes, Tracer) and codes.size and int(codes.max()) >> bits:
        raise ValueError(
            f"codecs.pack: codes has the entry {int(codes.max())} for bits = {bits}; expected "
            f"codes below 2^{bits}; pass more bits"
        )
    return tuple(
        _pack_plane((codes >> shift).astype(jnp.uint8), width) for shift, width in _planes(bits)
    )


def unpack(
    planes: tuple[jax.Array, ...], bits: int, d: int
) -> UInt8[Array, " d"] | UInt32[Array, " d"]:
    """Returns the d codes that `pack` packed: uint8 for up to 8 bits, otherwise uint32.

    Args:
        planes: result of `pack`.
        bits: number of bits of a code, 0 to 32.
        d: number of codes.

    Raises:
        ValueError: if `bits` is out of range.
    """
    bits = _require_bits("unpack", bits)
    kind = jnp.uint8 if bits <= BYTE else jnp.uint32
    codes = jnp.zeros(d, kind)
    for plane, (shift, width) in zip(planes, _planes(bits), strict=True):
        codes |= _unpack_plane(plane, width)[:d].astype(kind) << shift
    return codes


def packed_bits(bits: int, d: int) -> int:
    """Returns the number of bits of d packed codes.

    Args:
        bits: number of bits of a code, 0 to 32.
        d: number of codes.

    Raises:
        ValueError: if `bits` is out of range.
    """
    d = checks.natural("codecs.packed_bits: d", d, most=None)
    return sum(
        BYTE * -(-d * width // BYTE) for _, width in _planes(_require_bits("packed_bits", bits))
    )


def pack_trits(codes: UInt8[Array, " d"]) -> UInt8[Array, " bytes"]:
    """Packs d codes below 3 into ceil(d / 5) bytes, 1.6 bits each.

    Byte j is the sum over k = 0, ..., 4 of 3^k times code j + k ceil(d / 5).
    """
    size = -(-codes.shape[0] // TRITS)
    codes = jnp.pad(codes, (0, size * TRITS - codes.shape[0]))
    packed = codes[:size]
    for k in range(1, TRITS):
        packed += codes[k * size : (k + 1) * size] * jnp.uint8(3**k)
    return packed


def unpack_trits(packed: UInt8[Array, " bytes"], d: int) -> UInt8[Array, " d"]:
    """Returns the d codes that `pack_trits` packed."""
    return jnp.concatenate([packed // jnp.uint8(3**k) % jnp.uint8(3) for k in range(TRITS)])[:d]


def _require_bits(function: str, bits: Any) -> int:
    if not checks.is_integer(bits) or not 0 <= bits <= _WIDEST:
        raise ValueError(
            f"codecs.{function}: bits = {checks.show(bits)}; expected an integer from 0 to "
            f"{_WIDEST}"
        )
    return int(bits)


def _planes(bits: int) -> list[tuple[int, int]]:
    """Returns (shift, width) of each plane. Widths divide a byte, so no code lies in two bytes of a
    plane.
    """
    whole, rest = bits // BYTE * BYTE, bits % BYTE
    high = [(whole + (rest & (width - 1)), width) for width in (4, 2, 1) if rest & width]
    return [(shift, BYTE) for shift in range(0, whole, BYTE)] + high


def _pack_plane(codes: jax.Array, width: int) -> jax.Array:
    """Packs the `width` lowest bits of each code."""
    size = -(-codes.shape[0] * width // BYTE)
    codes = jnp.pad(codes & ((1 << width) - 1), (0, size * BYTE // width - codes.shape[0]))
    packed = codes[:size]
    for k in range(1, BYTE // width):
        packed |= codes[k * size : (k + 1) * size] << (k * width)
    return packed


def _unpack_plane(packed: jax.Array, width: int) -> jax.Array:
    return jnp.concatenate(
        [(packed >> shift) & ((1 << width) - 1) for shift in range(0, BYTE, width)]
    )
