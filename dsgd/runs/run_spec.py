"""The description of a run that `run` and `sweep` pass to `chunks.execute`."""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import dsgd
from dsgd.base import Algorithm, Key, Problem, PyTree, State
from dsgd.engine import leaves, loop
from dsgd.engine.plan import Chunk, Plan
from dsgd.runs.feed import Feed
from dsgd.runs.history import History
from dsgd.runs.observers import Observers
from dsgd.runs.results import Settings


class RunSpec(NamedTuple):
    """A run, or all runs of a sweep.

    Args:
        plan: static description of the run.
        methods: the method; for a sweep, the method of the first grid point and one for each other
            value of the grid.
        problem: the problem, with its arrays.
        points: hyperparameters by name, each `[grid]`; {} if there is no grid.
        keys: one key per run, `[seeds?]`; or those of each point of the grid, `[grid, seeds]`.
        steps: number of rounds.
        feed: streamed batches, or None.
        start: the final state of an earlier run; None: the method's initial state.
        before: number of rounds that were completed before `start`.
        progress: whether to show a progress bar; None: as in `Progress`.
        until: (history so far) -> whether to stop; None: the run ends after `steps` rounds.
        observers: receive the records; None: nothing does.
        folder: folder for files of what workers keep; None: memory.
    """

    plan: Plan
    methods: tuple[Algorithm, ...]
    problem: Problem
    points: dict[str, jax.Array]
    keys: jax.Array
    steps: int
    feed: Feed | None = None
    start: State | None = None
    before: int = 0
    progress: bool | None = None
    until: Callable[[History], bool] | None = None
    observers: Observers | None = None
    folder: Path | None = None

    @property
    def name(self) -> str:
        """The name of the method."""
        return self.methods[0].name

    def shapes(self) -> tuple[Any, ...]:
        """Returns the shapes of `loop.advance`'s arguments after the plan, for one round. Nothing
        is compiled.
        """
        carry = jax.eval_shape(partial(loop.first_carry, self.plan), self.points, self.keys)
        first = None if self.feed is None else self.feed.first
        batches = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), first
        )
        chunk = Chunk(*[jax.ShapeDtypeStruct((), jnp.int32)] * 4)
        return jax.eval_shape(
            lambda *given: given,
            carry,
            self.points,
            self.keys,
            self.problem.data,
            self.shared,
            batches,
            chunk,
        )

    def settings(self, key: Key) -> Settings:
        """Returns the settings of the run and the versions.

        Args:
            key: the user's key.
        """
        plan = self.plan
        return Settings(
            method=self.name,
            problem=repr(self.problem),
            workers=plan.N,
            steps=self.steps,
            seeds=self.keys.shape[-1] if plan.runs else None,
            key=np.asarray(jax.random.key_data(key)).tolist(),
            record_every=plan.record_every,
            evaluate_every=plan.evaluate_every,
            train_loss=plan.train_loss,
            taped=plan.taped,
            cluster=plan.cluster and plan.cluster.name,
            batches=self.feed and (self.feed.fingerprint or "without a fingerprint"),
            start=self.before,
            devices=plan.mesh.size,
            platform=plan.mesh.devices.flat[0].platform,
            float64=jnp.result_type(float) == np.float64,
            dsgd=dsgd.__version__,
            jax=jax.__version__,
            python=platform.python_version(),
        )

    @property
    def shared(self) -> tuple[PyTree, PyTree]:
        """Arguments of evaluations that all devices hold: those of the problem's evaluation, and
        the trained leaves of its minimizer, or None.
        """
        return self.problem.evaluation.replicated, leaves.minimizer(self.problem)

    @property
    def last(self) -> int:
        """The number of rounds after the run, including those before `start`."""
        return self.before + self.steps


class Tape(NamedTuple):
    """What `dsgd.replay` reads of a run, or of all runs of a sweep.

    Args:
        plan, points, keys, before: as in `RunSpec`.
        shape: axes of the runs, `[grid ..., seeds?]`.
        steps: number of rounds.
        series: what the clock reads in each round, by name, `[runs ..., steps, ...]`, where the
            grid is one axis.
    """

    plan: Plan
    points: dict[str, jax.Array]
    keys: jax.Array
    before: int
    shape: tuple[int, ...]
    steps: int
    series: dict[str, np.ndarray]

    def grid_point(self, index: tuple[int, ...]) -> Tape:
        """Returns the tape of the sweep's grid point with this index."""
        (i,) = np.arange(np.prod(self.shape[:-1])).reshape(self.shape[:-1])[index].ravel()
        points, series = jax.tree.map(lambda each: each[i : i + 1], (self.points, self.series))
        return self._replace(points=points, series=series, shape=self.shape[-1:])

    def repeat(self, keys: jax.Array) -> Tape:
        """Returns the tape of the same rounds in runs with other keys, `[seeds]`, for a tape of one
        run.
        """
        seeds = len(keys)
        series = {name: np.broadcast_to(x, (seeds, *x.shape)) for name, x in self.series.items()}
        plan = self.plan._replace(runs=1)
        return self._replace(plan=plan, keys=keys, shape=(seeds,), series=series)
