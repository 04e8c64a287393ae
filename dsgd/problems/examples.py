"""Samples, and the batches that are drawn of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import keystr, tree_leaves_with_path
from scipy.sparse import issparse

from dsgd import array_likes, checks
from dsgd.base import PyTree
from dsgd.machines.arrays import by_worker, from_host
from dsgd.problems import sparse


class Examples(NamedTuple):
    """Samples of one worker, of a batch, or with a leading worker axis.

    Args:
        inputs: a pytree, leaves `[m, ...]`.
        targets: likewise; classes are int32 `[m]`.
        weights: float `[m]`: 1 for a sample, 0 for one that does not count, as the padding that makes all workers' arrays equally long.
    """

    inputs: PyTree
    targets: PyTree
    weights: jax.Array


@checks.arguments
@dataclass(frozen=True)
class minibatch:  # noqa: N801 (made and called like the functions that it stands beside)
    """Draws a batch of one worker's samples, uniformly and afresh in every round, on the device.

    Called as (key, worker's `Examples`), it returns a batch, `Examples` `[B, ...]`.

    Args:
        batch_size: B.
        replacement: whether one sample may be drawn twice in a batch. Without, the batch of a worker with m < B samples has all m, in
            random order; the weights of the other B - m are 0, so that means are over the m.

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
            counted = jnp.ones(self.batch_size, mine.weights.dtype)
        else:
            # The B largest of one random number a sample: a uniform draw without replacement. Padding comes last, and does not count.
            lots = jax.random.uniform(key, mine.weights.shape)
            _, chosen = lax.top_k(jnp.where(mine.weights > 0, lots, -1), min(self.batch_size, lots.size))
            chosen = jnp.pad(chosen, (0, self.batch_size - chosen.size))
            counted = (jnp.arange(self.batch_size) < jnp.sum(mine.weights)).astype(mine.weights.dtype)
        inputs, targets = jax.tree.map(lambda leaf: leaf[chosen], (mine.inputs, mine.targets))
        return Examples(inputs, targets, counted)


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


def one(samples: PyTree) -> PyTree:
    """The shapes and types of a single sample: of `SparseRows` those of the dense row, whatever their k."""

    def kind(leaf: Any) -> jax.ShapeDtypeStruct:
        values = leaf.values if isinstance(leaf, sparse.SparseRows) else leaf
        return jax.ShapeDtypeStruct(leaf.shape[1:], values.dtype)

    return jax.tree.map(kind, samples, is_leaf=lambda node: isinstance(node, sparse.SparseRows))


def arrays(what: str, pair: Any) -> tuple[PyTree, PyTree]:
    """Inputs and targets as numpy arrays.

    Args:
        what: they are, for messages.
        pair: (inputs, targets), pytrees of arrays `[M, ...]`, see `array_likes.tree`; targets may be (). Inputs may be sparse matrices of
            scipy's, which become `SparseRows`, or dense arrays if these are smaller.

    Raises:
        ValueError: no pair, no samples, leaves of different length, or without elements, or that are not numbers, not finite, or beyond
            what JAX's types hold.
    """
    if not isinstance(pair, tuple | list) or len(pair) != 2 or (isinstance(pair, list) and _of_workers(pair)):
        several = f"; for {len(pair)} workers' own data pass problems.ByWorker(lambda n: data[n])" if _of_workers(pair) else ""
        raise ValueError(f"{what} = {checks.shown(pair)}: need a pair (inputs, targets){several}")
    inputs = array_likes.tree(f"{what}: inputs", pair[0], _inputs)
    targets = array_likes.tree(f"{what}: targets", pair[1], _samples)
    if not jax.tree.leaves(inputs):
        raise ValueError(f"{what}: inputs = {checks.shown(pair[0])} has no arrays; need leaves [M, ...]")
    length = len(jax.tree.leaves(inputs)[0])
    for path, leaf in tree_leaves_with_path((inputs, targets)):
        if len(leaf) != length or not length:
            where = f"{what}: {('inputs', 'targets')[path[0].idx]}{keystr(path[1:])} has shape {leaf.shape}"
            several = "; or, for workers' own data, problems.ByWorker(lambda n: data[n])" if _of_workers(pair) else ""
            raise ValueError(f"{where}; need [M, ...] with one M, at least 1, for all arrays{several}")
    return inputs, targets


def _of_workers(pairs: Any) -> bool:
    """Whether it looks like a list of the workers' (inputs, targets)."""
    return isinstance(pairs, tuple | list) and len(pairs) > 1 and all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs)


def _inputs(where: str, leaf: Any) -> PyTree:
    return sparse.smaller(where, leaf)[0] if issparse(leaf) else _samples(where, leaf)


def _samples(where: str, leaf: Any) -> np.ndarray:
    array = array_likes.numbers(where, leaf)
    if array.ndim < 1 or 0 in array.shape[1:]:
        raise ValueError(f"{where} has shape {array.shape}; need an array of numbers [M, ...] with at least one element a sample")
    if jnp.issubdtype(array.dtype, jnp.floating) and not np.isfinite(array).all():
        raise ValueError(f"{where} has entries that are not finite")
    return array_likes.kept(where, array)
