"""One message: of each layer what the rule chooses, and how many bits that is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.kimad import budgets
from algorithms.kimad.choices import Choices
from dsgd import checks, codecs
from dsgd.base import PyTree
from dsgd.engine import indices


class Message(NamedTuple):
    """One message.

    Args:
        seen: what the receiver makes of it, like what was sent.
        bits: uint32.
        error: |seen - sent|^2.
        missing: bits by which it is longer than the budget, 0 where it is not.
        outside: a choice of the rule that does not exist; NaN if all do (`dsgd.engine.indices`).
    """

    seen: PyTree
    bits: jax.Array
    error: jax.Array
    missing: jax.Array
    outside: jax.Array


def compress(choices: Choices, rule: Callable, key: jax.Array, tree: PyTree, budget: jax.Array, everything: jax.Array) -> Message:
    """One sender's message, of a tree of vectors `[d]`: each with the compressor that the rule chooses, or all as they are."""
    vectors, treedef = jax.tree.flatten(tree)
    sizes = np.array([choices.sizes(x.shape[0], x.dtype) for x in vectors], np.int64)  # [layers, choices]
    whole = sum(8 * x.dtype.itemsize * x.shape[0] for x in vectors)
    header = header_bits(len(vectors), choices.number)
    smallest = int(sizes.min(axis=1).sum())
    if max(whole, int(sizes.max(axis=1).sum()) + header) >= 1 << 32:
        raise ValueError(f"kimad_sgd: a message of {whole:,} bits uncompressed; need fewer than 2^32")
    available = budgets.whole_bits(budget)
    fits = available >= smallest + header
    for_layers = jnp.where(fits, available - jnp.uint32(header), jnp.uint32(smallest))

    errors, found = zip(*_over_equals(choices.look, jax.random.split(key, len(vectors)), vectors), strict=True)
    errors = jnp.stack(errors)
    chosen = _need_choices(rule(errors, sizes, for_layers), len(vectors))
    seen = _over_equals(choices.send, vectors, found, chosen)
    one = (np.arange(len(vectors)), chosen)
    bits = jnp.sum(jnp.asarray(sizes, jnp.uint32)[one], dtype=jnp.uint32) + jnp.uint32(header)
    missing = jnp.where(bits > available, bits - available, 0).astype(jnp.float32)
    return Message(
        treedef.unflatten(jnp.where(everything, x, part) for x, part in zip(vectors, seen, strict=True)),
        jnp.where(everything, jnp.uint32(whole), bits),
        jnp.where(everything, 0, jnp.sum(errors[one])),
        jnp.where(everything, 0, missing),
        indices.outside(chosen, errors.shape[1] - 1),
    )


def _need_choices(chosen: Any, layers: int) -> jax.Array | np.ndarray:
    """What a rule of one's own gave, where it is a choice for each layer."""
    if not isinstance(chosen, jax.Array | np.ndarray) or chosen.shape != (layers,) or not jnp.issubdtype(chosen.dtype, jnp.integer):
        raise ValueError(f"kimad_sgd: the rule gives {checks.typed(chosen)}: need the choice of each layer, int32 [{layers}]")
    return chosen


def header_bits(layers: int, choices: int) -> int:
    """What says which compressor each layer has, packed in the width that takes fewest bits: of few layers, it is a byte each."""
    bits = codecs.index_bits(choices)
    return min(codecs.packed_bits(width, layers) for width in range(bits, codecs.BYTE * -(-bits // codecs.BYTE) + 1))


def _over_equals(function: Callable, *arguments: Any) -> list[Any]:
    """The function of each layer's arguments. Layers of equal shapes go in one `vmap`: a deep model has few kinds of them to compile."""
    layers = list(zip(*arguments, strict=True))
    kinds: dict[Any, list[int]] = {}
    for i, layer in enumerate(layers):
        kinds.setdefault(tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(layer)), []).append(i)
    results: list[Any] = [None] * len(layers)
    for alike in kinds.values():
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(layers[i] for i in alike))
        together = jax.vmap(function)(*stacked)
        for row, i in enumerate(alike):
            results[i] = jax.tree.map(lambda leaf, row=row: leaf[row], together)
    return results
