"""Streamed batches: validated, stacked by chunks of rounds, and placed on the devices."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dsgd import array_likes, checks, workers
from dsgd.base import PyTree
from dsgd.engine.plan import Plan
from dsgd.machines import arrays

_ROUNDS = 16  # number of rounds whose batches are on the devices at a time


@checks.arguments
@dataclass(frozen=True)
class Batches:
    """Streamed batches with a fingerprint, which a run with a checkpoint requires.

    The fingerprint guarantees that a resumed run continues with the same batches. (A checkpoint
    also stores a digest of the first batch.)

    Args:
        items: batches as accepted by `dsgd.run`.
        fingerprint: a text that distinguishes this sequence from all others, for example "CIFAR-10,
            shuffled with seed 3". Equal texts must yield equal batches from the beginning of the
            sequence. None: runs with a checkpoint do not accept the batches.

    Raises:
        ValueError: if `fingerprint` is empty.
    """

    items: Iterable[PyTree]
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        if self.fingerprint is not None and not self.fingerprint.strip():
            raise ValueError(
                f"Batches: fingerprint = {self.fingerprint!r}; expected a non-empty text that "
                "distinguishes these batches from all others"
            )

    def __iter__(self) -> Iterator[PyTree]:
        return iter(self.items)

    @classmethod
    @checks.arguments
    def split(
        cls, source: Iterable[PyTree], workers: int, fingerprint: str | None = None
    ) -> Batches:
        """Returns the batches of one source, each distributed over the workers in order.

        Args:
            source: batches with leaves `[N m, ...]`, arrays of any library; for example a PyTorch
                `DataLoader`. It begins again at its end, unless it is an iterator.
            workers: N. Worker n gets the samples n m to n m + m - 1 of each batch.
            fingerprint: as above.

        Raises:
            ValueError: during the run, if N does not divide the number of samples.
        """
        N = checks.positive_int("Batches.split: workers", workers)
        _require_batches("Batches.split: source", source)
        return cls(_Repeated((source,), partial(_split, N=N)), fingerprint)

    @classmethod
    @checks.arguments
    def stack(cls, sources: Sequence[Iterable[PyTree]], fingerprint: str | None = None) -> Batches:
        """Returns the batches of several sources, one for each worker.

        Args:
            sources: for each worker its batches, leaves `[m, ...]`, arrays of any library; for
                example a PyTorch `DataLoader`. Each begins again at its end, unless it is an
                iterator.
            fingerprint: as above.

        Raises:
            ValueError: during the run, if the workers' batches differ in structure or shapes.
        """
        for n, source in enumerate(sources):
            _require_batches(f"Batches.stack: source {n}", source)
        return cls(_Repeated(tuple(sources), _stack), fingerprint)


@dataclass(frozen=True)
class _Repeated:
    """Batches that are combined from one batch of each source. Sources that are not iterators are
    repeated.

    Args:
        sources: iterables of batches.
        combine: (where, one batch of each source) -> batch.
    """

    sources: tuple[Iterable[PyTree], ...]
    combine: Callable[[str, Sequence[PyTree]], PyTree]

    def __iter__(self) -> Iterator[PyTree]:
        sources = map(_repeat, range(len(self.sources)), self.sources)
        for i, batch in enumerate(zip(*sources, strict=False)):
            yield self.combine(f"batches: batch {i}", batch)


def _repeat(n: int, source: Iterable[PyTree]) -> Iterator[PyTree]:
    """Yields the batches of source n again and again; those of an iterator once."""
    while True:
        iterator, some = iter(source), False
        for batch in iterator:
            some = True
            yield batch
        if iterator is source:
            return
        if not some:
            raise ValueError(
                f"batches: source {n}, a {type(source).__name__}, has no batches; expected at "
                "least one (drop_last=True drops the only batch of a small data set)"
            )


def _require_batches(where: str, source: Iterable[Any]) -> None:
    """Raises ValueError if an object is the path of a file, or a dictionary of columns, instead of
    a sequence of batches.
    """
    if isinstance(source, str | bytes | Mapping):
        raise ValueError(
            f"{where} = {checks.show(source)}; expected an iterable of batches, such as a list, a "
            "generator or a DataLoader"
        )


def _split(where: str, batches: Sequence[PyTree], N: int) -> PyTree:
    """Distributes the samples of the only batch over N workers."""

    def divide(name: str, leaf: Any) -> np.ndarray:
        array = _numbers(name, leaf)
        if array.ndim < 1 or len(array) % N or not len(array):
            raise ValueError(
                f"{name} has shape {array.shape}; expected a number of samples that {N} workers "
                f"share equally, such as {N * max(1, len(array) // N if array.ndim else 1)}"
                f"{_RAGGED}"
            )
        return array.reshape(N, -1, *array.shape[1:])

    return array_likes.tree(where, batches[0], divide)


def _stack(where: str, batches: Sequence[PyTree]) -> PyTree:
    """Stacks the workers' batches to leaves `[N, ...]`."""
    read = [
        array_likes.tree(f"{where} of source {n}", batch, _numbers)
        for n, batch in enumerate(batches)
    ]
    for n, batch in enumerate(read[1:], start=1):
        _require_equal(f"{where} of source {n}", batch, read[0], "source 0", axis=0)
    return jax.tree.map(lambda *rows: np.stack(rows), *read)


_RAGGED = "; drop the last, smaller batch of an epoch, for example with DataLoader(drop_last=True)"


def _require_equal(where: str, batch: PyTree, like: PyTree, name: str, axis: int) -> None:
    """Raises ValueError if a batch differs from another one in structure, shapes or types.

    Args:
        where: beginning of the message.
        batch: the batch.
        like: the other batch, or its shapes and types.
        name: name of the other batch.
        axis: axis of the samples.
    """
    if jax.tree.structure(batch) != jax.tree.structure(like):
        raise ValueError(
            f"{where} is {checks.outline(batch)}; expected {checks.outline(like)}, as in {name}"
        )
    for (path, leaf), other in zip(
        jax.tree_util.tree_leaves_with_path(batch), jax.tree.leaves(like), strict=True
    ):
        if leaf.shape != other.shape or leaf.dtype != other.dtype:
            samples = [each.shape[axis : axis + 1] for each in (leaf, other)]
            raise ValueError(
                f"{where}{jax.tree_util.keystr(path)} is {checks.kind(leaf)}; expected "
                f"{checks.kind(other)}, as in {name}{_RAGGED if samples[0] != samples[1] else ''}"
            )


class Feed:
    """Iterator over streamed batches, one per round.

    Args:
        plan: static description of the run.
        batches: as in `dsgd.run`.
        rounds: number of rounds of the run, each of which needs a batch.

    Attributes:
        fingerprint: the `fingerprint` attribute of the batches; None if they have none.
        records: number of records in a full chunk.
        first: the first batch.
        not_finite: number of the first batch with an infinite or NaN element, so far; None if there
            was none.

    Raises:
        ValueError: if there is no batch, or the first one does not have the worker axis.
    """

    def __init__(self, plan: Plan, batches: Iterable[PyTree], rounds: int) -> None:
        self.fingerprint: str | None = getattr(batches, "fingerprint", None)
        self.records: int = max(1, _ROUNDS // plan.record_every)
        self._plan = plan
        self._rounds = rounds
        self._taken = 0
        self.not_finite: int | None = None
        _require_batches("batches", batches)
        self._batches = iter(batches)
        self.first: PyTree = None
        # A copy, because it is used after the next batch is requested.
        self.first = jax.tree.map(np.array, self._next(0))
        self._batches = itertools.chain([self.first], self._batches)

    def skip(self, rounds: int) -> None:
        """Skips the batches of the next `rounds` rounds, which were already executed."""
        skipped = sum(1 for _ in itertools.islice(self._batches, rounds))
        if skipped < rounds:
            raise self._end_error(skipped)
        self._taken += rounds

    def take(self, rounds: int) -> PyTree:
        """Returns the next `rounds` batches on the devices, padded to the fixed chunk length."""
        length = self.records * self._plan.record_every
        stacked = jax.tree.map(lambda like: np.empty((length, *like.shape), like.dtype), self.first)
        for row in range(rounds):
            batch = self._next(row)
            for rows, leaf in zip(jax.tree.leaves(stacked), jax.tree.leaves(batch), strict=True):
                rows[row] = leaf
        for rows in jax.tree.leaves(stacked):
            rows[rounds:] = rows[rounds - 1]
        self._taken += rounds
        problem = self._plan.problem
        if problem.sampler.batch_error and (
            why := problem.sampler.batch_error(jax.tree.map(lambda leaf: leaf[:rounds], stacked))
        ):
            raise ValueError(
                f"batches of rounds {self._taken - rounds} to {self._taken - 1}: {problem.name}: "
                f"{why}"
            )
        if self.not_finite is None:
            self.not_finite = _first_not_finite(stacked, self._taken - rounds)
        return arrays.place(stacked, NamedSharding(self._plan.mesh, P(None, workers.AXIS)))

    def _next(self, after: int) -> PyTree:
        """Returns the next batch, validated. It is number `after` after those that are already
        counted.

        The caller may reuse its arrays for the following batch.
        """
        read = self._plan.problem.sampler.read
        for given in self._batches:
            where = f"batches: batch {self._taken + after}"
            batch = array_likes.tree(where, given, _narrow)
            if read:
                batch = read(where, batch, self._plan.N)
            self._check(where, batch)
            return batch
        raise self._end_error(after)

    def _end_error(self, after: int) -> ValueError:
        return ValueError(
            f"batches ended after round {self._taken + after}; expected one for each of the "
            f"{self._rounds} rounds; dsgd.Batches.split and dsgd.Batches.stack begin again at the "
            "end of a list, a DataLoader or any other iterable that is not an iterator"
        )

    def _check(self, where: str, batch: PyTree) -> None:
        if not jax.tree.leaves(batch):
            raise ValueError(
                f"{where} = {checks.show(batch)} has no arrays; expected leaves [N, ...]"
            )
        checks.require_workers_axis(where, batch, self._plan.N)
        if self.first is not None:
            _require_equal(where, batch, self.first, "the first batch", axis=1)


def _narrow(where: str, leaf: Any) -> np.ndarray:
    """Returns a leaf of a batch as numbers of a type of JAX."""
    return array_likes.narrow(where, _numbers(where, leaf))


def _numbers(where: str, leaf: Any) -> np.ndarray:
    """Returns a leaf of a batch as numbers. Images of PIL are refused: each would be a leaf."""
    if type(leaf).__module__.startswith("PIL."):
        raise ValueError(
            f"{where} is one image; expected an array of the images of a batch; pass "
            "numpy.stack(images), or dataset.with_format('numpy')"
        )
    return array_likes.numbers(where, leaf)


def _first_not_finite(stacked: PyTree, first: int) -> int | None:
    """Returns the number of the first batch with a non-finite element, counted from `first`; None
    if there is none.
    """
    with np.errstate(all="ignore"):
        sums = [  # one sum per batch is faster than a test of each element
            np.sum(
                leaf,
                axis=tuple(range(1, leaf.ndim)),
                dtype=jnp.promote_types(leaf.dtype, jnp.float32),
            )
            for leaf in jax.tree.leaves(stacked)
            if jnp.issubdtype(leaf.dtype, jnp.floating)
        ]
    suspects = {first + int(i) for total in sums for i in np.flatnonzero(~np.isfinite(total))}
    return min(suspects, default=None)
