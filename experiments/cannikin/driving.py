"""Cannikin's systems without training: they decide, from times that a cluster's model has, with
noise where there is some.
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

MOST_EPOCHS = 20_000  # until batches no longer change
# that batches come until they count as settled: LB-BSP takes its last change back, and nodes that
# are alike may swap theirs
TIMES = 3
ROUNDS = 20  # of an epoch, whose times are measured
LEARNT = 6  # epochs after which there is a model, where nodes have few samples, too


class Driven(NamedTuple):
    """What was decided.

    Args:
        batches: of each epoch, int `[epochs, n]`.
        memory: the system's, after them.
    """

    batches: np.ndarray
    memory: Any


class Noise(NamedTuple):
    """Of what nodes measure, each t as t e^(nu z) with its own z from N(0, 1).

    Args:
        times: nu of all times but those of first buckets.
        first: of these, one number or `[n]`.
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
    """(batches, epoch) -> what nodes measure that have this model.

    Args:
        model: of the cluster.
        noise: of their clocks.
        seed: of the noise.
        rounds: of an epoch.
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
    """Epochs, in each of which a system decides, and then sees what nodes measure.

    Args:
        system: of Cannikin's four.
        model: of the cluster.
        measure: of `measuring`.
        epochs: at most.
        until_steady: no further than until batches come for the third time.
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


def settled(system: System, model: ClusterModel) -> np.ndarray:
    """The batches with which a system stays where times are exact, int `[n]`."""
    return drive(system, model, measuring(model, Noise()), MOST_EPOCHS, until_steady=True).batches[
        -1
    ]


class Settled(NamedTuple):
    """Seconds of a batch with the best that each system has, `[totals]`.

    Args:
        totals: B.
        optperf: exact, of whole samples.
        cannikin, ddp, lb_bsp: settled at each B.
        adapted: LB-BSP's batches, settled at a B that is smaller by a tenth of the range, scaled
            up; NaN where there is none.
        together: of batches that all nodes have computed at the same time, at which LB-BSP aims
            with steps of 5 samples.
    """

    totals: np.ndarray
    optperf: np.ndarray
    cannikin: np.ndarray
    ddp: np.ndarray
    lb_bsp: np.ndarray
    adapted: np.ndarray
    together: np.ndarray

    def gain(self, system: str) -> np.ndarray:
        """By what share Cannikin's batches are shorter, `[totals]`."""
        return 1 - self.cannikin / getattr(self, system)


def over_totals(model: ClusterModel, totals: np.ndarray) -> Settled:
    """Every system at every total batch.

    Args:
        model: of the cluster.
        totals: B, rising, int `[totals]`.
    """
    limits, step = np.asarray(model.limits).astype(int), round((totals[-1] - totals[0]) / 10)
    silent = replace(model, gamma=1.0, t_overlap=0.0, t_last=0.0)

    def seconds(batches):
        return float(model.batch_time(batches))

    def adapted(total):
        before = total - step
        if before < totals[0]:
            return np.nan
        return seconds(
            policies.whole(settled(cannikin.lb_bsp(before), model) * total / before, total, limits)
        )

    rows = []
    for total in map(int, totals):
        systems = cannikin.cannikin(total), cannikin.equal_split(total), cannikin.lb_bsp(total)
        each = [seconds(settled(system, model)) for system in systems]
        rows.append(
            [
                model.optperf_integer(total).seconds,
                *each,
                adapted(total),
                seconds(silent.optperf_integer(total).batches),
            ]
        )
    return Settled(totals, *np.array(rows).T)


def prediction_errors(
    model: ClusterModel, workload: Workload, noise: Noise, seed: int, epochs: int
) -> dict[str, float]:
    """The largest relative error of the predicted OptPerf over the range of total batches, by
    weighting.

    Cannikin adapts its total batch meanwhile: the gradient noise scale grows from the first total
    batch to the last one.

    Args:
        model: of the cluster.
        workload: what is trained.
        noise: of the nodes' clocks.
        seed: of the noise.
        epochs: of `ROUNDS` rounds.
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
        then: where only the chosen one's is computed again.
    """

    first: float
    then: float


def overhead(model: ClusterModel, totals: np.ndarray, repeats: int) -> Overhead:
    """Of Cannikin, with the clock of this machine: the shortest of several, since others may keep
    it busy meanwhile.

    Args:
        model: of the cluster.
        totals: the candidates.
        repeats: how often.
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
    """Of the kinds of cluster B in turn; of three nodes cluster A.

    Args:
        count: n.
        workload: what is trained.
    """
    gpus = devices.CLUSTERS["A" if count == 3 else "B"]
    return devices.model_of([gpus[i % len(gpus)] for i in range(count)], workload)


def spread(ratio: float, workload: Workload, count: int = 16) -> ClusterModel:
    """Nodes whose speeds lie evenly from that of the fastest to a part of it; all of
    them are as fast as so many RTX 6000, and have memory for all.

    Args:
        ratio: the fastest to the slowest.
        workload: what is trained.
        count: n.
    """
    shares = np.linspace(1, 1 / ratio, count)
    return devices.model_of(
        [devices.RTX6000.shared(share)._replace(memory=1e15) for share in shares / shares.mean()],
        workload,
    )
