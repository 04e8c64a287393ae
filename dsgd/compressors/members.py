"""Calls of a compressor's members that validate their results; see `dsgd.Compressor`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import causes, checks
from dsgd.base import Common, Compressor, Encoded, Key, PyTree


@checks.arguments
def encode(
    compressor: Compressor,
    key: Key,
    x: jax.Array,
    last: PyTree = None,
    common: Common | None = None,
) -> Encoded:
    """Returns the message of a vector, and the vector that its receivers decode.

    If `compress` returns both, neither is computed from the other, and XLA removes an unused one
    from a compiled program.

    Args:
        compressor: any.
        key: key of the random numbers.
        x: `[d]`, floating point.
        last: previous message of this vector, for compressors with warm start; None: there is none.
        common: what all senders of the exchange share; compressors without common draws ignore it.
            None: the sender is alone.

    Returns:
        `message`, a pytree of arrays, and `decoded`, `[d]`.

    Raises:
        ValueError: if x is not a vector; if last is given and the compressor has no warm start;
            if `compress` or `decompress` do not return a message and a vector.
    """
    if jnp.ndim(x) != 1:
        raise ValueError(
            f"encode: x = {checks.kind(x)}; expected a vector [d]: compressors.apply compresses "
            "pytrees of arrays"
        )
    if last is not None and not compressor.warm:
        raise ValueError(
            f"encode: last = {checks.kind(last)}, but {compressor.name} has no warm start; "
            "expected last=None"
        )
    x = jnp.asarray(x)
    given = {} if last is None else {"last": last}
    if common is not None and compressor.shares:
        given["common"] = common
    with causes.error_context(f"compress of {compressor.name}"):
        encoded = compressor.compress(key, x, **given)
    if isinstance(encoded, Encoded):
        return Encoded(
            _require_message(compressor, encoded.message),
            _require_vector(compressor, "compress", encoded.decoded, x.shape[0]),
        )
    message = _require_message(compressor, encoded)
    return Encoded(message, decode(compressor, message, x.shape[0]))


def decode(compressor: Compressor, message: PyTree, d: int) -> jax.Array:
    """Returns the vector that the receivers of a message decode, `[d]`.

    Raises:
        ValueError: if `decompress` does not return a floating-point vector `[d]`.
    """
    with causes.error_context(f"decompress of {compressor.name}"):
        decoded = compressor.decompress(message, d)
    return _require_vector(compressor, "decompress", decoded, d)


def count_bits(compressor: Compressor, message: PyTree) -> int | jax.Array:
    """Returns the number of bits of a message: an int if all messages have the same size, else a
    uint32 scalar.

    Raises:
        ValueError: if `bits` returns neither.
    """
    with causes.error_context(f"bits of {compressor.name}"):
        bits = compressor.bits(message)
    traced = isinstance(bits, jax.Array) and bits.shape == () and bits.dtype == jnp.uint32
    if not traced and (not isinstance(bits, int) or isinstance(bits, bool) or bits < 0):
        raise ValueError(
            f"{compressor.name}: bits returned {checks.kind(bits)}; expected an int, or a uint32 "
            "scalar if messages differ in size"
        )
    return bits


def constant_at(constant: Callable | None, d: int) -> Any:
    """Returns the value for d elements of a compressor's `omega` or `delta`; None if it states
    none.
    """
    return None if constant is None else constant(d)


def require_cold(where: str, compressor: Compressor) -> None:
    """Raises ValueError if the compressor has a warm start.

    Args:
        where: beginning of the message.
        compressor: any.
    """
    if compressor.warm:
        raise ValueError(
            f"{where}: {compressor.name} has a warm start; expected a compressor without warm start"
        )


def _require_message(compressor: Compressor, message: Any) -> Any:
    leaves = jax.tree.leaves(message)
    if not leaves or not all(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves):
        raise ValueError(
            f"{compressor.name}: compress returned {checks.kind(message)}; expected a message, a "
            "pytree of arrays"
        )
    return message


def _require_vector(compressor: Compressor, member: str, x: Any, d: int) -> jax.Array:
    if not isinstance(x, jax.Array) or x.shape != (d,) or not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(
            f"{compressor.name}: {member} returned {checks.kind(x)}; expected a floating-point "
            f"vector [{d}]"
        )
    return x
