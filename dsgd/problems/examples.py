"""Samples of the workers, and samplers that draw batches from them."""

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
from dsgd.machines.arrays import array_of_rows, from_host, take
from dsgd.problems import sparse

EPOCH = "epoch"
# Up to this many samples of a pooled worker, a draw without replacement draws a random number for
# each sample.
_LONG = 1 << 16
# Up to this many bytes of padding, samples are stored as `[N, longest, ...]`, which is easier to
# inspect than a pool.
_WASTE = 1 << 23
# Rounds of the random permutation: the probability that a sample is never moved is 2^-32.
_TURNS = 32

_OWN_KEY = np.uint32(2**32 - 1)


class Examples(NamedTuple):
    """Samples of one worker or of a batch, or samples of all workers with a leading worker axis.

    Args:
        inputs: a pytree, leaves `[m, ...]`.
        targets: a pytree, leaves `[m, ...]`; classes are int32 `[m]`.
        weights: float `[m]`: 1 for samples that count, 0 for padding, which makes the arrays of all
            workers equally long.
        key: for a batch, the key of the random numbers of its loss, such as dropout; () if the loss
            draws none.
    """

    inputs: PyTree
    targets: PyTree
    weights: jax.Array
    key: Any = ()


@checks.arguments
def minibatch(batch_size: int, replacement: bool | Literal["epoch"] = True) -> Sampler:
    """Returns a sampler that draws batches of a worker's samples uniformly on the device, for
    `Problem.sample`.

    The worker's data and its batches are `Examples`. The loss of a batch is the mean with their
    weights, which are 0 for samples that do not count.

    Args:
        batch_size: B.
        replacement: whether a sample may be drawn twice in a batch. Without replacement, a worker
            with m < B samples draws all m in random order, and the weights of the other B - m rows
            are 0, so that means are over the m samples. "epoch": batches of b = min(B, m) samples
            from a stream of epochs, each of which contains each sample once in random order. Batch
            k has the samples k b to k b + b - 1 of the stream; a batch that reaches the end of an
            epoch continues with the next one. Workers with fewer samples start their next epoch
            sooner.

    Returns:
        A sampler of batches `[B, ...]`, which can be truncated; those of epochs are numbered.
        Methods can choose the samples. `local_samples` and `batch_sizes` depend on the data and are
        None; `dataclasses.replace(minibatch(B), local_samples=...)` sets them.

    Raises:
        ValueError: if batch_size < 1, or replacement is none of True, False and "epoch".

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
        truncate=first,
        numbered=replacement == EPOCH,
        choose=select,
    )


@dataclass(frozen=True)
class Minibatch:
    """(key, worker's `Examples`, batch number if "epoch") -> a batch, `Examples` `[B, ...]`; see
    `minibatch`.

    Args:
        batch_size: B.
        replacement: True, False or "epoch". Batches of epochs are numbered parts of one stream and
            use the same key for all numbers.
    """

    batch_size: int
    replacement: bool | Literal["epoch"] = True

    def draws_all(self, data: Examples | Pooled) -> bool:
        """See `Sampler.draws_all`."""
        longest = data.longest if isinstance(data, Pooled) else data.weights.shape[1]
        repeats = self.replacement != EPOCH and bool(self.replacement)
        return not repeats and self.batch_size >= longest

    def __call__(
        self, key: jax.Array, data: Examples | Pooled, number: jax.Array | None = None
    ) -> Examples:
        if isinstance(data, Pooled):
            chosen, counted = self._choose(
                key, data.size.astype(jnp.uint32), data.longest, number, data.longest > _LONG
            )
            return data.batch(
                data.offset + chosen.astype(jnp.int32), counted.astype(jnp.result_type(float))
            )
        size = jnp.sum(data.weights).astype(jnp.uint32)
        chosen, counted = self._choose(key, size, data.weights.shape[0], number)
        inputs, targets = jax.tree.map(lambda leaf: leaf[chosen], (data.inputs, data.targets))
        return Examples(inputs, targets, counted.astype(data.weights.dtype))

    def _choose(
        self,
        key: jax.Array,
        size: jax.Array,
        longest: int,
        number: jax.Array | None,
        many: bool = False,
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the rows of a batch, `[B]`, and which of them count.

        Args:
            key: key of the draw.
            size: m, the worker's number of samples, uint32.
            longest: the largest number of samples of a worker.
            number: number of the batch if batches are those of epochs.
            many: whether `longest` is too large to draw a random number for each sample.
        """
        B = self.batch_size
        if self.replacement == EPOCH:
            if number is None:
                raise ValueError(
                    "minibatch: replacement = 'epoch' without a batch number; expected a "
                    "numbered sampler: pass Problem(sample=problems.minibatch(B, 'epoch'))"
                )
            return _draw_of_epoch(key, number, B, size)
        if self.replacement:
            # One word of random bits per sample, where randint draws two. The remainder is uniform
            # up to a relative error of size / 2^32.
            return jax.random.bits(key, (B,), jnp.uint32) % size, jnp.ones(B, bool)
        counted = jnp.arange(B) < size
        if many:
            return _Order.draw(key, size).entries(
                jnp.arange(B, dtype=jnp.uint32) % size, size
            ), counted
        # The rows with the B largest of `longest` random numbers are a uniform draw without
        # replacement. Padding gets -1, so it comes last; it does not count.
        lots = jax.random.uniform(key, (longest,))
        _, chosen = lax.top_k(jnp.where(jnp.arange(longest) < size, lots, -1), min(B, longest))
        return jnp.pad(chosen, (0, B - chosen.size)), counted


def _draw_of_epoch(
    key: jax.Array, number: jax.Array, batch_size: int, m: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the rows of batch `number` in epochs of m samples, uint32 `[B]`, and which of them
    count.
    """
    size, k = jnp.minimum(batch_size, m), number.astype(jnp.uint32)
    # The batch begins at place k size = (k // m) m size + (k % m) size of the stream, which is
    # computed without products that exceed 32 bits.
    epoch, offset = k // m * size + k % m * size // m, k % m * size % m
    place = offset + jnp.arange(batch_size, dtype=jnp.uint32)
    later = place >= m
    orders = [_Order.draw(jax.random.fold_in(key, epoch + i), m) for i in range(2)]
    order = jax.tree.map(
        lambda now, next: jnp.where(later[None], next[:, None], now[:, None]), *orders
    )
    return order.entries(jnp.where(later, place - m, place) % m, m), jnp.arange(batch_size) < size


class _Order(NamedTuple):
    """A random permutation of 0, ..., m - 1 of which any entry can be computed without the others,
    by `_TURNS` rounds of swap-or-not.

    In each round, x and (pivot - x) mod m are swapped if a random bit of the pair is 1.

    Args:
        pivots: numbers below m, uint32 `[rounds]`, or `[rounds, B]` for B places.
        salts: random words, of the same shape.

    Source: Hoang, Morris and Rogaway, "An enciphering scheme based on a card shuffle", 2012.
    """

    pivots: jax.Array
    salts: jax.Array

    @classmethod
    def draw(cls, key: jax.Array, m: jax.Array) -> _Order:
        pivots, salts = jax.random.bits(key, (2, _TURNS), jnp.uint32)
        return cls(pivots % m, salts)

    def entries(self, places: jax.Array, m: jax.Array) -> jax.Array:
        """Returns the entries at these places, uint32 `[B]`."""

        def turn(x, drawn):
            pivot, salt = drawn
            other = jnp.where(pivot >= x, pivot - x, pivot + (m - x))
            return jnp.where(_bit(jnp.maximum(x, other), salt), other, x), None

        return lax.scan(turn, places, self)[0]


def _bit(x: jax.Array, salt: jax.Array) -> jax.Array:
    """Returns a pseudorandom bit for each x, by the mixer of MurmurHash3 (Appleby, 2011)."""
    x = x * np.uint32(0x9E3779B1) ^ salt
    x = (x ^ x >> 16) * np.uint32(0x85EBCA6B)
    x = (x ^ x >> 13) * np.uint32(0xC2B2AE35)
    return x >> 31 == 1


@dataclass(frozen=True, eq=False)
class Keyed(sameness.Compared):
    """(key, worker's `Examples`, batch number if "epoch") -> a batch with its own key, for losses
    that draw random numbers.

    Args:
        sample: draws the batch without a key.
    """

    sample: Callable[..., Examples]

    def __call__(
        self, key: jax.Array, data: Examples | Pooled, number: jax.Array | None = None
    ) -> Examples:
        if number is None:
            return add_key(key, self.sample(key, data))
        return add_key(jax.random.fold_in(key, number), self.sample(key, data, number))


def add_key(key: jax.Array, batch: Examples) -> Examples:
    """Returns the batch with its own key, which is derived from the key that it is drawn with."""
    return batch._replace(key=jax.random.fold_in(key, _OWN_KEY))


def with_keys(sampler: Sampler) -> Sampler:
    """Returns the sampler with a key added to its batches, and to streamed batches."""
    return replace(sampler, draw=Keyed(sampler.draw), keyed=add_key)


@dataclass(frozen=True, eq=False)
class Streamed(sameness.Compared):
    """(where, streamed batch on the host, N) -> the batch as `Examples`, leaves `[N, m, ...]`. A
    pair (inputs, targets) gets weights of 1.

    Args:
        sample: shapes and types of one sample, (inputs, targets), see `one`.
    """

    sample: tuple[PyTree, PyTree]

    def __call__(self, where: str, batch: PyTree, N: int) -> Examples:
        if type(batch) in (tuple, list) and len(batch) == 2:
            inputs, targets = batch
            weights = None
        elif isinstance(batch, Examples):
            inputs, targets, weights, _ = batch
        else:
            raise ValueError(f"{where} is {_describe(batch)}")
        leaves = [
            *_require_like(f"{where}: inputs", inputs, self.sample[0], N),
            *_require_like(f"{where}: targets", targets, self.sample[1], N),
        ]
        m = leaves[0][1].shape[1]
        weights = np.ones((N, m)) if weights is None else np.asarray(weights)
        for name, leaf in (*leaves, (f"{where}: weights", weights)):
            if leaf.shape[:2] != (N, m):
                raise ValueError(
                    f"{name} has shape {leaf.shape}; expected {m} samples of each worker, as "
                    "the inputs have"
                )
        return Examples(inputs, targets, convert(weights))  # type: ignore[arg-type]


def _require_like(where: str, given: PyTree, sample: PyTree, N: int) -> list[tuple[str, Any]]:
    """Returns the arrays of a streamed batch with their names for messages.

    Args:
        where: beginning of the names.
        given: the inputs or the targets, leaves `[N, m, ...]`.
        sample: shapes and types of those of one sample of the problem's data.

    Raises:
        ValueError: if they do not have the structure, types and shapes of the samples.
    """

    def is_leaf(node: Any) -> bool:
        return isinstance(node, sparse.SparseRows)

    structure = jax.tree.structure(sample)
    if jax.tree.structure(given, is_leaf=is_leaf) != structure:
        several = isinstance(given, list | tuple) and structure.num_leaves == 1
        remedy = "; pass one array, numpy.stack(...)" if several else ""
        raise ValueError(
            f"{where} is {checks.outline(given)}; expected {checks.outline(sample)}, as in the "
            f"problem's data{remedy}"
        )
    found = []
    for (path, leaf), like in zip(
        tree_leaves_with_path(given, is_leaf=is_leaf), jax.tree.leaves(sample), strict=True
    ):
        name = f"{where}{keystr(path)}"
        dtype = leaf.values.dtype if is_leaf(leaf) else leaf.dtype
        kind = f"{dtype}{list(leaf.shape)}"
        shape = ", ".join(map(str, (N, "m", *like.shape)))
        if leaf.shape[:1] != (N,) or leaf.shape[2:] != like.shape or leaf.ndim < 2:
            raise ValueError(
                f"{name} is {kind}; expected [{shape}] for m samples of each of the {N} workers"
                f"{_remedy(leaf, like, N)}"
            )
        if _family(dtype) != _family(like.dtype):
            raise ValueError(
                f"{name} is {kind}; expected {like.dtype}[{shape}], as in the problem's data; "
                f"pass .astype(numpy.{like.dtype})"
                + (", scaled as those, often / 255" if dtype == np.uint8 else "")
            )
        found.append((name, leaf))
    return found


def _family(dtype: Any) -> str:
    """Returns which kind of numbers an array has, in any precision."""
    if jnp.issubdtype(dtype, jnp.floating):
        return "floating point"
    return "bools" if dtype == np.bool_ else "integers"


def _remedy(leaf: np.ndarray, like: jax.ShapeDtypeStruct, N: int) -> str:
    """Returns how to give a leaf of a streamed batch the shape `[N, m, *like.shape]`."""
    if leaf.shape[1:] == like.shape and leaf.shape[0] % N == 0:
        return (
            f"; dsgd.Batches.split(batches, {N}) distributes the samples of a batch over the "
            "workers, dsgd.Batches.stack([...]) takes one source of batches for each worker"
        )
    channels_last = (*leaf.shape[3:], *leaf.shape[2:3])
    if leaf.ndim == 5 and channels_last == like.shape:
        return "; move the channels to the last axis, numpy.moveaxis(images, -3, -1)"
    return ""


def _describe(batch: PyTree) -> str:
    """Returns what a batch is, and how to pass a pair of inputs and targets."""
    if isinstance(batch, dict) and len(batch) >= 2:
        names = list(batch)
        example = ", ".join(f"batch[{name!r}]" for name in names[:2])
        remedy = f"yield the pair ({example})"
        given = f"a dictionary with {', '.join(map(repr, names))}"
    else:
        given, remedy = checks.outline(batch), "yield such a pair"
    return f"{given}; expected a pair (inputs, targets), or problems.Examples; {remedy}"


def first(batch: Examples, samples: jax.Array) -> Examples:
    """Returns the batch with zero weights on all but the first `samples` samples."""
    return batch._replace(
        weights=jnp.where(jnp.arange(len(batch.weights)) < samples, batch.weights, 0)
    )


def select(data: Examples | Pooled, samples: jax.Array) -> Examples:
    """Returns the batch of the samples with these numbers, int32 `[b]`, of one worker."""
    weights = jnp.ones(samples.shape, jnp.result_type(float))
    if isinstance(data, Pooled):
        return data.batch(data.offset + samples, weights)
    inputs, targets = jax.tree.map(lambda leaf: leaf[samples], (data.inputs, data.targets))
    return Examples(inputs, targets, weights.astype(data.weights.dtype))


def pad(inputs: PyTree, targets: PyTree, parts: list[np.ndarray]) -> Examples:
    """Returns the workers' samples stacked to leaves `[N, longest, ...]`, with zero weights on the
    padding.

    Args:
        inputs, targets: numpy arrays `[M, ...]`.
        parts: indices of each worker's samples.
    """
    sizes = np.array([len(part) for part in parts])[:, None]
    places, begins = np.arange(sizes.max())[None], np.cumsum(sizes)[:, None] - sizes
    index = np.concatenate(parts)[begins + np.minimum(places, sizes - 1)]
    real = places < sizes

    def stack_leaf(leaf: np.ndarray) -> jax.Array:
        if agreement.is_single_process():
            return take(convert(leaf), index)
        return array_of_rows(lambda some: convert(leaf[index[some]]), len(parts))

    weights = array_of_rows(lambda some: real[some].astype(jnp.result_type(float)), len(parts))
    inputs, targets = jax.tree.map(stack_leaf, (inputs, targets))
    return Examples(inputs, targets, weights)


def stack(inputs: PyTree, targets: PyTree, parts: list[np.ndarray]) -> Examples | Pooled:
    """Returns the workers' samples as `pad` does, or in one pool if padding would more than double
    the memory and add more than 8 MB.

    In runs of several processes, samples are always padded.
    """
    N, sizes = len(parts), [len(part) for part in parts]
    row = sum(leaf[:1].nbytes for leaf in jax.tree.leaves((inputs, targets)))
    padding = N * max(sizes) - sum(sizes)
    if agreement.is_single_process() and padding > sum(sizes) and padding * row > _WASTE:
        inputs, targets = jax.tree.map(convert, (inputs, targets))
        return pool(inputs, targets, parts, Examples)
    return pad(inputs, targets, parts)


def to_device(inputs: PyTree, targets: PyTree) -> Examples:
    """Returns samples that all workers share, leaves `[m, ...]`, given numpy arrays."""
    weights = np.ones(len(jax.tree.leaves(inputs)[0]))
    return Examples(
        *jax.tree.map(lambda leaf: from_host(convert(leaf)), (inputs, targets, weights))
    )


def convert(leaf: np.ndarray) -> np.ndarray:
    """Returns real numbers in JAX's default float type, and integers unchanged. It uses numpy,
    since each conversion on the device would be a program to compile.
    """
    return (
        leaf.astype(jnp.result_type(float), copy=False)
        if jnp.issubdtype(leaf.dtype, jnp.floating)
        else leaf
    )


def one(samples: PyTree) -> PyTree:
    """Returns the shapes and types of a single sample. For `SparseRows` they are those of a dense
    row, whatever k is.
    """

    def kind(leaf: Any) -> jax.ShapeDtypeStruct:
        values = leaf.values if isinstance(leaf, sparse.SparseRows) else leaf
        return jax.ShapeDtypeStruct(leaf.shape[1:], values.dtype)

    return jax.tree.map(kind, samples, is_leaf=lambda node: isinstance(node, sparse.SparseRows))


def arrays(what: str, pair: Any) -> tuple[PyTree, PyTree]:
    """Converts inputs and targets to numpy arrays and validates them.

    Args:
        what: name of the data in messages.
        pair: (inputs, targets), pytrees of arrays `[M, ...]`, see `array_likes.tree`; targets may
            be (). Inputs may be scipy.sparse matrices, which become `SparseRows`, or dense arrays
            if these take little memory.

    Raises:
        ValueError: if it is not a pair, there are no samples, leaves differ in length, samples have
            no elements, or entries are not numbers, not finite, or outside the range of JAX's
            types.
    """
    if (
        not isinstance(pair, tuple | list)
        or len(pair) != 2
        or (isinstance(pair, list) and _is_per_worker(pair))
    ):
        several = (
            f"; for separate data of {len(pair)} workers pass problems.ByWorker(lambda n: data[n])"
            if _is_per_worker(pair)
            else ""
        )
        raise ValueError(
            f"{what} = {checks.show(pair)}; expected a pair (inputs, targets){several}"
        )
    inputs = array_likes.tree(f"{what}: inputs", pair[0], _inputs)
    targets = array_likes.tree(f"{what}: targets", pair[1], _samples)
    for leaf in jax.tree.leaves(inputs, is_leaf=lambda node: isinstance(node, sparse.SparseRows)):
        if isinstance(leaf, sparse.SparseRows):
            sparse.require_columns(f"{what}: inputs", leaf)
    if not jax.tree.leaves(inputs):
        raise ValueError(
            f"{what}: inputs = {checks.show(pair[0])} has no arrays; expected leaves [M, ...]"
        )
    length = len(jax.tree.leaves(inputs)[0])
    for path, leaf in tree_leaves_with_path((inputs, targets)):
        if len(leaf) != length or not length:
            part = ("inputs", "targets")[path[0].idx]
            where = f"{what}: {part}{keystr(path[1:])} has shape {leaf.shape}"
            several = (
                "; for separate data of the workers pass problems.ByWorker(lambda n: data[n])"
                if _is_per_worker(pair)
                else ""
            )
            raise ValueError(
                f"{where}; expected [M, ...] with the same M >= 1 for all arrays{several}"
            )
    return inputs, targets


def _is_per_worker(pairs: Any) -> bool:
    """Whether the argument looks like a list of (inputs, targets), one for each worker."""
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
            f"{where} has shape {array.shape}; expected an array of numbers [M, ...] with at least "
            "one element per sample"
        )
    if jnp.issubdtype(array.dtype, jnp.floating) and not np.isfinite(array).all():
        raise ValueError(f"{where} has entries that are not finite; expected finite numbers")
    return array_likes.narrow(where, array)
