"""What `run` and `sweep` ask of the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax

from dsgd.base import Algorithm, Problem, State
from dsgd.engine.loop import Plan
from dsgd.runs.feed import Feed
from dsgd.runs.history import History


class Job(NamedTuple):
    """A run, or all runs of a sweep.

    Args:
        plan: its static side.
        algorithm: the method; of a sweep that of the first point.
        problem: with its arrays.
        points: hyperparameters by name, `[grid]` each; {} where there is no grid.
        keys: one a run, `[seeds?]`.
        steps: rounds.
        feed: batches from outside, or None.
        start: where another run ended; None: the method's own start.
        before: rounds that the start has behind it.
    """

    plan: Plan
    algorithm: Algorithm
    problem: Problem
    points: dict[str, jax.Array]
    keys: jax.Array
    steps: int
    feed: Feed | None = None
    start: State | None = None
    before: int = 0


class Watch(NamedTuple):
    """What the driver shows, and what makes it stop.

    Args:
        name: of the method.
        progress: show a bar.
        may_diverge: go on with a loss that is not finite, as a sweep does.
        until: of the history so far, whether it is enough.
    """

    name: str
    progress: bool
    may_diverge: bool
    until: Callable[[History], bool] | None = None
