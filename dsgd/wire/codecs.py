"""Packing small integers into bytes, so that a message holds what it says it holds.

The layout is made for one pass: a byte takes its codes from places that are far apart (every eighth
of the vector), not from neighbours, so that packing is shifts of contiguous slices, which XLA fuses
with whatever makes the codes into one vectorised loop. Codes whose bits do not divide a byte are
split into planes that do, each an array: joined into one, they would be a loop with a branch for
every byte.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, UInt8, UInt32

from dsgd import checks

BYTE = 8
_WIDEST = 32  # bits of a code
TRITS = 5  # ternary digits in a byte: 3^5 = 243


def index_bits(d: int) -> int:
    """Bits of an index into d elements: ceil(log2 d)."""
    return (d - 1).bit_length()


def pack(codes: UInt8[Array, " d"] | UInt32[Array, " d"], bits: int) -> tuple[jax.Array, ...]:
    """d codes below 2^bits in planes: the lowest byte of every code, the next byte, ..., then the
    bits that are left, the highest 4, 2, 1.

    Where a byte has room for s codes, byte j of a plane of m bytes holds codes j, j + m, j + 2m,
    ... from its lowest bit on.

    Args:
        codes: `[d]`.
        bits: bits of a code, 0 to 32; of uint8 codes, 0 to 8. With 0 all codes are 0.

    Returns:
        uint8 arrays, `[ceil(d * width / 8)]` for each plane's width.

    Raises:
        ValueError: another number of bits, more of them than the codes' type has, or codes that
            need more; traced codes are not looked at.
    """
    bits = _need_bits("pack", bits)
    if (
        jnp.ndim(codes) != 1
        or codes.dtype not in (jnp.uint8, jnp.uint32)
        or bits > BYTE * codes.dtype.itemsize
    ):
        need = "uint32 [d]" if bits > BYTE else "uint8 or uint32 [d]"
        raise ValueError(
            f"codecs.pack: codes = {checks.typed(codes)} for bits = {bits}: need {need}"
        )
    if not isinstance(codes, Tracer) and codes.size and int(codes.max()) >> bits:
        raise ValueError(
            f"codecs.pack: a code of {int(codes.max())} in {bits} bits; expected codes below "
            f"2^{bits}: pass more bits"
        )
    return tuple(
        _pack_plane((codes >> shift).astype(jnp.uint8), width) for shift, width in _planes(bits)
    )


def unpack(
    planes: tuple[jax.Array, ...], bits: int, d: int
) -> UInt8[Array, " d"] | UInt32[Array, " d"]:
    """The d codes that `pack` packed, uint8 up to 8 bits and uint32 above.

    Args:
        planes: of `pack`.
        bits: bits of a code, 0 to 32.
        d: number of codes.

    Raises:
        ValueError: another number of bits.
    """
    bits = _need_bits("unpack", bits)
    kind = jnp.uint8 if bits <= BYTE else jnp.uint32
    codes = jnp.zeros(d, kind)
    for plane, (shift, width) in zip(planes, _planes(bits), strict=True):
        codes |= _unpack_plane(plane, width)[:d].astype(kind) << shift
    return codes


def packed_bits(bits: int, d: int) -> int:
    """Bits that d codes take, packed.

    Args:
        bits: bits of a code, 0 to 32.
        d: number of codes.

    Raises:
        ValueError: another number of bits.
    """
    d = checks.natural("codecs.packed_bits: d", d, most=None)
    return sum(
        BYTE * -(-d * width // BYTE) for _, width in _planes(_need_bits("packed_bits", bits))
    )


def pack_trits(codes: UInt8[Array, " d"]) -> UInt8[Array, " bytes"]:
    """d codes below 3 in ceil(d / 5) bytes, 1.6 bits each: byte j is the sum of 3^k times code j +
    k ceil(d / 5).
    """
    size = -(-codes.shape[0] // TRITS)
    codes = jnp.pad(codes, (0, size * TRITS - codes.shape[0]))
    packed = codes[:size]
    for k in range(1, TRITS):
        packed += codes[k * size : (k + 1) * size] * jnp.uint8(3**k)
    return packed


def unpack_trits(packed: UInt8[Array, " bytes"], d: int) -> UInt8[Array, " d"]:
    """The d codes that `pack_trits` packed."""
    return jnp.concatenate([packed // jnp.uint8(3**k) % jnp.uint8(3) for k in range(TRITS)])[:d]


def _need_bits(function: str, bits: Any) -> int:
    if not checks.is_integer(bits) or not 0 <= bits <= _WIDEST:
        raise ValueError(
            f"codecs.{function}: bits = {checks.shown(bits)}: need an integer from 0 to {_WIDEST}"
        )
    return int(bits)


def _planes(bits: int) -> list[tuple[int, int]]:
    """(shift, width) of each plane. Widths divide a byte, so that no code lies across two."""
    whole, rest = bits // BYTE * BYTE, bits % BYTE
    high = [(whole + (rest & (width - 1)), width) for width in (4, 2, 1) if rest & width]
    return [(shift, BYTE) for shift in range(0, whole, BYTE)] + high


def _pack_plane(codes: jax.Array, width: int) -> jax.Array:
    """Codes whose `width` low bits count."""
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
