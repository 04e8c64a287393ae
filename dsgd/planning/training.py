"""Runs of a candidate at several settings, as one compiled program."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from dsgd import sameness
from dsgd.base import Algorithm, Key, Problem
from dsgd.clusters import Cluster
from dsgd.planning.candidates import RATE, Candidate
from dsgd.runs.history import evaluated
from dsgd.runs.sweeps import Sweep, sweep

Point = dict[str, float]  # the step size and the candidate's hyperparameters, by name


class Setting(NamedTuple):
    """What all runs of a plan share.

    Args:
        problem, cluster, key, seeds, mesh: as in `dsgd.run`.
        optimizer: step size -> optimizer.
        every: rounds between two evaluations.
        folder: of the checkpoints, or None.
    """

    problem: Problem
    cluster: Cluster
    key: Key
    seeds: int
    mesh: Mesh | int | None
    optimizer: Callable[..., optax.GradientTransformation]
    every: int
    folder: Path | None


class Contender(NamedTuple):
    """A candidate with the points at which it is still considered."""

    candidate: Candidate
    points: tuple[Point, ...]


class Trained(NamedTuple):
    """The runs of a contender.

    Args:
        contender: the candidate and its points.
        history: the evaluated records, `[points, seeds, records]`.
        sweep: the taped runs; of a candidate that reads the clock, those on the plan's cluster.
        workers: N.
    """

    contender: Contender
    history: dict[str, np.ndarray]
    sweep: Sweep
    workers: int

    @property
    def rounds(self) -> np.ndarray:
        """Rounds before each evaluation, `[records]`; N updates count as one."""
        per_round = self.workers if self.contender.candidate.updates else 1
        return self.history["step"] / per_round


def all_points(candidate: Candidate, learning_rates: Sequence[float]) -> Contender:
    """Returns a candidate at all combinations of its hyperparameters and the step sizes."""
    grids = {RATE: tuple(learning_rates), **candidate.grids}
    return Contender(
        candidate,
        tuple(
            dict(zip(grids, values, strict=True)) for values in itertools.product(*grids.values())
        ),
    )


def train(setting: Setting, contender: Contender, rounds: int, name: str) -> Trained:
    """Runs a contender at all its points, with all seeds.

    Args:
        setting: what all runs share.
        contender: the candidate and its points.
        rounds: number of rounds; of updates, N times as many.
        name: of the checkpoint's folder.
    """
    candidate, N = contender.candidate, setting.problem.workers
    times = N if candidate.updates else 1
    every = min(setting.every, rounds) * times
    options: dict[str, Any] = (
        {"cluster": setting.cluster, "record_every": every}
        if candidate.updates
        else {"taped": True, "evaluate_every": every, "cluster": _participation(setting.cluster)}
    )
    found = sweep(
        _Factory(setting, contender),
        setting.problem,
        steps=rounds * times,
        key=setting.key,
        seeds=setting.seeds,
        mesh=setting.mesh,
        checkpoint=setting.folder and setting.folder / name,
        point=range(len(contender.points)),
        **options,
    )
    return Trained(contender, evaluated(found.history), found, N)


def _participation(cluster: Cluster) -> Cluster | None:
    """Returns the cluster of taped runs: that of the plan, if workers or messages may be absent."""
    return None if cluster.present is None and cluster.delivered is None else cluster


@dataclass(frozen=True, eq=False)
class _Factory(sameness.Compared):
    """The method at a point, by its index, which a sweep traces."""

    setting: Setting
    contender: Contender

    def __call__(self, point: Any) -> Algorithm:
        values = {
            name: at(np.array([each[name] for each in self.contender.points]), point)
            for name in self.contender.points[0]
        }
        optimizer = self.setting.optimizer(values.pop(RATE))
        return self.contender.candidate.build(optimizer, self.setting.problem.workers, **values)


def at(numbers: np.ndarray, index: Any) -> Any:
    """Returns the number at an index that a sweep or a replay may trace."""
    return jnp.asarray(numbers)[index] if isinstance(index, jax.Array) else numbers[index].item()
