"""Sizes of messages in bits: of their arrays, fixed sizes, and mean sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dsgd import checks
from dsgd.base import Compressor, PyTree
from dsgd.compressors.members import count_bits, encode

FLOAT_BITS = 32
_ELEMENTS = 1 << 24  # total number of elements that `mean_bits` compresses, at most
_FEWEST, _MOST = 64, 1 << 14  # limits of the number of vectors that it compresses
_AT_ONCE = 64


def array_bits(message: PyTree) -> int:
    """Returns the number of bits of the message's arrays."""
    return sum(8 * leaf.dtype.itemsize * leaf.size for leaf in jax.tree.leaves(message))


def message_shape(compressor: Compressor, d: int, dtype: Any = jnp.float32) -> PyTree:
    """Returns the shapes and types of a message for d elements of a type."""
    x = jax.ShapeDtypeStruct((d,), dtype)
    return jax.eval_shape(
        lambda key, x: encode(compressor, key, x).message, jax.eval_shape(jax.random.key, 0), x
    )


def fixed_bits(compressor: Compressor, d: int, dtype: Any = jnp.float32) -> int | None:
    """Returns the number of bits of every message for d elements of a type; None if messages differ
    in size.
    """
    found: list[int | jax.Array] = []

    def measure(key, x):
        found.append(count_bits(compressor, encode(compressor, key, x).message))

    jax.eval_shape(measure, jax.eval_shape(jax.random.key, 0), jax.ShapeDtypeStruct((d,), dtype))
    return found[0] if isinstance(found[0], int) else None


@checks.arguments
def mean_bits(compressor: Compressor, d: int) -> float:
    """Returns the mean number of bits of a message for d float32 elements.

    It is exact if all messages have the same size. Otherwise it is the mean over messages of
    standard normal vectors, the same ones in each call: 16,384 vectors for up to 1,024 elements,
    fewer for more, at least 64.

    Args:
        compressor: any.
        d: number of elements.

    Raises:
        ValueError: if d < 1.
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
    """Converts x to the type used for computations: float64 for float64, else float32, which
    represents half-precision numbers exactly.
    """
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


@checks.arguments
def fixed_size(
    compress: Annotated[Callable[[Any, Any], Any], "(key, x)"],
    decompress: Annotated[Callable[[Any, Any], Any], "(message, d)"],
    name: str,
    *,
    omega: Annotated[Callable[[Any], Any], "(d)"] | None = None,
    delta: Annotated[Callable[[Any], Any], "(d)"] | None = None,
) -> Compressor:
    r"""Returns a compressor whose messages for d elements all have the same size: the bits of their
    arrays.

    Args:
        compress: (key, x: `[d]`) -> message, a pytree of arrays; or `dsgd.Encoded`.
        decompress: (message, d) -> decoded vector `[d]`.
        name: name in tables and error messages.
        omega: d -> $\omega$, if the compressor is unbiased; None: it is biased.
        delta: d -> $\delta$, if it is a contraction; None: $1 - \omega$ if omega is given and below
            1.

    Raises:
        ValueError: if an argument is not a function with these arguments.
    """
    if delta is None and omega is not None:
        delta = partial(_remainder, omega)
    return Compressor(compress, decompress, array_bits, name, omega, delta)


def _remainder(omega: Callable, d: int) -> float | None:
    """Returns the contraction constant 1 - omega that follows from a variance of omega |x|^2; None
    if it is not positive.
    """
    variance = omega(d)
    return None if variance is None or variance >= 1 else 1.0 - variance
