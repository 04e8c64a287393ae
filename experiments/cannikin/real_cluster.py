"""One training in real, unequal processes that tries many splits of a batch; and what a model learned from some of them says of others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

import dsgd
from algorithms import cannikin
from algorithms.cannikin.policies import equal_parts, whole
from dsgd import problems
from experiments.cannikin import competitors

WARM = 1  # epoch of equal parts that does not count: the first rounds of processes take longer than all later ones
LEARNED = 2  # epochs from which the first model is learned: of equal parts, and of equation 8's
_SMALLEST = 0.02  # of the batch, of the family of splits that is drawn


class Setting(NamedTuple):
    """What is trained, and where.

    Args:
        competitors: how many others compute on the core of each process; as many numbers as processes.
        nice: of these.
        total: B, samples of a round.
        shares: of the first process, in the splits that are tried; the others share the rest equally.
        piece: samples in which batches are counted.
        rounds: of each epoch.
        passes: epochs of each split.
        width: of both hidden layers of the network.
        learning_rate: of SGD.
        seed: of everything random.
    """

    competitors: tuple[int, ...]
    nice: int
    total: int
    shares: tuple[float, ...]
    piece: int
    rounds: int
    passes: int
    width: int
    learning_rate: float
    seed: int


class Trial(NamedTuple):
    """An epoch: what each process computed, int `[N]`, what was measured, and seconds of a round."""

    seen: cannikin.Observation
    batch_time: float


def check(setting: Setting) -> None:
    """Raises a ValueError for what cannot be run, or nothing to compare."""
    if len(setting.competitors) < 2 or min(setting.competitors) < 0:
        raise ValueError(f"--competitors {setting.competitors}: need two numbers or more, one a process, at least 0")
    if not all(0 < share < 1 for share in setting.shares):
        raise ValueError(f"--shares {setting.shares}: need numbers between 0 and 1")
    if not 0 <= setting.nice <= 19:
        raise ValueError(f"--nice {setting.nice}: need 0 to 19")
    if setting.total < 2 * setting.piece * len(setting.competitors):
        raise ValueError(f"--total {setting.total}: need {2 * setting.piece * len(setting.competitors)}, two pieces a process, or more")
    competitors.cores()


def split(share: float, N: int, total: int) -> np.ndarray:
    """The first process has this share, the others equal ones of the rest."""
    parts = np.array([share] + (N - 1) * [(1 - share) / (N - 1)])
    return whole(total * parts, total, np.full(N, total))


def train(setting: Setting) -> list[Trial]:
    """Starts the processes, and ends them; a ChildProcessError where one fails."""
    with competitors.competing(setting.competitors, setting.nice) as cores:
        return dsgd.loopback(len(cores), partial(_train, setting, cores), timeout=math.inf)[0]


def _train(setting: Setting, cores: list[int]) -> list[Trial]:
    """In each process."""
    competitors.stay_on(cores[jax.process_index()])
    N, log = len(cores), list[cannikin.Observation]()
    model, key = problems.MLP(10, (setting.width, setting.width)), jax.random.key(setting.seed)
    problem = problems.neural_network(model, workers=N, batch_size=setting.piece, seed=setting.seed)
    trained = cannikin.train_processes(
        problem,
        optax.sgd(setting.learning_rate),
        touring(setting, log),
        epochs=WARM + LEARNED + setting.passes * (len(setting.shares) + 2),
        key=key,
        micro_batches=-(-setting.total // setting.piece),
        samples=setting.rounds * setting.total,
    )
    return [Trial(seen, epoch.batch_time) for seen, epoch in zip(log, trained.epochs, strict=True)][WARM:]


class _Tour(NamedTuple):
    """Where a tour is: the epoch, Cannikin's memory, and the splits still to come."""

    epoch: int
    inner: Any
    ahead: tuple[np.ndarray, ...]


def touring(setting: Setting, log: list[cannikin.Observation]) -> cannikin.System:
    """Cannikin's first epochs; then equal parts, what it finds to be best, and the splits, in passes, each in an order of its own.

    Args:
        setting: of all.
        log: gets what was measured, epoch by epoch.
    """
    N = len(setting.competitors)
    inner, limits = cannikin.cannikin(setting.total), np.full(N, setting.total)

    def decide(memory):
        if memory.epoch < WARM:
            return equal_parts(setting.total, limits), memory
        if memory.epoch < WARM + LEARNED:
            batches, after = inner.decide(memory.inner)
            return batches, memory._replace(inner=after)
        if memory.epoch == WARM + LEARNED:
            memory = memory._replace(ahead=tuple(_passes(setting, inner.decide(memory.inner)[0])))
        return memory.ahead[0], memory._replace(ahead=memory.ahead[1:])

    def observe(memory, seen):
        log.append(seen)
        known = inner.observe(memory.inner, seen) if WARM <= memory.epoch < WARM + LEARNED else memory.inner
        return memory._replace(epoch=memory.epoch + 1, inner=known)

    def resize(memory, stay, joined, limits):
        raise AssertionError(f"{N} processes stay")

    return cannikin.System(lambda cluster: _Tour(0, inner.start(cluster), ()), decide, observe, resize, "a tour")


def _passes(setting: Setting, best: np.ndarray) -> list[np.ndarray]:
    """Each pass has all of them, shuffled."""
    N, rng = len(setting.competitors), np.random.default_rng(setting.seed)
    each = [equal_parts(setting.total, np.full(N, setting.total)), best, *(split(share, N, setting.total) for share in setting.shares)]
    return [each[i] for _ in range(setting.passes) for i in rng.permutation(len(each))]


# --- What is learned from it.


def learned(trials: Sequence[Trial]) -> cannikin.ClusterModel:
    """The cluster's model from these epochs."""
    known = cannikin.learner(len(trials[0].seen.batches), 1.0)
    for seen, _ in trials:
        known = known.observed(seen.batches, seen.compute, seen.backward, seen.first, seen.communication)
    model = known.model()
    if model is None:
        raise ValueError("processes that were not all seen at two sizes: need more samples (--total), or other splits (--shares)")
    return model


class Judged(NamedTuple):
    """A split: samples of each process, seconds of a round in each of its epochs, what the model of the first two epochs expects, and that
    of all epochs but its own."""

    batches: np.ndarray
    measured: np.ndarray
    first: float
    others: float

    def errors(self) -> tuple[float, float]:
        """Of both, relative to what was measured on average."""
        mean = self.measured.mean()
        return self.first / mean - 1, self.others / mean - 1


def judge(trials: Sequence[Trial]) -> list[Judged]:
    """All splits of the tour, in the order in which they were first seen; the first model has seen none of them but equal parts."""
    early, tour = learned(trials[:LEARNED]), trials[LEARNED:]
    found = []
    for sizes in dict.fromkeys(tuple(trial.seen.batches.tolist()) for trial in tour):
        own = [tuple(trial.seen.batches.tolist()) == sizes for trial in trials]
        others = learned([trial for trial, mine in zip(trials, own, strict=True) if not mine])
        times = [trial.batch_time for trial in tour if tuple(trial.seen.batches.tolist()) == sizes]
        batches = np.array(sizes)
        found.append(Judged(batches, np.array(times), early.batch_time(batches), others.batch_time(batches)))
    return sorted(found, key=lambda judged: judged.batches[0])


def family(model: cannikin.ClusterModel, total: int) -> tuple[np.ndarray, np.ndarray]:
    """Shares of the first process, and seconds of a round where the others share the rest equally."""
    shares, N = np.linspace(_SMALLEST, 1 - _SMALLEST, 200), model.nodes
    parts = np.column_stack([shares, *(N - 1) * [(1 - shares) / (N - 1)]])
    return shares, model.batch_time(total * parts)
