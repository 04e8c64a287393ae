"""Training in epochs, before each of which a system decides how much every node computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np

import dsgd
from algorithms.cannikin import policies, scalings, stages
from algorithms.cannikin.noise_scale import NoiseScale, gradient_noise_scale, smoothed
from algorithms.cannikin.policies import Observation, System
from dsgd import checks
from dsgd.base import Algorithm, Key, Params, Problem, State
from dsgd.clusters import Cluster
from dsgd.engine.oracle import RESERVED

Limits = Annotated[Sequence[int] | np.ndarray, "a number of samples for each node"]
_AT_THE_END = 1 << 30  # rounds between evaluations: one number for all stages, however long, since each other one is another program
_MEASURED_FROM = 2  # rounds of a stage, before which no node has measured anything


class Epoch(NamedTuple):
    """What was decided for an epoch, and what came of it.

    Args:
        batches: samples of each node, int `[N]`; 0 of those that were not there.
        rounds: how many.
        seconds: of all of them.
        factor: what the step size was multiplied by.
        noise_scale: S / G in samples, smoothed, after it; infinite where no gradient is seen in the noise.
        scalars: the problem's, after it: "loss", and what else it evaluates.
    """

    batches: np.ndarray
    rounds: int
    seconds: float
    factor: float
    noise_scale: float
    scalars: dict[str, float]

    @property
    def total(self) -> int:
        """B."""
        return int(self.batches.sum())

    @property
    def batch_time(self) -> float:
        """Seconds of a round."""
        return self.seconds / self.rounds


class Training(NamedTuple):
    """What `train` gives back.

    Args:
        epochs: one after the other.
        state: the last one, of the method.
        params: the model to take home.
    """

    epochs: list[Epoch]
    state: State
    params: Params

    def clock(self) -> np.ndarray:
        """Seconds at the end of each epoch."""
        return np.cumsum([epoch.seconds for epoch in self.epochs])


@checks.arguments
def train(
    method: Algorithm,
    problem: Problem,
    system: System,
    *,
    cluster: Cluster,
    epochs: int,
    key: Key,
    micro_batches: int,
    samples: int | None = None,
    limits: Limits | None = None,
    scaling: scalings.Scaling = scalings.constant,
    initial_batch: int | None = None,
    smoothing: float = 0.3,
    present: Callable[[int], np.ndarray] | None = None,
    until: Callable[[list[Epoch]], bool] | None = None,
    mesh: int | None = 1,
) -> Training:
    r"""Epochs whose local batches a system decides, from what nodes have measured in those before.

    The samples of all nodes count the same (equation 9); the step size is the optimiser's times what `scaling` says of the noise scale. All
    epochs are stages of one compiled run.

    Args:
        method: any that takes the mean over workers, its optimiser made `cannikin.scalable` where there is a `scaling`.
        problem: whose N workers are the nodes, with a batch_size that is cut.
        system: `cannikin.cannikin(...)`, `equal_split`, `lb_bsp`, `adaptdl`, or one of your own.
        cluster: with an overlap, and `at_once` where there are several micro-batches.
        epochs: at most.
        key: of everything random.
        micro_batches: M, pieces in which a local batch is simulated; M batch_size samples are the most that any node may have.
        samples: of an epoch, which has whole rounds, and at least two: nodes know the times of one in the next; None: as many as all
            workers have.
        limits: samples for which each node has memory; None: M batch_size.
        scaling: `cannikin.adascale`, `square_root` or `constant`.
        initial_batch: B_0 of the scaling; None: the first epoch's.
        smoothing: of S and G, the weight of the newest epoch.
        present: epoch -> which nodes are there, bool `[N]`; None: all. Who leaves loses what was learned of it.
        until: of the epochs so far, whether that was the last one.
        mesh: devices.

    Raises:
        ValueError: epochs, micro_batches, samples or initial_batch < 1, a smoothing outside (0, 1], a problem that has no batch_size or
            cannot cut its batches, a cluster without an overlap, or that takes micro-batches for batches of their own; limits for another
            N. When it runs: a system's batches that do not fit, a scaling of steps that are not `scalable`, nobody present.
    """
    N, B = problem.workers, _need_cut(problem)
    M = checks.positive_int("cannikin.train: micro_batches", micro_batches)
    room, share = _need_limits(limits, N, M * B), _need_overlap(cluster, M)
    each_epoch = N * (problem.samples or B) if samples is None else checks.positive_int("cannikin.train: samples", samples)
    first_batch = None if initial_batch is None else checks.positive_int("cannikin.train: initial_batch", initial_batch)
    if not 0 < smoothing <= 1:
        raise ValueError(f"cannikin.train: smoothing = {smoothing}: need a number in (0, 1]")
    checks.positive_int("cannikin.train: epochs", epochs)
    ids = _there(present, 0, N)
    memory = system.start(policies.Cluster(len(ids), share, room[ids]))
    running = stages.sized(method, B, M)
    params, noise, found = problem.init(jax.random.split(key)[0]), NoiseScale(0.0, 0.0, 0.0), []
    state = running.init(params, N)
    for epoch in range(epochs):
        ids, memory = _attending(system, memory, ids, _there(present, epoch, N), room)
        decided, memory = system.decide(memory)
        sizes = _need_batches(system, decided, ids, room)
        total = int(sizes.sum())
        first_batch = first_batch or total
        factor = scaling(noise, total, first_batch)
        rounds = max(_MEASURED_FROM, math.ceil(each_epoch / total))
        stage = {"steps": rounds, "evaluate_every": _AT_THE_END, "key": key, "cluster": cluster, "mesh": mesh}
        run = dsgd.run(running, problem, start=stages.decided(state, sizes, factor), **stage)
        state, params, history = run.state, run.params, run.history
        noise = smoothed(noise, _noise_of(history, sizes), smoothing)
        memory = system.observe(memory, _seen(history, ids, sizes[ids], noise))
        found.append(Epoch(sizes, rounds, float(history["clock"][-1]), factor, policies.samples_of(noise), _scalars(history)))
        if until is not None and until(found):
            break
    return Training(found, state._replace(server=state.server.method), params)


def _there(present: Callable[[int], np.ndarray] | None, epoch: int, N: int) -> np.ndarray:
    """The nodes of an epoch, in order."""
    if present is None:
        return np.arange(N)
    said = np.asarray(present(epoch))
    if said.shape != (N,) or said.dtype != bool or not said.any():
        raise ValueError(f"cannikin.train: present({epoch}) = {checks.shown(said)}: need bool [{N}], of which one is true")
    return np.flatnonzero(said)


def _attending(system: System, memory: Any, ids: np.ndarray, now: np.ndarray, room: np.ndarray) -> tuple[np.ndarray, Any]:
    """The nodes of an epoch, those of the last one first, and what the system remembers of them."""
    if set(ids) == set(now):
        return ids, memory
    stay = np.flatnonzero(np.isin(ids, now))
    order = np.concatenate([ids[stay], np.setdiff1d(now, ids)])
    return order, system.resize(memory, stay, len(order) - len(stay), room[order])


def _noise_of(history: dict[str, np.ndarray], sizes: np.ndarray) -> NoiseScale:
    """The mean over an epoch's rounds; NaN where one node has all samples."""
    there = sizes > 0
    if there.sum() < 2:
        return NoiseScale(np.nan, np.nan)
    each = gradient_noise_scale(history["local_sqnorms"][1:, there], history["global_sqnorm"][1:], sizes[there])
    return NoiseScale(np.mean(each.noise), np.mean(each.sqnorm))  # of one epoch, whatever its number of rounds


def _seen(history: dict[str, np.ndarray], ids: np.ndarray, batches: np.ndarray, noise: NoiseScale) -> Observation:
    """A record has the times of the round before; the first one has none."""
    compute, backward, first, up = (history[f"measured_{name}"][_MEASURED_FROM:, ids] for name in ("compute", "backward", "first", "up"))
    return Observation(batches, compute, backward, first, up, noise)


def _scalars(history: dict[str, np.ndarray]) -> dict[str, float]:
    """What the problem evaluates, at the end."""
    own = {"global_sqnorm", *RESERVED}
    return {name: float(values[-1]) for name, values in history.items() if values.ndim == 1 and name not in own}


def _need_batches(system: System, decided: Any, ids: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Those of all workers, `[N]`: 0 of who is not there."""
    batches, most = np.asarray(decided), room[ids]
    if batches.shape != ids.shape or not np.issubdtype(batches.dtype, np.integer) or ((batches < 0) | (batches > most)).any():
        given, limits = checks.shown(decided), checks.shown(most.tolist())
        raise ValueError(f"cannikin.train: {system.name} gives batches {given}: need whole numbers, one a node, from 0 to {limits}")
    if not batches.any():
        raise ValueError(f"cannikin.train: {system.name} gives batches of 0 samples in all: need somebody who computes something")
    sizes = np.zeros(len(room), int)
    sizes[ids] = batches
    return sizes


def _need_cut(problem: Problem) -> int:
    if problem.batch_size is None or problem.take is None:
        raise ValueError(f"cannikin.train: {problem.name} cannot cut its batches (batch_size, take): need a problem that can")
    return problem.batch_size


def _need_overlap(cluster: Cluster, micro_batches: int) -> float:
    if cluster.overlap is None:
        raise ValueError(f"cannikin.train: a cluster without an overlap ({cluster.name}): need one, of which nodes measure their times")
    if micro_batches > 1 and not cluster.at_once:
        raise ValueError(f"cannikin.train: {micro_batches} micro-batches as batches of their own: need a cluster with at_once=True")
    return cluster.overlap.last


def _need_limits(limits: Any, N: int, most: int) -> np.ndarray:
    if limits is None:
        return np.full(N, most)
    given = np.asarray(limits)
    if given.shape != (N,) or not np.issubdtype(given.dtype, np.integer) or (given < 0).any():
        raise ValueError(f"cannikin.train: limits = {checks.shown(limits)}: need whole numbers of samples, one for each of {N} nodes")
    return np.minimum(given, most)
