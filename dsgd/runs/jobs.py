"""What `run` and `sweep` ask of the driver."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dsgd.base import Algorithm, Problem, State
from dsgd.engine import loop
from dsgd.runs.feed import Feed
from dsgd.runs.history import History


class Job(NamedTuple):
    """A run, or all runs of a sweep.

    Args:
        plan: its static side.
        methods: the method; of a sweep those of the first point and of all other values of the
            grid.
        problem: with its arrays.
        points: hyperparameters by name, `[grid]` each; {} if there is no grid.
        keys: one a run, `[seeds?]`.
        steps: rounds.
        feed: batches from outside, or None.
        start: where another run ended; None: the method's own start.
        before: rounds that the start has behind it.
        progress: show a bar.
        until: of the history so far, whether the run may end; None: it ends after `steps`.
    """

    plan: loop.Plan
    methods: tuple[Algorithm, ...]
    problem: Problem
    points: dict[str, jax.Array]
    keys: jax.Array
    steps: int
    feed: Feed | None = None
    start: State | None = None
    before: int = 0
    progress: bool = False
    until: Callable[[History], bool] | None = None

    @property
    def name(self) -> str:
        """Of the method."""
        return self.methods[0].name

    def shapes(self) -> tuple[Any, ...]:
        """Of `loop.advance`'s arguments after the plan, for one round; nothing is compiled."""
        carry = jax.eval_shape(partial(loop.first_carry, self.plan), self.points, self.keys)
        first = None if self.feed is None else self.feed.first
        batches = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), first
        )
        chunk = loop.Chunk(*[jax.ShapeDtypeStruct((), jnp.int32)] * 4)
        return jax.eval_shape(
            lambda *given: given,
            carry,
            self.points,
            self.keys,
            self.problem.data,
            self.problem.shared,
            batches,
            chunk,
        )

    @property
    def last(self) -> int:
        """Rounds done when all steps are, those before the start among them."""
        return self.before + self.steps
