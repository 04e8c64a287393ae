"""Cannikin's systems without training: they decide from times of a cluster's model, with or without
noise.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from algorithms import cannikin
from algorithms.cannikin import ClusterModel, NoiseScale, Observation, System, policies
from experiments.cannikin import devices
from experiments.cannikin.devices import Workload

MOST_EPOCHS = 20_000  # maximal number of epochs until batches no longer change
# How often batches must occur until they count as settled. More than once, because LB-BSP reverts
# its last change, and equal nodes may swap their batches.
TIMES = 3
ROUNDS = 20  # rounds of an epoch whose times are measured
LEARNT = 6  # epochs after which there is a model, even if nodes have few samples


class Driven(NamedTuple):
    """Decisions of a system.

    Args:
        batches: batches of each epoch, int `[epochs, n]`.
        memory: state of the system after the last epoch.
    """

    batches: np.ndarray
    memory: Any


class Noise(NamedTuple):
    """Noise of the nodes' measurements: each time t is measured as t e^(nu z) with an independent z
    from N(0, 1).

    Args:
        times: nu of all times except those of the first buckets.
        first: nu of the first buckets, one number or `[n]`.
    """

    times: float = 0.0
    first: Any = 0.0


Measure = Callable[[np.ndarray, int], Observation]


def measuring(
    model: ClusterModel,
    noise: Noise,
    seed: int = 0,
    rounds: int = 1,
    scale: Callable[[int], float] = lambda epoch: 0.0,
) -> Measure:
    """Returns a function (batches, epoch) -> measurements of nodes with this model.

    Args:
        model: model of the cluster.
        noise: noise of the measurements.
        seed: seed of the noise.
        rounds: number of rounds of an epoch.
        scale: epoch -> the gradient noise scale, in samples.
    """
    T_comm, rng = model.t_overlap + model.t_last, np.random.default_rng(seed)

    def measure(batches: np.ndarray, epoch: int) -> Observation:
        some = batches > 0
        backward = np.where(some, np.multiply(model.k, batches) + model.m, np.nan)
        compute = np.where(some, np.multiply(model.q, batches) + model.s, np.nan) + backward
        levels = (noise.times, noise.times, noise.first, noise.times)
        exact = (compute, backward, model.gamma * backward, np.full(model.nodes, T_comm))
        draws = rng.standard_normal((len(exact), rounds, model.nodes))
        times = (t * np.exp(nu * z) for t, nu, z in zip(exact, levels, draws, strict=True))
        return Observation(batches, *times, noise=NoiseScale(scale(epoch), 1.0))

    return measure


def drive(
    system: System,
    model: ClusterModel,
    measure: Measure,
    epochs: int,
    *,
    until_steady: bool = False,
) -> Driven:
    """Runs epochs in which a system decides, and then receives the nodes' measurements.

    Args:
        system: one of Cannikin's four systems.
        model: model of the cluster.
        measure: as returned by `measuring`.
        epochs: maximal number of epochs.
        until_steady: whether to stop when the same batches occur for the third time.
    """
    T_comm = model.t_overlap + model.t_last
    limits = np.asarray(model.limits).astype(int)
    memory, found, before = (
        system.start(policies.Cluster(model.nodes, model.t_last / T_comm, limits)),
        [],
        Counter(),
    )
    for epoch in range(epochs):
        batches, memory = system.decide(memory)
        memory = system.observe(memory, measure(batches, epoch))
        found.append(batches)
        before[batches.tobytes()] += 1
        if until_steady and before[batches.tobytes()] == TIMES:
            break
    return Driven(np.array(found), memory)


def settle(system: System, model: ClusterModel) -> np.ndarray:
    """Returns the batches at which a system settles if times are exact, int `[n]`."""
    return drive(system, model, measuring(model, Noise()), MOST_EPOCHS, until_steady=True).batches[
        -1
    ]


class Settled(NamedTuple):
    """Seconds of a batch with the best split of each system, `[totals]`.

    Args:
        totals: B.
        optperf: exact optimum, in whole samples.
        cannikin, ddp, lb_bsp: settled at each B.
        adapted: LB-BSP's split, settled at a B that is smaller by a tenth of the range, scaled up;
            NaN if there is no such B.
        together: split for which all nodes finish their computation at the same time, which is
            LB-BSP's aim, in steps of 5 samples.
    """

    totals: np.ndarray
    optperf: np.ndarray
    cannikin: np.ndarray
    ddp: np.ndarray
    lb_bsp: np.ndarray
    adapted: np.ndarray
    together: np.ndarray

    def gain(self, system: str) -> np.ndarray:
        """Returns the share by which Cannikin's batches are shorter, `[totals]`."""
        return 1 - self.cannikin / getattr(self, system)


def settle_totals(model: ClusterModel, totals: np.ndarray) -> Settled:
    """Returns the settled times of every system at every total batch.

    Args:
        model: model of the cluster.
        totals: B, increasing, int `[totals]`.
    """
    limits, step = np.asarray(model.limits).astype(int), round((totals[-1] - totals[0]) / 10)
    silent = replace(model, gamma=1.0, t_overlap=0.0, t_last=0.0)

    def seconds(batches):
        return float(model.batch_time(batches))

    def adapt_batches(total):
        before = total - step
        if before < totals[0]:
            return np.nan
        return seconds(
            policies.whole(settle(cannikin.lb_bsp(before), model) * total / before, total, limits)
        )

    rows = []
    for total in map(int, totals):
        systems = cannikin.cannikin(total), cannikin.equal_split(total), cannikin.lb_bsp(total)
        each = [seconds(settle(system, model)) for system in systems]
        rows.append(
            [
                model.optperf_integer(total).seconds,
                *each,
                adapt_batches(total),
                seconds(silent.optperf_integer(total).batches),
            ]
        )
    return Settled(totals, *np.array(rows).T)


def prediction_errors(
    model: ClusterModel, workload: Workload, noise: Noise, seed: int, epochs: int
) -> dict[str, float]:
    """Returns the largest relative error of the predicted OptPerf over the range of total batches,
    by weighting.

    Cannikin adapts its total batch during the epochs: the gradient noise scale grows from the first
    total batch to the last one.

    Args:
        model: model of the cluster.
        workload: the workload.
        noise: noise of the nodes' measurements.
        seed: seed of the noise.
        epochs: number of epochs of `ROUNDS` rounds.
    """
    totals = devices.batches_of(model, workload, 20)
    scales = np.geomspace(totals[0], totals[-1], epochs)
    measure = measuring(model, noise, seed, ROUNDS, lambda epoch: scales[epoch])
    learner = drive(cannikin.cannikin(totals), model, measure, epochs).memory.learner
    exact = model.optperf(totals).seconds
    errors = {}
    for weighting in ("inverse-variance", "plain"):
        learned = learner.model(weighting)
        assert learned is not None, "two epochs are enough"
        errors[weighting] = float(np.max(np.abs(learned.optperf(totals).seconds / exact - 1)))
    return errors


class Overhead(NamedTuple):
    """Seconds to learn from an epoch and decide the next one.

    Args:
        first: with the OptPerf of all candidates.
        then: if only the OptPerf of the chosen candidate is computed again.
    """

    first: float
    then: float


def overhead(model: ClusterModel, totals: np.ndarray, repeats: int) -> Overhead:
    """Returns Cannikin's overhead by the clock of this machine: the shortest of several
    measurements, because other processes may slow some of them down.

    Args:
        model: model of the cluster.
        totals: the candidates.
        repeats: number of measurements.
    """
    system, measure = (
        cannikin.cannikin(totals),
        measuring(model, Noise(), rounds=ROUNDS, scale=lambda epoch: 1e3),
    )
    ready = drive(system, model, measure, LEARNT).memory
    seen = measure(system.decide(ready)[0], LEARNT)

    def seconds(memory):
        taken = []
        for _ in range(repeats):
            began = time.perf_counter()
            system.decide(system.observe(memory, seen))
            taken.append(time.perf_counter() - began)
        return min(taken)

    fresh = ready._replace(candidates=ready.candidates._replace(seconds=None, patterns=None))
    return Overhead(seconds(fresh), seconds(ready))


def many_nodes(count: int, workload: Workload) -> ClusterModel:
    """Returns nodes with the GPUs of cluster B in turn; for three nodes, cluster A.

    Args:
        count: n.
        workload: the workload.
    """
    gpus = devices.CLUSTERS["A" if count == 3 else "B"]
    return devices.model_of([gpus[i % len(gpus)] for i in range(count)], workload)


def spread(ratio: float, workload: Workload, count: int = 16) -> ClusterModel:
    """Returns nodes with evenly spaced speeds, from the fastest to the slowest; their total speed
    is that of the same number of RTX 6000, and their memory suffices for all batches.

    Args:
        ratio: speed of the fastest over the slowest node.
        workload: the workload.
        count: n.
    """
    shares = np.linspace(1, 1 / ratio, count)
    return devices.model_of(
        [devices.RTX6000.scale(share)._replace(memory=1e15) for share in shares / shares.mean()],
        workload,
    )
