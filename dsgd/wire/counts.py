"""Exact counts of bits with 32-bit arithmetic.

2^31 bits are only 256 MB: a 32-bit integer overflows within a round, and float32 rounds above 2 MB.
A count therefore consists of four base-2^16 digits in uint32, `[..., 4]`, least significant first.
It is exact below 2^64, and 65,536 counts can be added before the digits must be normalised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import checks

DIGITS = 4
BASE_BITS = 16
_MASK = np.uint32((1 << BASE_BITS) - 1)


def from_bits(bits: int | np.integer | jax.Array, workers: int) -> jax.Array:
    """Returns the count of `bits` for every worker of a block, uint32 `[..., workers, 4]`.

    Args:
        bits: a Python int below 2^64, equal for all workers; or uint32 `[..., workers]`.
        workers: n, the number of workers of the block.

    Raises:
        ValueError: if an int is negative or too large, or `bits` is neither an int nor integers
            `[..., workers]`.
    """
    bits = checks.python_number(bits)
    if not isinstance(bits, jax.Array | np.ndarray):
        return jnp.broadcast_to(jnp.asarray(_digits(bits), jnp.uint32), (workers, DIGITS))
    if bits.shape[-1:] != (workers,) or not jnp.issubdtype(bits.dtype, jnp.integer):
        raise ValueError(
            f"counts.from_bits: bits = {checks.kind(bits)}; expected an integer, or uint32 "
            f"[..., {workers}]"
        )
    low, high = bits & _MASK, bits >> BASE_BITS
    return jnp.stack([low, high, jnp.zeros_like(low), jnp.zeros_like(low)], axis=-1)


def table(bits: Sequence[int | np.integer]) -> np.ndarray:
    """Returns the counts of a list of numbers on the host, uint32 `[k, 4]`.

    Raises:
        ValueError: if a number is negative or too large.
    """
    return np.array([_digits(each) for each in bits], np.uint32)


def _digits(bits: Any) -> list[int]:
    bits = checks.python_number(bits)
    if not checks.is_integer(bits) or not 0 <= bits < 1 << (BASE_BITS * DIGITS):
        raise ValueError(
            f"counts: bits = {checks.show(bits)}; expected an integer from 0 to "
            f"2^{BASE_BITS * DIGITS} - 1"
        )
    return [(bits >> (BASE_BITS * i)) & int(_MASK) for i in range(DIGITS)]


def scale(factors: jax.Array, count: jax.Array) -> jax.Array:
    """Multiplies each count by its factor below 2^16: uint32 `[workers]` and `[workers, 4]` to
    `[workers, 4]`.
    """
    return normalize(count * factors[:, None])


def normalize(count: jax.Array) -> jax.Array:
    """Normalises a count, so that every digit is below 2^16. It is exact for digits up to 2^32 -
    2^16.
    """
    digits, over = [], jnp.zeros_like(count[..., 0])
    for i in range(DIGITS):
        digit = count[..., i] + over
        digits.append(digit & _MASK)
        over = digit >> BASE_BITS
    return jnp.stack(digits, axis=-1)


def carry(count: jax.Array) -> jax.Array:
    """Moves what exceeds 16 bits of each digit to the next one, once. It costs less than
    `normalize`: digits of a sum stay below 2^17 if this is called after each addition.
    """
    over = jnp.pad(count[..., :-1] >> BASE_BITS, [(0, 0)] * (count.ndim - 1) + [(1, 0)])
    return (count & _MASK) + over


def total(count: jax.Array) -> jax.Array:
    """Returns the sum over the leading axis, of up to 65,535 counts: `[k, ..., 4]` to
    `[..., 4]`.
    """
    return normalize(jnp.sum(count, axis=0, dtype=jnp.uint32))


def to_float(count: jax.Array) -> jax.Array:
    """Returns the count rounded to float32: `[..., 4]` to `[...]`."""
    weights = np.float32(2.0) ** (BASE_BITS * np.arange(DIGITS, dtype=np.float32))
    return count.astype(jnp.float32) @ weights


def to_int(count: np.ndarray) -> np.ndarray:
    """Returns the count as uint64 on the host: `[..., 4]` to `[...]`."""
    weights = np.uint64(1) << (np.uint64(BASE_BITS) * np.arange(DIGITS, dtype=np.uint64))
    return np.asarray(np.asarray(count, np.uint64) @ weights)
