"""Compressors built from other compressors, the identity, and `apply` for pytrees outside of
methods.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.flatten_util import ravel_pytree

from dsgd import checks, xla
from dsgd.base import Compressor, Encoded, Key, PyTree
from dsgd.compressors.members import constant_at, encode, require_cold
from dsgd.compressors.sizes import fixed_size, wide

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
    require_cold(name, compressor)

    def compress(key, x, common=None):
        def encode_bucket(number, key, bucket):
            return encode(compressor, key, bucket, common=common and common.fold_in(number))

        count, left = divmod(x.shape[0], size)
        full_key, rest_key = jax.random.split(key)
        keys, cut = jax.random.split(full_key, count), x[: count * size].reshape(count, size)
        full = jax.vmap(encode_bucket)(np.arange(count), keys, cut) if count else None
        rest = encode_bucket(count, rest_key, x[count * size :]) if left else None
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
        def evaluate(d):
            values = [constant(part) for part in sizes(d)]
            return None if None in values else choose(values)

        return constant and evaluate

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
    require_cold(name, compressor)

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


class Induced(NamedTuple):
    """A message of `induced`.

    Args:
        first: message of the vector.
        second: message of the first one's error.
    """

    first: PyTree
    second: PyTree


@checks.arguments
def induced(biased: Compressor, unbiased: Compressor) -> Compressor:
    r"""Compresses the error of a compressor by an unbiased one, so that the sum is unbiased.

    $$ Q'(x) = C(x) + Q(x - C(x)), \qquad E|Q'(x) - x|^2 \le \omega (1 - \delta) |x|^2 $$

    A message consists of one of C and one of Q, and takes the time of both. The error of C is
    computed in float64 for float64 vectors, else in float32.

    Args:
        biased: C, a contraction with constant $\delta$; without one, no omega is stated.
        unbiased: Q, with constant $\omega$.

    Raises:
        ValueError: if the second compressor is biased, or one has a warm start.

    Source: Horvath and Richtarik, "A better alternative to error feedback for
    communication-efficient distributed learning", 2021.
    """
    name = f"induced({biased.name}, {unbiased.name})"
    require_cold(name, biased)
    require_cold(name, unbiased)
    if not unbiased.unbiased:
        raise ValueError(f"{name}: {unbiased.name} is biased; expected an unbiased compressor")

    def compress(key, x, common=None):
        first_key, second_key = jax.random.split(key)
        first = encode(biased, first_key, x, common=common and common.fold_in(0))
        decoded = xla.materialize(wide(first.decoded))
        error = wide(x) - decoded
        second = encode(unbiased, second_key, error, common=common and common.fold_in(1))
        return Encoded(Induced(first.message, second.message), decoded + second.decoded)

    def decompress(message, d):
        first = biased.decompress(message.first, d)
        return wide(first) + unbiased.decompress(message.second, d)

    def omega(d):
        left, variance = constant_at(biased.delta, d), constant_at(unbiased.omega, d)
        return None if left is None or variance is None else variance * (1 - left)

    both = fixed_size(compress, decompress, name, omega=omega)
    return both._replace(
        bits=lambda message: biased.bits(message.first) + unbiased.bits(message.second)
    )


@checks.arguments
def repeated(compressor: Compressor, times: int) -> Compressor:
    r"""Compresses the remaining error several times.

    $$ v_0 = 0, \qquad v_r = v_{r-1} + C(x - v_{r-1}), \qquad C'(x) = v_R, \qquad
    E|C'(x) - x|^2 \le (1 - \delta)^R |x|^2 $$

    A message consists of R messages of C. If C is unbiased, so is C', with constant $\omega^R$.
    Repeated `top_k` selects the same elements as `top_k` of R k. Elements are sent in float64 for
    float64 vectors, else in float32.

    Args:
        compressor: C.
        times: R.

    Raises:
        ValueError: if times < 1, or the compressor has a warm start.

    Source: Huang et al., "Lower bounds and nearly optimal algorithms in distributed learning with
    communication compression", 2022 (the multi-step compression of NEOLITHIC).
    """
    name = f"repeated({compressor.name}, {times})"
    checks.positive_int(f"{name}: times", times)
    require_cold(name, compressor)

    def compress(key, x, common=None):
        def send(v, number, key):
            part = common and common.fold_in(number)
            return encode(compressor, key, wide(x) - v, common=part)

        def step(v, numbered):
            message, decoded = send(v, *numbered)
            return v + decoded, message

        # The sum has the type of its terms, as that of the receivers.
        term = jax.eval_shape(send, wide(x), 0, key).decoded
        numbers, keys = jnp.arange(times), jax.random.split(key, times)
        v, messages = lax.scan(step, jnp.zeros_like(term), (numbers, keys))
        return Encoded(messages, v)

    def decompress(messages, d):
        decoded = jax.vmap(lambda message: compressor.decompress(message, d))(messages)
        # The terms are added in the sender's order.
        return lax.scan(lambda v, term: (v + term, None), jnp.zeros_like(decoded[0]), decoded)[0]

    def bits(messages):
        first = compressor.bits(jax.tree.map(lambda leaf: leaf[0], messages))
        if isinstance(first, int):
            return times * first
        return jnp.sum(jax.vmap(compressor.bits)(messages), dtype=jnp.uint32)

    def omega(d):
        inner = constant_at(compressor.omega, d)
        return None if inner is None else inner**times

    def delta(d):
        inner = constant_at(compressor.delta, d)
        return None if inner is None else 1 - (1 - inner) ** times

    return Compressor(
        compress,
        decompress,
        bits,
        name,
        omega=omega if compressor.unbiased else None,
        delta=delta if compressor.delta else None,
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
    x = jax.tree_util.tree_map_with_path(
        lambda path, leaf: _finite(compressor, jax.tree_util.keystr(path), leaf), x
    )
    if not compressor.layer_wise:
        flat, unravel = ravel_pytree(x)
        return unravel(_decode(compressor, checks.typed_key(key), flat))
    leaves, treedef = jax.tree.flatten(x)
    return treedef.unflatten(
        [_decode(compressor, jax.random.fold_in(key, i), leaf) for i, leaf in enumerate(leaves)]
    )


def _decode(compressor: Compressor, key: jax.Array, leaf: jax.Array) -> jax.Array:
    return encode(compressor, key, jnp.ravel(leaf)).decoded.reshape(leaf.shape).astype(leaf.dtype)


def _finite(compressor: Compressor, path: str, leaf: Any) -> jax.Array:
    """Returns the leaf as an array, if it is floating point, and finite unless it is traced."""
    where = f"apply: {compressor.name} of leaf {path}" if path else f"apply: {compressor.name}"
    if checks.is_numeric(leaf):
        leaf = checks.copy_array(where, leaf)
    if not checks.is_numeric(leaf) or not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
        given = leaf.dtype if hasattr(leaf, "dtype") else checks.show(leaf)
        raise ValueError(f"{where}: got {given}; expected floating point")
    if np.size(leaf) == 0:
        raise ValueError(f"{where}: the leaf has no elements; expected at least one")
    if isinstance(leaf, Tracer):
        return leaf
    wrong = np.flatnonzero(~np.isfinite(np.asarray(leaf, np.float64)))
    if wrong.size:
        value = np.ravel(np.asarray(leaf, np.float64))[wrong[0]]
        raise ValueError(
            f"{where}: element {wrong[0]} is {value} ({wrong.size} of {np.size(leaf)} are not "
            "finite); expected finite elements"
        )
    return jnp.asarray(leaf)
