"""Samples, and the batches that are drawn of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import keystr, tree_leaves_with_path

from dsgd import checks, sameness
from dsgd.base import PyTree
from dsgd.machines.arrays import by_worker, from_host

_OWN_KEY = np.uint32(2**32 - 1)


class Examples(NamedTuple):
    """Samples of one worker, of a batch, or with a leading worker axis.

    Args:
        inputs: a pytree, leaves `[m, ...]`.
        targets: likewise; classes are int32 `[m]`.
        weights: float `[m]`: 1 for a sample, 0 for one that does not count, as the padding that makes all workers' arrays equally long.
        key: of a batch, for what its loss draws at random, as dropout does; () if it draws nothing.
    """

    inputs: PyTree
    targets: PyTree
    weights: jax.Array
    key: Any = ()


@checks.arguments
@dataclass(frozen=True)
class minibatch:  # noqa: N801 (made and called like the functions that it stands beside)
    """Draws a batch of one worker's samples, uniformly and afresh in every round, on the device.

    Called as (key, worker's `Examples`), it returns a batch, `Examples` `[B, ...]`.

    Args:
        batch_size: B.
        replacement: whether one sample may be drawn twice in a batch.

    Raises:
        ValueError: batch_size < 1.

    Source: Liu and Zhang, section 1.2.3.
    """

    batch_size: int
    replacement: bool = True

    def __post_init__(self) -> None:
        checks.positive_int("minibatch: batch_size", self.batch_size)

    def __call__(self, key: jax.Array, mine: Examples) -> Examples:
        if self.replacement:
            # One draw of bits a sample, where randint draws two: the remainder favours some by size / 2^32.
            size = jnp.sum(mine.weights).astype(jnp.uint32)
            chosen = jax.random.bits(key, (self.batch_size,), jnp.uint32) % size
        else:
            # The B largest of one random number a sample: a uniform draw without replacement. Padding never wins.
            lots = jax.random.uniform(key, mine.weights.shape)
            _, chosen = lax.top_k(jnp.where(mine.weights > 0, lots, -1), self.batch_size)
        inputs, targets = jax.tree.map(lambda leaf: leaf[chosen], (mine.inputs, mine.targets))
        return Examples(inputs, targets, jnp.ones(self.batch_size, mine.weights.dtype))


@dataclass(frozen=True, eq=False)
class Keyed(sameness.Compared):
    """(key, worker's `Examples`) -> a batch with a key of its own, for losses that draw random numbers.

    Args:
        sample: draws the batch, as it does without.
    """

    sample: Callable[[jax.Array, Examples], Examples]

    def __call__(self, key: jax.Array, mine: Examples) -> Examples:
        return keyed(key, self.sample(key, mine))


def keyed(key: jax.Array, batch: Examples) -> Examples:
    """The batch with a key of its own, made of the one with which it is drawn."""
    return batch._replace(key=jax.random.fold_in(key, _OWN_KEY))


def first(batch: Examples, samples: jax.Array) -> Examples:
    """The batch, of which only so many samples count, the first ones."""
    return batch._replace(weights=jnp.where(jnp.arange(len(batch.weights)) < samples, batch.weights, 0))


def pad(inputs: PyTree, targets: PyTree, parts: list[np.ndarray]) -> Examples:
    """The workers' samples stacked, leaves `[N, longest, ...]`, with zero weights on the padding.

    Args:
        inputs, targets: numpy arrays `[M, ...]`.
        parts: which samples each worker has.
    """
    longest = max(len(part) for part in parts)
    index = np.stack([np.pad(part, (0, longest - len(part)), mode="edge") for part in parts])
    real = np.arange(longest)[None, :] < np.array([len(part) for part in parts])[:, None]

    def stacked(leaf: np.ndarray) -> jax.Array:
        return by_worker(lambda some: converted(leaf[index[some]]), len(parts))

    weights = by_worker(lambda some: real[some].astype(jnp.result_type(float)), len(parts))
    inputs, targets = jax.tree.map(stacked, (inputs, targets))
    return Examples(inputs, targets, weights)


def on_device(inputs: PyTree, targets: PyTree) -> Examples:
    """Samples that everybody has, `[m, ...]`, of numpy arrays."""
    weights = np.ones(len(jax.tree.leaves(inputs)[0]))
    return Examples(*jax.tree.map(lambda leaf: from_host(converted(leaf)), (inputs, targets, weights)))


def converted(leaf: np.ndarray) -> np.ndarray:
    """Real numbers in JAX's default type, integers as they are. By numpy: each conversion on the device would be a program to compile."""
    return leaf.astype(jnp.result_type(float), copy=False) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


def arrays(what: str, pair: tuple[Any, Any]) -> tuple[PyTree, PyTree]:
    """Inputs and targets as numpy arrays.

    Args:
        what: they are, for messages.
        pair: (inputs, targets), pytrees of arrays `[M, ...]`; targets may be ().

    Raises:
        ValueError: no pair, no samples, leaves of different length, or that are not numbers or not finite.
    """
    if len(pair) != 2:
        raise ValueError(f"{what} = {checks.shown(pair)}: need a pair (inputs, targets)")
    length = None
    for path, leaf in tree_leaves_with_path(tuple(pair)):
        where = f"{what}: {('inputs', 'targets')[path[0].idx]}{keystr(path[1:])}"
        if not checks.is_numeric(leaf) or np.ndim(leaf) < 1:
            raise ValueError(f"{where} = {checks.shown(leaf)}: need an array of numbers [M, ...]")
        length = length or np.shape(leaf)[0]
        if np.shape(leaf)[0] != length or not length:
            raise ValueError(f"{where} has shape {np.shape(leaf)}; need [M, ...] with one M, at least 1, for all arrays")
        if jnp.issubdtype(leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype, jnp.floating) and not np.isfinite(leaf).all():
            raise ValueError(f"{where} has entries that are not finite")
    if not jax.tree.leaves(pair[0]):
        raise ValueError(f"{what}: inputs = {checks.shown(pair[0])} has no arrays; need leaves [M, ...]")
    inputs, targets = jax.tree.map(np.asarray, tuple(pair))
    return inputs, targets
