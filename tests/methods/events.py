"""Clusters with times of the workers from tables, the workers that a method asks, and the
events of asynchronous servers: the worker of each update, and the age of its model.

Seconds are dyadic and bandwidths powers of two, so that float32 represents every time exactly as
well as Python's floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from dsgd import clusters
from theory_checks.machinery.rounds import Instance
from theory_checks.machinery.statement import Draws
from theory_checks.machinery.trajectories import D, N, Trajectory

BITS = 64 * D  # of a model


class Numbers(NamedTuple):
    """A cluster of N workers.

    Args:
        compute: seconds of each lap of a worker's computing, `[N, laps]`. A computation takes the
            seconds of the lap selected by the eighth of a second in which it begins.
        up, down: bits per second, `[N]`.
    """

    compute: np.ndarray
    up: np.ndarray
    down: np.ndarray

    def seconds(self, worker: int, clock: float) -> float:
        """Returns the seconds that this worker computes if it begins at this time."""
        laps = self.compute[worker]
        return float(laps[int(8 * clock) % len(laps)])


def cluster(draws: Draws) -> Numbers:
    """Draws computation times of three laps, multiples of an eighth of a second, and bandwidths
    that are powers of two. Many times coincide.
    """
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    longest = draws.choice((3, 40))
    up, down = (BITS * 2.0 ** rng.integers(-1, 4, size=N) for _ in range(2))
    return Numbers((rng.integers(1, 41, size=(N, 3)) % longest + 1) / 8.0, up, down)


def cluster_of(numbers: Any, **options: Any) -> clusters.Cluster:
    """Returns a cluster with these numbers."""

    def bandwidth(values):
        return clusters.Quantity(
            lambda key, clock, worker: values[worker],
            "bandwidth",
            positive=True,
            time_invariant=True,
        )

    def seconds(key, clock, worker):
        laps = numbers.compute[worker]
        return laps[jnp.floor(8 * clock).astype(jnp.int32) % len(laps)]

    computing = clusters.Quantity(seconds, "seconds", positive=False)
    return clusters.Cluster(computing, bandwidth(numbers.up), bandwidth(numbers.down), **options)


def place(of: Instance, **options: Any) -> clusters.Cluster:
    """Returns the cluster of an instance's numbers."""
    return cluster_of(of.more, **options)


def asked_worker(found: Trajectory) -> np.ndarray:
    """Returns the worker that computed the gradient of each round, `[T]`; -1 if it was not exactly
    one.
    """
    if found.asked is None or found.asked.shape[1] != 1:
        return np.full(len(found.home), -1)
    return found.asked[:, 0]


class Schedule(NamedTuple):
    """The events of each update.

    Args:
        worker: the worker of the applied gradient, `[T]`.
        clock: seconds at which it was applied (to the last part), `[T]`.
        version: number of the model from which each part was read, `[T, P]`.
    """

    worker: list[int]
    clock: list[float]
    version: list[list[int]]

    @property
    def staleness(self) -> np.ndarray:
        """Staleness of each part, `[T, P]`."""
        return np.arange(len(self.worker))[:, None] - np.array(self.version)


class _Waiting(NamedTuple):
    """A gradient on a worker.

    Args:
        ready: seconds from which on it can be sent.
        reads: seconds at which each of its parts was read; -1 for the initial model.
        own: number of updates up to and including this worker's last one.
        held: seconds until which bounded staleness blocks it.
    """

    ready: float
    reads: list[float]
    own: int
    held: float = 0.0


def server_schedule(
    numbers: Numbers,
    *,
    latency: float,
    convention: str,
    servers: int,
    updates: int,
    bits: float,
    bound: float = np.inf,
) -> Schedule:
    """Simulates updates: the server applies the first ready gradient after which all others can
    still be applied without exceeding the bound.

    Args:
        numbers: the cluster.
        latency: seconds of a message.
        convention: "blocking", if latency occupies the ports, or "pipelined".
        servers: P, each with one part.
        updates: T.
        bits: of the whole model.
        bound: tau of bounded staleness.

    Source: Liu and Zhang, section 4.1; Ho et al., 2013.
    """
    N, part = len(numbers.up), bits / servers
    occupied = latency * (convention == "blocking")  # seconds for which latency occupies a port
    ahead = latency - occupied
    waiting = [_Waiting(numbers.seconds(n, 0.0), [-1.0] * servers, 0) for n in range(N)]
    into, out = [0.0] * servers, [0.0] * servers
    applied: list[list[float]] = [[] for _ in range(servers)]
    found = Schedule([], [], [])
    for t in range(updates):
        versions = [_versions(gradient, applied) for gradient in waiting]
        allowed = _find_allowed([min(each) + bound for each in versions], t)
        ready = [
            gradient.ready if may else np.inf
            for gradient, may in zip(waiting, allowed, strict=True)
        ]
        worker = ready.index(min(ready))
        found.worker.append(worker)
        found.version.append(versions[worker])
        up, down = part / numbers.up[worker], part / numbers.down[worker]
        sent, reads = max(waiting[worker].ready, waiting[worker].held), []
        for s in range(servers):
            start = max(sent, into[s] - ahead)
            into[s] = sent = start + latency + up
            applied[s].append(sent)
        received = 0.0
        for s in range(servers):
            start = max(applied[s][-1], out[s], received)
            out[s] = start + occupied + down
            received = start + latency + down
            reads.append(start)
        found.clock.append(applied[-1][-1])
        waiting = [
            gradient if may else gradient._replace(held=applied[0][-1])
            for gradient, may in zip(waiting, allowed, strict=True)
        ]
        waiting[worker] = _Waiting(received + numbers.seconds(worker, received), reads, t + 1)
    return found


def _versions(gradient: _Waiting, applied: Sequence[Sequence[float]]) -> list[int]:
    """Returns the number of updates that had been applied to each part when it was read."""
    if gradient.own == 0:
        return [0] * len(applied)
    return [
        max(gradient.own, sum(when < read for when in arrivals))
        for arrivals, read in zip(applied, gradient.reads, strict=True)
    ]


def _find_allowed(deadlines: Sequence[float], t: int) -> list[bool]:
    """Returns which workers may provide update t such that all others can still be applied in
    time.
    """

    def may(n):
        others = sorted([*deadlines[:n], *deadlines[n + 1 :]])
        return deadlines[n] >= t and all(last >= t + 1 + k for k, last in enumerate(others))

    return [may(n) for n in range(len(deadlines))]
