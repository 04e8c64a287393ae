"""Batches from outside: checked, stacked by chunks of rounds, and put on the devices."""

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
from dsgd.engine.loop import Plan
from dsgd.machines import arrays

_ROUNDS = 16  # whose batches are on the devices at a time


@checks.arguments
@dataclass(frozen=True)
class Batches:
    """Batches that tell who they are, as a run with a checkpoint needs them: it must not go on with
    others.

    Args:
        items: as `dsgd.run` takes them.
        identity: what tells their sequence from any other, "CIFAR-10, shuffled with seed 3" say.
            Equal ones must give equal batches from their beginning on.

    Raises:
        ValueError: an identity that is no text, or empty.
    """

    items: Iterable[PyTree]
    identity: str

    def __post_init__(self) -> None:
        if not self.identity.strip():
            raise ValueError(
                f"batches with identity = {self.identity!r}: need a text that tells them from all "
                "others"
            )

    def __iter__(self) -> Iterator[PyTree]:
        return iter(self.items)


class Feed:
    """Batches, one a round.

    Args:
        plan: of the run.
        batches: as in `dsgd.run`.
        rounds: of the run, whom they must suffice.

    Attributes:
        identity: what tells them from others; None where they do not say it.
        first: the first of them, in shapes and types.
        not_finite: the number of the first with an infinite or NaN element, so far; None where
            there was none.

    Raises:
        ValueError: there are none, or the first does not have the workers' axis.
    """

    def __init__(self, plan: Plan, batches: Iterable[PyTree], rounds: int) -> None:
        self.identity: str | None = getattr(batches, "identity", None)
        self.records: int = max(1, _ROUNDS // plan.record_every)
        self._plan = plan
        self._rounds = rounds
        self._taken = 0
        self.not_finite: int | None = None
        self._batches = iter(batches)
        self._kind: Any = None
        # copied, as it is used after the next batch is asked for
        first = jax.tree.map(np.array, self._next(0))
        self.first: PyTree = jax.eval_shape(lambda batch: batch, first)
        self._batches = itertools.chain([first], self._batches)

    def skip(self, rounds: int) -> None:
        """Leaves out the next ones, of rounds that are done."""
        skipped = sum(1 for _ in itertools.islice(self._batches, rounds))
        if skipped < rounds:
            raise self._ended(skipped)
        self._taken += rounds

    def take(self, rounds: int) -> PyTree:
        """The next `rounds` batches, padded to the chunk's fixed length, on the devices."""
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
        if problem.refuses and (
            why := problem.refuses(jax.tree.map(lambda leaf: leaf[:rounds], stacked))
        ):
            raise ValueError(
                f"batches of rounds {self._taken - rounds} to {self._taken - 1}: {problem.name}: "
                f"{why}"
            )
        if self.not_finite is None:
            self.not_finite = _first_not_finite(stacked, self._taken - rounds)
        return arrays.place(stacked, NamedSharding(self._plan.mesh, P(None, workers.AXIS)))

    def _next(self, after: int) -> PyTree:
        """The next batch, checked, the one `after` those that are counted. The caller may refill
        its arrays for the one after it.
        """
        for given in self._batches:
            batch = array_likes.tree(f"batches: batch {self._taken + after}", given, _stored)
            self._check(self._taken + after, batch)
            return batch
        raise self._ended(after)

    def _ended(self, after: int) -> ValueError:
        return ValueError(
            f"batches ended after round {self._taken + after}: need one for each of the "
            f"{self._rounds} rounds"
        )

    def _check(self, i: int, batch: PyTree) -> None:
        if not jax.tree.leaves(batch):
            raise ValueError(
                f"batches: batch {i} = {checks.shown(batch)} has no arrays; need leaves [N, ...]"
            )
        for leaf in jax.tree.leaves(batch):
            if np.ndim(leaf) < 1 or np.shape(leaf)[0] != self._plan.N:
                where = f"batches: batch {i} has a leaf of shape {np.shape(leaf)}"
                raise ValueError(f"{where}; need the leading axis of the {self._plan.N} workers")
        kind = _kind(batch)
        self._kind = self._kind or kind
        if kind != self._kind:
            raise ValueError(
                f"batches: batch {i} is {kind}, the first was {self._kind}; need equal "
                "structures, shapes and types"
            )


def _stored(where: str, leaf: Any) -> np.ndarray:
    return array_likes.kept(where, array_likes.numbers(where, leaf))


def _first_not_finite(stacked: PyTree, first: int) -> int | None:
    """The number of the batch, counted from `first`."""
    with np.errstate(all="ignore"):
        sums = [  # faster than to look at each element
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
