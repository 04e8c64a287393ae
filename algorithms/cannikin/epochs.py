"""Training in epochs, before each of which a system decides the local batch of every node. The
rounds may be simulated or real.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np

from algorithms.cannikin import policies, scalings
from algorithms.cannikin.noise_scale import NoiseScale, gradient_noise_scale, smooth
from algorithms.cannikin.policies import Observation, System
from dsgd import checks
from dsgd.base import Params, Problem, PyTree

Limits = Annotated[Sequence[int] | np.ndarray, "a number of samples for each node"]
LEAST = 2  # rounds of an epoch; in a simulation the timings of a round are available in the next


class Epoch(NamedTuple):
    """Decisions and results of an epoch.

    Args:
        batches: samples of each node, int `[N]`; 0 for nodes that did not participate.
        rounds: number of rounds.
        seconds: of all rounds together.
        factor: factor of the step size.
        noise_scale: S / G in samples, smoothed, after the epoch; infinite if the estimate of G is
            not positive.
        scalars: the loss and other metrics; see the function that trains.
    """

    batches: np.ndarray
    rounds: int
    seconds: float
    factor: float
    noise_scale: float
    scalars: dict[str, float]

    @property
    def total(self) -> int:
        """B, the total batch."""
        return int(self.batches.sum())

    @property
    def batch_time(self) -> float:
        """Seconds of a round."""
        return self.seconds / self.rounds


class Training(NamedTuple):
    """Result of training.

    Args:
        epochs: in order.
        state: the last state of the method, or of the model and its optimizer.
        params: the final model.
    """

    epochs: list[Epoch]
    state: PyTree
    params: Params

    def clock(self) -> np.ndarray:
        """Returns the seconds at the end of each epoch."""
        return np.cumsum([epoch.seconds for epoch in self.epochs])


class Plan(NamedTuple):
    """Options of a training run, made by `make_plan`.

    Args:
        name: name of the function that trains, for error messages.
        system: decides the local batches.
        last_share: T_u / T_comm.
        epochs: maximal number of epochs.
        samples: number of samples of an epoch.
        room: number of samples for which each node has memory, int `[N]`.
        scaling, initial_batch, smoothing, present, until: see `cannikin.train`.
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


class EpochMeasurements(NamedTuple):
    """Measurements of an epoch's rounds.

    Args:
        seconds: of all rounds together.
        compute, backward, first, communication: timings of all N nodes, as in `Observation`,
            `[rounds, N]`.
        local_sqnorms: squared norm of each node's gradient, `[rounds, N]`.
        global_sqnorm: squared norm of their mean over samples, `[rounds]`.
        scalars: the loss and other metrics.
    """

    seconds: float
    compute: np.ndarray
    backward: np.ndarray
    first: np.ndarray
    communication: np.ndarray
    local_sqnorms: np.ndarray
    global_sqnorm: np.ndarray
    scalars: dict[str, float]


# (samples of each node, int `[N]`, factor of the step size, rounds) -> measurements
Rounds = Callable[[np.ndarray, float, int], EpochMeasurements]


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
    """Validates the arguments of `cannikin.train`. Error messages begin with `name`."""
    N, B = problem.workers, _require_cut(name, problem)
    M = checks.positive_int(f"{name}: micro_batches", micro_batches)
    each_epoch = (
        N * (problem.max_local_samples or B)
        if samples is None
        else checks.positive_int(f"{name}: samples", samples)
    )
    first_batch = (
        None
        if initial_batch is None
        else checks.positive_int(f"{name}: initial_batch", initial_batch)
    )
    if not 0 < smoothing <= 1:
        raise ValueError(f"{name}: smoothing = {smoothing}; expected a number in (0, 1]")
    checks.positive_int(f"{name}: epochs", epochs)
    room = _require_limits(name, limits, N, M * B)
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


def run_epochs(plan: Plan, run: Rounds) -> list[Epoch]:
    """Runs the epochs one after the other."""
    system, room = plan.system, plan.room
    ids = _there(plan, 0)
    memory = system.start(policies.Cluster(len(ids), plan.last_share, room[ids]))
    noise, first_batch, found = NoiseScale(0.0, 0.0, 0.0), plan.initial_batch, list[Epoch]()
    for epoch in range(plan.epochs):
        ids, memory = _attending(system, memory, ids, _there(plan, epoch), room)
        decided, memory = system.decide(memory)
        sizes = _require_batches(plan, decided, ids)
        total = int(sizes.sum())
        first_batch = first_batch or total
        factor = plan.scaling(noise, total, first_batch)
        rounds = max(LEAST, math.ceil(plan.samples / total))
        ran = run(sizes, factor, rounds)
        noise = smooth(noise, _noise_of(ran, sizes), plan.smoothing)
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
    """Returns the nodes of an epoch, in order."""
    N = len(plan.room)
    if plan.present is None:
        return np.arange(N)
    present = np.asarray(plan.present(epoch))
    if present.shape != (N,) or present.dtype != bool or not present.any():
        raise ValueError(
            f"{plan.name}: present({epoch}) = {checks.show(present)}; expected bool [{N}] with at "
            "least one True"
        )
    return np.flatnonzero(present)


def _attending(
    system: System, memory: Any, ids: np.ndarray, now: np.ndarray, room: np.ndarray
) -> tuple[np.ndarray, Any]:
    """Returns the nodes of an epoch, those of the last epoch first, and the system's state for
    them.
    """
    if set(ids) == set(now):
        return ids, memory
    stay = np.flatnonzero(np.isin(ids, now))
    order = np.concatenate([ids[stay], np.setdiff1d(now, ids)])
    return order, system.resize(memory, stay, len(order) - len(stay), room[order])


def _noise_of(ran: EpochMeasurements, sizes: np.ndarray) -> NoiseScale:
    """Returns the mean noise scale over an epoch's rounds; NaN if one node has all samples."""
    there = sizes > 0
    if there.sum() < 2:
        return NoiseScale(np.nan, np.nan)
    each = gradient_noise_scale(ran.local_sqnorms[:, there], ran.global_sqnorm, sizes[there])
    # `seen` counts an epoch as 1, for any number of rounds
    return NoiseScale(np.mean(each.noise), np.mean(each.sqnorm))


def _require_batches(plan: Plan, decided: Any, ids: np.ndarray) -> np.ndarray:
    """Validates the system's decision; returns the batches of all nodes, `[N]`, 0 for those that do
    not participate.
    """
    batches, most, where = np.asarray(decided), plan.room[ids], f"{plan.name}: {plan.system.name}"
    if (
        batches.shape != ids.shape
        or not np.issubdtype(batches.dtype, np.integer)
        or ((batches < 0) | (batches > most)).any()
    ):
        given, limits = checks.show(decided), checks.show(most.tolist())
        raise ValueError(
            f"{where} returned batches {given}; expected integers, one for each node, from 0 to "
            f"{limits}"
        )
    if not batches.any():
        raise ValueError(
            f"{where} returned batches of 0 samples in total; expected at least one node with "
            "samples"
        )
    sizes = np.zeros(len(plan.room), int)
    sizes[ids] = batches
    return sizes


def _require_cut(name: str, problem: Problem) -> int:
    if problem.batch_size is None or problem.sampler.truncate is None:
        raise ValueError(
            f"{name}: {problem.name} cannot truncate its batches; expected a problem with "
            "batch_size and truncate"
        )
    if problem.sampler.batch_sizes is not None:
        smallest = min(problem.sampler.batch_sizes)
        given = (
            f"{problem.name} draws without replacement, and some workers have {smallest} samples "
            f"for a batch of {problem.batch_size}"
        )
        raise ValueError(
            f"{name}: {given}; expected enough samples for a batch: pass replacement=True to the "
            "problem"
        )
    return problem.batch_size


def _require_limits(name: str, limits: Any, N: int, most: int) -> np.ndarray:
    if limits is None:
        return np.full(N, most)
    given = np.asarray(limits)
    if given.shape != (N,) or not np.issubdtype(given.dtype, np.integer) or (given < 0).any():
        raise ValueError(
            f"{name}: limits = {checks.show(limits)}; expected integers >= 0, a number of samples "
            f"for each of {N} nodes"
        )
    # small integer types cannot represent `most`
    wide = given if given.dtype.itemsize == 8 else given.astype(np.int64)
    return np.minimum(wide, most).astype(np.int64)
