"""Streamed batches: validated, stacked by chunks of rounds, and placed on the devices."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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

    The fingerprint guarantees that a resumed run continues with the same batches.

    Args:
        items: batches as accepted by `dsgd.run`.
        fingerprint: a text that distinguishes this sequence from all others, for example "CIFAR-10,
            shuffled with seed 3". Equal identities must yield equal batches from the beginning of
            the sequence.

    Raises:
        ValueError: if `fingerprint` is not a text, or is empty.
    """

    items: Iterable[PyTree]
    fingerprint: str

    def __post_init__(self) -> None:
        if not self.fingerprint.strip():
            raise ValueError(
                f"Batches: fingerprint = {self.fingerprint!r}; expected a non-empty text that "
                "distinguishes these batches from all others"
            )

    def __iter__(self) -> Iterator[PyTree]:
        return iter(self.items)


class Feed:
    """Iterator over streamed batches, one per round.

    Args:
        plan: static description of the run.
        batches: as in `dsgd.run`.
        rounds: number of rounds of the run, each of which needs a batch.

    Attributes:
        fingerprint: the `fingerprint` attribute of the batches; None if they have none.
        records: number of records in a full chunk.
        first: shapes and types of the first batch.
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
        self._batches = iter(batches)
        self._kind: Any = None
        # A copy, because it is used after the next batch is requested.
        first = jax.tree.map(np.array, self._next(0))
        self.first: PyTree = jax.eval_shape(lambda batch: batch, first)
        self._batches = itertools.chain([first], self._batches)

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
        for given in self._batches:
            batch = array_likes.tree(f"batches: batch {self._taken + after}", given, _narrow)
            self._check(self._taken + after, batch)
            return batch
        raise self._end_error(after)

    def _end_error(self, after: int) -> ValueError:
        return ValueError(
            f"batches ended after round {self._taken + after}; expected one for each of the "
            f"{self._rounds} rounds"
        )

    def _check(self, i: int, batch: PyTree) -> None:
        if not jax.tree.leaves(batch):
            raise ValueError(
                f"batches: batch {i} = {checks.show(batch)} has no arrays; expected leaves [N, ...]"
            )
        for leaf in jax.tree.leaves(batch):
            if np.ndim(leaf) < 1 or np.shape(leaf)[0] != self._plan.N:
                where = f"batches: batch {i} has a leaf of shape {np.shape(leaf)}"
                raise ValueError(f"{where}; expected a leading axis for the {self._plan.N} workers")
        kind = _kind(batch)
        self._kind = self._kind or kind
        if kind != self._kind:
            raise ValueError(
                f"batches: batch {i} is {kind}, but the first was {self._kind}; expected equal "
                "structures, shapes and types"
            )


def _narrow(where: str, leaf: Any) -> np.ndarray:
    """Returns a leaf of a batch as numbers of a type of JAX."""
    return array_likes.narrow(where, array_likes.numbers(where, leaf))


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


def _kind(batch: PyTree) -> Any:
    return jax.tree.structure(batch), [
        (np.shape(leaf), jnp.result_type(leaf)) for leaf in jax.tree.leaves(batch)
    ]
