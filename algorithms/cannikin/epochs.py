"""Epochs, before each of which a system decides how much every node computes: whoever then computes
it, and on whichever clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np

from algorithms.cannikin import policies, scalings
from algorithms.cannikin.noise_scale import NoiseScale, gradient_noise_scale, smoothed
from algorithms.cannikin.policies import Observation, System
from dsgd import checks
from dsgd.base import Params, Problem, PyTree

Limits = Annotated[Sequence[int] | np.ndarray, "a number of samples for each node"]
LEAST = 2  # rounds of an epoch: nodes of a simulated one know the times of a round in the next


class Epoch(NamedTuple):
    """What was decided for an epoch, and what came of it.

    Args:
        batches: samples of each node, int `[N]`; 0 of those that were not there.
        rounds: how many.
        seconds: of all of them.
        factor: what the step size was multiplied by.
        noise_scale: S / G in samples, smoothed, after it; infinite where no gradient is seen in the
            noise.
        scalars: what is known of the loss: see who trains.
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
    """What training gives back.

    Args:
        epochs: one after the other.
        state: the last one, of the method, or the model's and its optimiser's.
        params: the model to take home.
    """

    epochs: list[Epoch]
    state: PyTree
    params: Params

    def clock(self) -> np.ndarray:
        """Seconds at the end of each epoch."""
        return np.cumsum([epoch.seconds for epoch in self.epochs])


class Plan(NamedTuple):
    """How long to train, and what decides. `plan` makes it.

    Args:
        name: of the function that trains, for its messages.
        system: which decides.
        last_share: T_u / T_comm.
        epochs: at most.
        samples: of an epoch.
        room: samples for which each node has memory, int `[N]`.
        scaling, initial_batch, smoothing, present, until: as of `cannikin.train`.
    """

    name: str
    system: System
    last_share: float
    epochs: int
    samples: int
    room: np.ndarray
    scaling: scalings.Scaling
    initial_batch: int | None
    smoothing: float
    present: Callable[[int], np.ndarray] | None
    until: Callable[[list[Epoch]], bool] | None


class Ran(NamedTuple):
    """What the rounds of an epoch gave.

    Args:
        seconds: of all rounds.
        compute, backward, first, communication: what nodes measured, as `Observation` has it, of
            all N nodes, `[rounds, N]`.
        local_sqnorms: of each node's gradient, `[rounds, N]`.
        global_sqnorm: of their mean over samples, `[rounds]`.
        scalars: what is known of the loss.
    """

    seconds: float
    compute: np.ndarray
    backward: np.ndarray
    first: np.ndarray
    communication: np.ndarray
    local_sqnorms: np.ndarray
    global_sqnorm: np.ndarray
    scalars: dict[str, float]


# (samples of each node, int `[N]`, factor of the step size, rounds) -> what came of it
Rounds = Callable[[np.ndarray, float, int], Ran]


def make_plan(
    name: str,
    problem: Problem,
    system: System,
    last_share: float,
    *,
    epochs: int,
    micro_batches: int,
    samples: int | None,
    limits: Limits | None,
    scaling: scalings.Scaling,
    initial_batch: int | None,
    smoothing: float,
    present: Callable[[int], np.ndarray] | None = None,
    until: Callable[[list[Epoch]], bool] | None = None,
) -> Plan:
    """What `cannikin.train` was asked for, or a ValueError that begins with the name."""
    N, B = problem.workers, _need_cut(name, problem)
    M = checks.positive_int(f"{name}: micro_batches", micro_batches)
    each_epoch = (
        N * (problem.samples or B)
        if samples is None
        else checks.positive_int(f"{name}: samples", samples)
    )
    first_batch = (
        None
        if initial_batch is None
        else checks.positive_int(f"{name}: initial_batch", initial_batch)
    )
    if not 0 < smoothing <= 1:
        raise ValueError(f"{name}: smoothing = {smoothing}: need a number in (0, 1]")
    checks.positive_int(f"{name}: epochs", epochs)
    room = _need_limits(name, limits, N, M * B)
    return Plan(
        name,
        system,
        last_share,
        epochs,
        each_epoch,
        room,
        scaling,
        first_batch,
        smoothing,
        present,
        until,
    )


def follow(plan: Plan, run: Rounds) -> list[Epoch]:
    """The epochs, one after the other."""
    system, room = plan.system, plan.room
    ids = _there(plan, 0)
    memory = system.start(policies.Cluster(len(ids), plan.last_share, room[ids]))
    noise, first_batch, found = NoiseScale(0.0, 0.0, 0.0), plan.initial_batch, list[Epoch]()
    for epoch in range(plan.epochs):
        ids, memory = _attending(system, memory, ids, _there(plan, epoch), room)
        decided, memory = system.decide(memory)
        sizes = _need_batches(plan, decided, ids)
        total = int(sizes.sum())
        first_batch = first_batch or total
        factor = plan.scaling(noise, total, first_batch)
        rounds = max(LEAST, math.ceil(plan.samples / total))
        ran = run(sizes, factor, rounds)
        noise = smoothed(noise, _noise_of(ran, sizes), plan.smoothing)
        times = {
            name: getattr(ran, name)[:, ids]
            for name in ("compute", "backward", "first", "communication")
        }
        memory = system.observe(memory, Observation(sizes[ids], noise=noise, **times))
        found.append(Epoch(sizes, rounds, ran.seconds, factor, noise.samples, ran.scalars))
        if plan.until is not None and checks.truth(
            f"{plan.name}: until", plan.until(found), "epochs[-1].total > 1_000"
        ):
            break
    return found


def _there(plan: Plan, epoch: int) -> np.ndarray:
    """The nodes of an epoch, in order."""
    N = len(plan.room)
    if plan.present is None:
        return np.arange(N)
    said = np.asarray(plan.present(epoch))
    if said.shape != (N,) or said.dtype != bool or not said.any():
        raise ValueError(
            f"{plan.name}: present({epoch}) = {checks.shown(said)}: need bool [{N}], of which one "
            "is true"
        )
    return np.flatnonzero(said)


def _attending(
    system: System, memory: Any, ids: np.ndarray, now: np.ndarray, room: np.ndarray
) -> tuple[np.ndarray, Any]:
    """The nodes of an epoch, those of the last one first, and what the system remembers of them."""
    if set(ids) == set(now):
        return ids, memory
    stay = np.flatnonzero(np.isin(ids, now))
    order = np.concatenate([ids[stay], np.setdiff1d(now, ids)])
    return order, system.resize(memory, stay, len(order) - len(stay), room[order])


def _noise_of(ran: Ran, sizes: np.ndarray) -> NoiseScale:
    """The mean over an epoch's rounds; NaN where one node has all samples."""
    there = sizes > 0
    if there.sum() < 2:
        return NoiseScale(np.nan, np.nan)
    each = gradient_noise_scale(ran.local_sqnorms[:, there], ran.global_sqnorm, sizes[there])
    # of one epoch, whatever its number of rounds
    return NoiseScale(np.mean(each.noise), np.mean(each.sqnorm))


def _need_batches(plan: Plan, decided: Any, ids: np.ndarray) -> np.ndarray:
    """Those of all workers, `[N]`: 0 of who is not there."""
    batches, most, who = np.asarray(decided), plan.room[ids], f"{plan.name}: {plan.system.name}"
    if (
        batches.shape != ids.shape
        or not np.issubdtype(batches.dtype, np.integer)
        or ((batches < 0) | (batches > most)).any()
    ):
        given, limits = checks.shown(decided), checks.shown(most.tolist())
        raise ValueError(
            f"{who} gives batches {given}: need whole numbers, one a node, from 0 to {limits}"
        )
    if not batches.any():
        raise ValueError(
            f"{who} gives batches of 0 samples in all: need somebody who computes something"
        )
    sizes = np.zeros(len(plan.room), int)
    sizes[ids] = batches
    return sizes


def _need_cut(name: str, problem: Problem) -> int:
    if problem.batch_size is None or problem.take is None:
        raise ValueError(
            f"{name}: {problem.name} cannot cut its batches (batch_size, take): need a problem "
            "that can"
        )
    if problem.batch_sizes is not None:
        smallest = min(problem.batch_sizes)
        given = f"{problem.name} draws without replacement, and some workers have {smallest} samples of a batch of {problem.batch_size}"
        raise ValueError(f"{name}: {given}; pass replacement=True to the problem")
    return problem.batch_size


def _need_limits(name: str, limits: Any, N: int, most: int) -> np.ndarray:
    if limits is None:
        return np.full(N, most)
    given = np.asarray(limits)
    if given.shape != (N,) or not np.issubdtype(given.dtype, np.integer) or (given < 0).any():
        raise ValueError(
            f"{name}: limits = {checks.shown(limits)}: need whole numbers of samples, one for "
            f"each of {N} nodes"
        )
    # int8 has no room for the most
    wide = given if given.dtype.itemsize == 8 else given.astype(np.int64)
    return np.minimum(wide, most).astype(np.int64)
