"""How long messages are: bits of their arrays, of messages of fixed size, and on average."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dsgd import checks
from dsgd.base import Compressor, PyTree
from dsgd.compressors.members import count_bits, encode

FLOAT_BITS = 32
_ELEMENTS = 1 << 24  # of all vectors that `mean_bits` compresses
_FEWEST, _MOST = 64, 1 << 14  # vectors that it compresses
_AT_ONCE = 64


def array_bits(message: PyTree) -> int:
    """Bits that the message's arrays hold."""
    return sum(8 * leaf.dtype.itemsize * leaf.size for leaf in jax.tree.leaves(message))


def message_shape(compressor: Compressor, d: int, dtype: Any = jnp.float32) -> PyTree:
    """Shapes and types of a message for d elements of a type."""
    x = jax.ShapeDtypeStruct((d,), dtype)
    return jax.eval_shape(
        lambda key, x: encode(compressor, key, x).message, jax.eval_shape(jax.random.key, 0), x
    )


def fixed_bits(compressor: Compressor, d: int, dtype: Any = jnp.float32) -> int | None:
    """Bits of every message for d elements of a type; None if messages differ in size."""
    found: list[int | jax.Array] = []

    def measure(key, x):
        found.append(count_bits(compressor, encode(compressor, key, x).message))

    jax.eval_shape(measure, jax.eval_shape(jax.random.key, 0), jax.ShapeDtypeStruct((d,), dtype))
    return found[0] if isinstance(found[0], int) else None


@checks.arguments
def mean_bits(compressor: Compressor, d: int) -> float:
    """Returns the mean number of bits of a message for d float32 elements.

    It is exact if all messages have the same size. Otherwise it is the mean over messages of
    standard normal vectors, the same ones in each call: 16,384 of them for up to 1,024 elements,
    fewer for more, at least 64.

    Args:
        compressor: any.
        d: number of elements.

    Raises:
        ValueError: d < 1.
    """
    d = checks.positive_int("compressors.mean_bits: d", d)
    fixed = fixed_bits(compressor, d)
    if fixed is not None:
        return float(fixed)

    def bits(key):
        of_vector, of_message = jax.random.split(key)
        x = jax.random.normal(of_vector, (d,), jnp.float32)
        return compressor.bits(encode(compressor, of_message, x).message)

    keys = jax.random.split(jax.random.key(0), min(max(_ELEMENTS // d, _FEWEST), _MOST))
    drawn = jax.jit(lambda keys: jax.lax.map(bits, keys, batch_size=_AT_ONCE))(keys)
    return float(np.mean(np.asarray(drawn), dtype=float))


def wide(x: ArrayLike) -> jax.Array:
    """x in the type that is computed in: float64 of float64, else float32, which holds halves
    exactly.
    """
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def fixed_size(
    compress: Callable,
    decompress: Callable,
    name: str,
    *,
    omega: Callable | None = None,
    delta: Callable | None = None,
) -> Compressor:
    """A compressor whose messages for d elements all have the same size, the bits of their arrays.

    Args:
        delta: None: what omega leaves, 1 - omega if that is positive.
        others: as in `dsgd.Compressor`.
    """
    if delta is None and omega is not None:
        delta = partial(_remainder, omega)
    return Compressor(compress, decompress, array_bits, name, omega, delta)


def _remainder(omega: Callable, d: int) -> float | None:
    """The contraction that a variance of omega |x|^2 leaves: 1 - omega, None if that is none."""
    variance = omega(d)
    return None if variance is None or variance >= 1 else 1.0 - variance
