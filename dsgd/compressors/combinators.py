"""Compressors built from other compressors, the identity, and `apply` for pytrees outside of
methods.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.flatten_util import ravel_pytree

from dsgd import checks
from dsgd.base import Compressor, Encoded, Key, PyTree
from dsgd.compressors.members import encode
from dsgd.compressors.sizes import fixed_size

identity: Compressor = fixed_size(
    compress=lambda key, x: x,
    decompress=lambda message, d: message,
    name="identity",
    omega=lambda d: 0.0,
)
"""The identity: sends every element without compression."""


class Bucketed(NamedTuple):
    """A message of `buckets`.

    Args:
        full: messages of the full buckets, leaves `[buckets, ...]`, or None.
        rest: message of the remaining elements, or None.
    """

    full: PyTree
    rest: PyTree


@checks.arguments
def buckets(compressor: Compressor, size: int) -> Compressor:
    r"""Compresses every `size` consecutive elements separately, so that the error of an element
    depends on its bucket only.

    $$ \omega(d) = \max_B \omega(|B|), \qquad \delta(d) = \min_B \delta(|B|) $$

    Args:
        compressor: the compressor of a bucket.
        size: number of elements of a bucket; the last bucket has the remaining ones.

    Raises:
        ValueError: if size < 1, or if the compressor has a warm start (a bucket is not a matrix).

    Source: Alistarh et al., "QSGD", 2017, section 4; Liu and Zhang, section 3.1.1, caveat 1.
    """
    name = f"buckets({compressor.name}, {size})"
    checks.positive_int(f"{name}: size", size)
    if compressor.warm:
        raise ValueError(
            f"{name}: {compressor.name} has a warm start; expected a compressor without warm start"
        )

    def compress(key, x, common=None):
        def of_bucket(number, key, bucket):
            return encode(compressor, key, bucket, common=common and common.fold_in(number))

        count, left = divmod(x.shape[0], size)
        full_key, rest_key = jax.random.split(key)
        keys, cut = jax.random.split(full_key, count), x[: count * size].reshape(count, size)
        full = jax.vmap(of_bucket)(np.arange(count), keys, cut) if count else None
        rest = of_bucket(count, rest_key, x[count * size :]) if left else None
        decoded = jnp.concatenate([part.decoded.ravel() for part in (full, rest) if part])
        return Encoded(Bucketed(full and full.message, rest and rest.message), decoded)

    def decompress(message, d):
        count, left = divmod(d, size)
        full = (
            [jax.vmap(lambda part: compressor.decompress(part, size))(message.full).ravel()]
            if count
            else []
        )
        return jnp.concatenate([*full, compressor.decompress(message.rest, left)] if left else full)

    def bits(message):
        rest = 0 if message.rest is None else compressor.bits(message.rest)
        if message.full is None:
            return rest
        first = compressor.bits(jax.tree.map(lambda leaf: leaf[0], message.full))
        if isinstance(first, int):
            return first * jax.tree.leaves(message.full)[0].shape[0] + rest
        return jnp.sum(jax.vmap(compressor.bits)(message.full), dtype=jnp.uint32) + jnp.uint32(rest)

    def sizes(d):
        return {part for part in (min(d, size), d % size) if part}

    def all_of(choose, constant):
        def of(d):
            values = [constant(part) for part in sizes(d)]
            return None if None in values else choose(values)

        return constant and of

    omega, delta = all_of(max, compressor.omega), all_of(min, compressor.delta)
    return compressor._replace(
        compress=compress, decompress=decompress, bits=bits, name=name, omega=omega, delta=delta
    )


class WholeModel(Compressor):
    """A compressor that treats a pytree as one vector."""

    __slots__ = ()

    @property
    def layer_wise(self) -> bool:
        """Returns False: all leaves of a pytree are compressed together."""
        return False


@checks.arguments
def whole_model(compressor: Compressor) -> Compressor:
    """Returns the compressor applied to the whole model as one vector. Without it, each leaf of the
    pytree (a layer's weights, its biases) is compressed separately.

    The message then has one header instead of one for each leaf, and one range, scale or selection
    for all leaves.

    Args:
        compressor: any.
    """
    return (
        WholeModel._make(compressor._replace(name=f"whole_model({compressor.name})"))
        if compressor.layer_wise
        else compressor
    )


@checks.arguments
def contraction(compressor: Compressor) -> Compressor:
    r"""Scales an unbiased compressor down to a contraction, for methods with error memory.

    $$ C(x) = \frac{1}{1+\omega} Q(x), \qquad E|C(x) - x|^2 \le \Big(1 - \frac{1}{1+\omega}\Big)
    |x|^2 $$

    The messages are those of Q.

    Args:
        compressor: Q, unbiased, with an omega.

    Raises:
        ValueError: if the compressor is biased, has no omega, or has a warm start.

    Source: Richtarik, Sokolov and Fatkhullin, "EF21", 2021, section 2.
    """
    name = f"contraction({compressor.name})"
    omega = compressor.omega
    if omega is None or omega(1) is None:
        raise ValueError(
            f"{name}: {compressor.name} states no omega; expected an unbiased compressor with an "
            "omega"
        )
    if compressor.warm:
        raise ValueError(
            f"{name}: {compressor.name} has a warm start; expected a compressor without warm start"
        )

    def shrink(d):
        return 1 / (1 + omega(d))

    def compress(key, x, common=None):
        message, decoded = encode(compressor, key, x, common=common)
        return Encoded(message, decoded * shrink(x.shape[0]))

    def decompress(message, d):
        return compressor.decompress(message, d) * shrink(d)

    return compressor._replace(
        compress=compress, decompress=decompress, name=name, omega=None, delta=shrink
    )


@checks.arguments
def apply(compressor: Compressor, key: Key, x: PyTree) -> PyTree:
    """Returns what a receiver decodes of a pytree: each leaf is compressed separately, or all
    together if the compressor is a `whole_model`.

    Args:
        compressor: any.
        key: one key for the whole pytree.
        x: a pytree of floating-point arrays.

    Raises:
        ValueError: if a leaf is empty or not floating point, or, outside of `jax.jit`, has an
            element that is not finite.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        _check_finite(compressor, jax.tree_util.keystr(path), leaf)
    x = jax.tree.map(jnp.asarray, x)
    if not compressor.layer_wise:
        flat, unravel = ravel_pytree(x)
        return unravel(_decoded(compressor, key, flat))
    leaves, treedef = jax.tree.flatten(x)
    return treedef.unflatten(
        [_decoded(compressor, jax.random.fold_in(key, i), leaf) for i, leaf in enumerate(leaves)]
    )


def _decoded(compressor: Compressor, key: jax.Array, leaf: jax.Array) -> jax.Array:
    return encode(compressor, key, jnp.ravel(leaf)).decoded.reshape(leaf.shape).astype(leaf.dtype)


def _check_finite(compressor: Compressor, path: str, leaf: Any) -> None:
    where = f"apply: {compressor.name} of leaf {path}" if path else f"apply: {compressor.name}"
    if not checks.is_numeric(leaf) or not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
        given = leaf.dtype if hasattr(leaf, "dtype") else checks.shown(leaf)
        raise ValueError(f"{where}: got {given}; expected floating point")
    if np.size(leaf) == 0:
        raise ValueError(f"{where}: the leaf has no elements; expected at least one")
    if isinstance(leaf, Tracer):
        return
    wrong = np.flatnonzero(~np.isfinite(np.asarray(leaf, np.float64)))
    if wrong.size:
        value = np.ravel(np.asarray(leaf, np.float64))[wrong[0]]
        raise ValueError(
            f"{where}: element {wrong[0]} is {value} ({wrong.size} of {np.size(leaf)} are not "
            "finite); expected finite elements"
        )
