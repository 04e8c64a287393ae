"""Messages of fixed size: their bits are those of their arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dsgd.base import Compressor, PyTree

FLOAT_BITS = 32


def array_bits(message: PyTree) -> int:
    """Bits that the message's arrays hold."""
    return sum(8 * leaf.dtype.itemsize * leaf.size for leaf in jax.tree.leaves(message))


def message_shape(compress: Callable, d: int, dtype: Any = jnp.float32) -> PyTree:
    """Shapes and types of a message for d elements of a type."""
    return jax.eval_shape(compress, jax.eval_shape(jax.random.key, 0), jax.ShapeDtypeStruct((d,), dtype))


def wide(x: ArrayLike) -> jax.Array:
    """x in the type that is computed in: float64 of float64, else float32, which holds halves exactly."""
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def fixed_size(
    compress: Callable,
    decompress: Callable,
    name: str,
    *,
    unbiased: bool,
    omega: Callable = lambda d: None,
    delta: Callable | None = None,
    resume: Callable | None = None,
) -> Compressor:
    """A compressor whose messages for d elements are all as long.

    Args:
        delta: None: what omega leaves, see `remainder`.
        others: as in `dsgd.Compressor`.
    """
    return Compressor(
        compress=compress,
        decompress=decompress,
        bits=array_bits,
        mean_bits=lambda d: float(array_bits(message_shape(compress, d))),
        unbiased=unbiased,
        omega=omega,
        delta=delta or (lambda d: remainder(omega(d))),
        name=name,
        resume=resume,
    )


def remainder(omega: float | None) -> float | None:
    """The contraction that a variance of omega |x|^2 leaves: 1 - omega, None where that is none."""
    return None if omega is None or omega >= 1 else 1.0 - omega
