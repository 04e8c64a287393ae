"""Packing small integer codes into bytes, so that a message holds what it says it holds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt8


def packed_size(d: int, bits: int) -> int:
    """Bytes of d codes of `bits` bits: ceil(d * bits / 8)."""
    return -(-d * bits // 8)


def pack(codes: UInt8[Array, " d"], bits: int) -> UInt8[Array, " bytes"]:
    """d codes below 2^bits in ceil(d * bits / 8) bytes, first code in the highest bits, the last byte padded with zeros.

    Args:
        codes: uint8 `[d]`.
        bits: bits of a code, 1 to 8.
    """
    if bits == 8:
        return codes
    places = jnp.arange(bits - 1, -1, -1, dtype=jnp.uint8)
    return jnp.packbits(((codes[:, None] >> places[None, :]) & 1).ravel())


def unpack(packed: UInt8[Array, " bytes"], bits: int, d: int) -> UInt8[Array, " d"]:
    """The d codes that `pack` packed.

    Args:
        packed: uint8 `[ceil(d * bits / 8)]`.
        bits: bits of a code, 1 to 8.
        d: number of codes.
    """
    if bits == 8:
        return packed
    flags = jnp.unpackbits(packed, count=d * bits).reshape(d, bits)
    places = jnp.arange(bits - 1, -1, -1, dtype=jnp.uint8)
    return jax.lax.reduce(flags << places[None, :], jnp.uint8(0), jax.lax.bitwise_or, (1,))
