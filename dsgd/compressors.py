"""What travels: maps from a vector to a packed message and back. See `dsgd.Compressor` for the members."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dsgd import codecs
from dsgd.base import Compressor, PyTree

FLOAT_BITS = 32


def _identity() -> Compressor:
    return Compressor(
        compress=lambda key, x: x,
        decompress=lambda message, d: message,
        bits=lambda message: 8 * message.dtype.itemsize * message.shape[0],
        mean_bits=lambda d: float(FLOAT_BITS * d),
        unbiased=True,
        omega=lambda d: 0.0,
        delta=lambda d: 1.0,
        name="identity",
    )


identity = _identity()


class Quantized(NamedTuple):
    """A message of `random_quantization`: `codes` uint8 `[ceil(d * bits / 8)]`, `low` and `high` float32 scalars."""

    codes: jax.Array
    low: jax.Array
    high: jax.Array


def random_quantization(bits: int) -> Compressor:
    r"""Randomised rounding to $2^b$ equidistant knobs $c_i$ between min(x) and max(x), unbiased.

    $$ Q(x_i) = c_{k+1} \text{ with probability } \frac{x_i - c_k}{c_{k+1} - c_k}, \text{ else } c_k,
       \qquad c_k \le x_i \le c_{k+1} \tag{3.3} $$

    A message is d codes of b bits and the two ends as float32. The variance is $\sum_i (x_i - c_k)(c_{k+1} - x_i)$, at most
    $(d-2) |x|^2 / (2 (2^b - 1)^2)$ for d >= 2: the two extreme elements are knobs, and $(\max - \min)^2 \le 2|x|^2$.

    Args:
        bits: b, 1 to 8.

    Raises:
        ValueError: bits outside 1..8.

    Source: Liu and Zhang, section 3.1.1. Departure: knob 0 is the minimum and knob $2^b - 1$ the maximum; the printed code for
    a constant vector divides by zero, here it is sent exactly.
    """
    if not isinstance(bits, int) or not 1 <= bits <= 8:
        raise ValueError(f"random_quantization({bits}): need bits between 1 and 8")
    steps = 2**bits - 1

    def compress(key, x):
        x = x.astype(jnp.float32)
        low, high = jnp.min(x), jnp.max(x)
        # An eighth of the range: neither it nor its reciprocal, which XLA multiplies by, leaves float32.
        eighth = high / 8 - low / 8
        place = steps * jnp.where(eighth > 0, (x / 8 - low / 8) / jnp.where(eighth > 0, eighth, 1), 0)
        floor = jnp.floor(place)
        up = jax.random.uniform(key, x.shape) < place - floor
        codes = jnp.where(x == high, steps, jnp.clip(floor + up, 0, steps))  # the ends are knobs, whatever the rounding of `place`
        return Quantized(codecs.pack(codes.astype(jnp.uint8), bits), low, high)

    def decompress(message, d):
        codes = codecs.unpack(message.codes, bits, d)
        share = codes.astype(jnp.float32) / steps
        # XLA divides by multiplying with a rounded reciprocal: the last share may not be 1.
        return jnp.where(codes == steps, message.high, message.low * (1 - share) + message.high * share)

    return Compressor(
        compress=compress,
        decompress=decompress,
        bits=lambda message: 8 * message.codes.size + 2 * FLOAT_BITS,
        mean_bits=lambda d: 8.0 * codecs.packed_size(d, bits) + 2 * FLOAT_BITS,
        unbiased=True,
        omega=lambda d: max(d - 2, 0) / (2 * steps**2),
        delta=lambda d: 1 - max(d - 2, 0) / (2 * steps**2) if max(d - 2, 0) < 2 * steps**2 else None,
        name=f"random_quantization({bits})",
    )


def apply(compressor: Compressor, key: jax.Array, x: PyTree) -> PyTree:
    """What the receiver sees: every leaf compressed on its own and decompressed.

    Args:
        compressor: any.
        key: one key for the whole tree.
        x: a pytree of float arrays.
    """
    leaves, treedef = jax.tree.flatten(x)
    seen = []
    for i, leaf in enumerate(leaves):
        message = compressor.compress(jax.random.fold_in(key, i), jnp.ravel(leaf))
        seen.append(compressor.decompress(message, leaf.size).reshape(leaf.shape).astype(leaf.dtype))
    return treedef.unflatten(seen)
