"""Samples, and the batches that are drawn of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import keystr, tree_leaves_with_path
from scipy.sparse import issparse

from dsgd import array_likes, checks, sameness
from dsgd.base import PyTree, Sampler
from dsgd.engine.pooled import Pooled, pool
from dsgd.machines import agreement
from dsgd.machines.arrays import by_worker, from_host
from dsgd.problems import sparse

EPOCH = "epoch"
# samples of a worker up to which a draw without replacement has a random number for each
_LONG = 1 << 16
# bytes of padding that are not worth another layout: arrays `[N, longest, ...]` are easier to look
# at
_WASTE = 1 << 23
_TURNS = 32  # of an order: after so many, the chance that a sample has never been moved is 2^-32

_OWN_KEY = np.uint32(2**32 - 1)


class Examples(NamedTuple):
    """Samples of one worker, of a batch, or with a leading worker axis.

    Args:
        inputs: a pytree, leaves `[m, ...]`.
        targets: likewise; classes are int32 `[m]`.
        weights: float `[m]`: 1 for a sample, 0 for one that does not count, as the padding that
            makes all workers' arrays equally long.
        key: of a batch, for what its loss draws at random, as dropout does; () if it draws nothing.
    """

    inputs: PyTree
    targets: PyTree
    weights: jax.Array
    key: Any = ()


@checks.arguments
def minibatch(batch_size: int, replacement: bool | Literal["epoch"] = True) -> Sampler:
    """Draws a batch of one worker's samples on the device, uniformly, for `Problem.sample`.

    The worker's data and its batches are `Examples`. The loss is a mean with their weights, which
    are 0 for samples that do not count.

    Args:
        batch_size: B.
        replacement: whether one sample may be drawn twice in a batch. Without, the batch of a
            worker with m < B samples has all m, in random order; the weights of the other B - m are
            0, so that means are over the m. "epoch": batches of b = min(B, m) samples of the
            stream, one after the other: batch k has those from k b to k b + b - 1, of which those
            before the next multiple of m belong to one epoch, and the others to the next one. So
            each epoch has each sample once, no batch is cut at its end, and workers with fewer
            samples begin their next epoch sooner.

    Returns:
        A sampler of batches `[B, ...]`, which can be cut; those of epochs are numbered. Its
        `samples` and `batch_sizes` depend on the data and are None;
        `dataclasses.replace(minibatch(B), samples=...)` sets them.

    Raises:
        ValueError: batch_size < 1, or another replacement.

    Source: Liu and Zhang, section 1.2.3.
    """
    checks.positive_int("minibatch: batch_size", batch_size)
    if not isinstance(replacement, bool | np.bool_) and replacement != EPOCH:
        raise ValueError(
            f"minibatch: replacement = {replacement!r}; expected True, False or {EPOCH!r}"
        )
    return Sampler(
        Minibatch(batch_size, replacement),
        batch_size=batch_size,
        take=first,
        numbered=replacement == EPOCH,
    )


@dataclass(frozen=True)
class Minibatch:
    """(key, worker's `Examples`, of epochs the batch's number) -> a batch, `Examples` `[B, ...]`,
    see `minibatch`.

    Args:
        batch_size: B.
        replacement: True, False or "epoch". Batches of epochs are those of a stream, with one key
            for all numbers.
    """

    batch_size: int
    replacement: bool | Literal["epoch"] = True

    def __call__(
        self, key: jax.Array, mine: Examples | Pooled, number: jax.Array | None = None
    ) -> Examples:
        if isinstance(mine, Pooled):
            chosen, counted = self._chosen(
                key, mine.size.astype(jnp.uint32), mine.longest, number, mine.longest > _LONG
            )
            return mine.batch(
                mine.offset + chosen.astype(jnp.int32), counted.astype(jnp.result_type(float))
            )
        size = jnp.sum(mine.weights).astype(jnp.uint32)
        chosen, counted = self._chosen(key, size, mine.weights.shape[0], number)
        inputs, targets = jax.tree.map(lambda leaf: leaf[chosen], (mine.inputs, mine.targets))
        return Examples(inputs, targets, counted.astype(mine.weights.dtype))

    def _chosen(
        self,
        key: jax.Array,
        size: jax.Array,
        longest: int,
        number: jax.Array | None,
        many: bool = False,
    ) -> tuple[jax.Array, jax.Array]:
        """Rows of a worker with so many samples, `[B]`, and which of them count.

        Args:
            key: of the draw.
            size: m, uint32.
            longest: at least m, of all workers.
            number: of the batch, if it is of epochs.
            many: whether a random number for each of the longest worker's samples is too much.
        """
        B = self.batch_size
        if self.replacement == EPOCH:
            if number is None:
                raise ValueError(
                    "minibatch: batches of epochs are numbered; pass "
                    "Problem(sample=problems.minibatch(B, 'epoch'))"
                )
            return _of_epoch(key, number, B, size)
        if self.replacement:
            # One draw of bits a sample, where randint draws two: the remainder favours some by size
            # / 2^32.
            return jax.random.bits(key, (B,), jnp.uint32) % size, jnp.ones(B, bool)
        counted = jnp.arange(B) < size
        if many:
            return _Order.drawn(key, size).of(jnp.arange(B, dtype=jnp.uint32) % size, size), counted
        # The B largest of one random number a sample: a uniform draw without replacement. Padding
        # comes last, and does not count.
        lots = jax.random.uniform(key, (longest,))
        _, chosen = lax.top_k(jnp.where(jnp.arange(longest) < size, lots, -1), min(B, longest))
        return jnp.pad(chosen, (0, B - chosen.size)), counted


def _of_epoch(
    key: jax.Array, number: jax.Array, batch_size: int, m: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Rows of batch `number` of m samples in epochs, uint32 `[B]`, and which of them count."""
    size, k = jnp.minimum(batch_size, m), number.astype(jnp.uint32)
    # k size = (k // m) m size + (k % m) size, without products that do not fit in 32 bits.
    epoch, offset = k // m * size + k % m * size // m, k % m * size % m
    place = offset + jnp.arange(batch_size, dtype=jnp.uint32)
    later = place >= m
    orders = [_Order.drawn(jax.random.fold_in(key, epoch + i), m) for i in range(2)]
    order = jax.tree.map(
        lambda now, next: jnp.where(later[None], next[:, None], now[:, None]), *orders
    )
    return order.of(jnp.where(later, place - m, place) % m, m), jnp.arange(batch_size) < size


class _Order(NamedTuple):
    """A random permutation of 0 to m - 1 of which any place is computed without the others:
    swap-or-not, `_TURNS` times.

    In each turn x and (pivot - x) mod m are swapped, or not, by a random bit of the pair.

    Args:
        pivots: below m, uint32 `[turns]`, or `[turns, B]` for B places.
        salts: likewise.

    Source: Hoang, Morris and Rogaway, "An enciphering scheme based on a card shuffle", 2012.
    """

    pivots: jax.Array
    salts: jax.Array

    @classmethod
    def drawn(cls, key: jax.Array, m: jax.Array) -> _Order:
        pivots, salts = jax.random.bits(key, (2, _TURNS), jnp.uint32)
        return cls(pivots % m, salts)

    def of(self, places: jax.Array, m: jax.Array) -> jax.Array:
        """What is at these places, uint32 `[B]`."""

        def turn(x, drawn):
            pivot, salt = drawn
            other = jnp.where(pivot >= x, pivot - x, pivot + (m - x))
            return jnp.where(_bit(jnp.maximum(x, other), salt), other, x), None

        return lax.scan(turn, places, self)[0]


def _bit(x: jax.Array, salt: jax.Array) -> jax.Array:
    """A bit that looks random for each x, by the mixer of MurmurHash3 (Appleby, 2011)."""
    x = x * np.uint32(0x9E3779B1) ^ salt
    x = (x ^ x >> 16) * np.uint32(0x85EBCA6B)
    x = (x ^ x >> 13) * np.uint32(0xC2B2AE35)
    return x >> 31 == 1


@dataclass(frozen=True, eq=False)
class Keyed(sameness.Compared):
    """(key, worker's `Examples`, of epochs the batch's number) -> a batch with a key of its own,
    for losses that draw random numbers.

    Args:
        sample: draws the batch, as it does without.
    """

    sample: Callable[..., Examples]

    def __call__(
        self, key: jax.Array, mine: Examples | Pooled, number: jax.Array | None = None
    ) -> Examples:
        if number is None:
            return keyed(key, self.sample(key, mine))
        return keyed(jax.random.fold_in(key, number), self.sample(key, mine, number))


def keyed(key: jax.Array, batch: Examples) -> Examples:
    """The batch with a key of its own, made of the one with which it is drawn."""
    return batch._replace(key=jax.random.fold_in(key, _OWN_KEY))


def with_keys(sampler: Sampler) -> Sampler:
    """The sampler whose batches, also those from outside, have keys of their own."""
    return replace(sampler, draw=Keyed(sampler.draw), keyed=keyed)


def first(batch: Examples, samples: jax.Array) -> Examples:
    """The batch, of which only so many samples count, the first ones."""
    return batch._replace(
        weights=jnp.where(jnp.arange(len(batch.weights)) < samples, batch.weights, 0)
    )


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


def stacked(inputs: PyTree, targets: PyTree, parts: list[np.ndarray]) -> Examples | Pooled:
    """The workers' samples as `pad` has them; or in one pool, if padding would more than double the
    memory, by more than 8 MB.

    In runs of several processes they are padded.
    """
    N, sizes = len(parts), [len(part) for part in parts]
    row = sum(leaf[:1].nbytes for leaf in jax.tree.leaves((inputs, targets)))
    more = N * max(sizes) - sum(sizes)
    if agreement.alone() and more > sum(sizes) and more * row > _WASTE:
        inputs, targets = jax.tree.map(converted, (inputs, targets))
        return pool(inputs, targets, parts, Examples)
    return pad(inputs, targets, parts)


def on_device(inputs: PyTree, targets: PyTree) -> Examples:
    """Samples that everybody has, `[m, ...]`, of numpy arrays."""
    weights = np.ones(len(jax.tree.leaves(inputs)[0]))
    return Examples(
        *jax.tree.map(lambda leaf: from_host(converted(leaf)), (inputs, targets, weights))
    )


def converted(leaf: np.ndarray) -> np.ndarray:
    """Real numbers in JAX's default type, integers as they are. By numpy: each conversion on the
    device would be a program to compile.
    """
    return (
        leaf.astype(jnp.result_type(float), copy=False)
        if jnp.issubdtype(leaf.dtype, jnp.floating)
        else leaf
    )


def one(samples: PyTree) -> PyTree:
    """The shapes and types of a single sample: of `SparseRows` those of the dense row, whatever
    their k.
    """

    def kind(leaf: Any) -> jax.ShapeDtypeStruct:
        values = leaf.values if isinstance(leaf, sparse.SparseRows) else leaf
        return jax.ShapeDtypeStruct(leaf.shape[1:], values.dtype)

    return jax.tree.map(kind, samples, is_leaf=lambda node: isinstance(node, sparse.SparseRows))


def arrays(what: str, pair: Any) -> tuple[PyTree, PyTree]:
    """Inputs and targets as numpy arrays.

    Args:
        what: they are, for messages.
        pair: (inputs, targets), pytrees of arrays `[M, ...]`, see `array_likes.tree`; targets may
            be (). Inputs may be sparse matrices of scipy's, which become `SparseRows`, or dense
            arrays if these are smaller.

    Raises:
        ValueError: no pair, no samples, leaves of different length, or without elements, or that
            are not numbers, not finite, or beyond what JAX's types hold.
    """
    if (
        not isinstance(pair, tuple | list)
        or len(pair) != 2
        or (isinstance(pair, list) and _of_workers(pair))
    ):
        several = (
            f"; for {len(pair)} workers' own data pass problems.ByWorker(lambda n: data[n])"
            if _of_workers(pair)
            else ""
        )
        raise ValueError(f"{what} = {checks.shown(pair)}: need a pair (inputs, targets){several}")
    inputs = array_likes.tree(f"{what}: inputs", pair[0], _inputs)
    targets = array_likes.tree(f"{what}: targets", pair[1], _samples)
    if not jax.tree.leaves(inputs):
        raise ValueError(
            f"{what}: inputs = {checks.shown(pair[0])} has no arrays; need leaves [M, ...]"
        )
    length = len(jax.tree.leaves(inputs)[0])
    for path, leaf in tree_leaves_with_path((inputs, targets)):
        if len(leaf) != length or not length:
            where = f"{what}: {('inputs', 'targets')[path[0].idx]}{keystr(path[1:])} has shape {leaf.shape}"
            several = (
                "; or, for workers' own data, problems.ByWorker(lambda n: data[n])"
                if _of_workers(pair)
                else ""
            )
            raise ValueError(
                f"{where}; need [M, ...] with one M, at least 1, for all arrays{several}"
            )
    return inputs, targets


def _of_workers(pairs: Any) -> bool:
    """Whether it looks like a list of the workers' (inputs, targets)."""
    return (
        isinstance(pairs, tuple | list)
        and len(pairs) > 1
        and all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs)
    )


def _inputs(where: str, leaf: Any) -> PyTree:
    return sparse.smaller(where, leaf)[0] if issparse(leaf) else _samples(where, leaf)


def _samples(where: str, leaf: Any) -> np.ndarray:
    array = array_likes.numbers(where, leaf)
    if array.ndim < 1 or 0 in array.shape[1:]:
        raise ValueError(
            f"{where} has shape {array.shape}; need an array of numbers [M, ...] with at least "
            "one element a sample"
        )
    if jnp.issubdtype(array.dtype, jnp.floating) and not np.isfinite(array).all():
        raise ValueError(f"{where} has entries that are not finite")
    return array_likes.kept(where, array)
