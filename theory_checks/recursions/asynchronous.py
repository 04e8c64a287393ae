"""Asynchronous methods as sequences of events: the worker of each update, the age of its model, and
the resulting step.

Seconds are Python floats. If they are dyadic and bandwidths are powers of two, float32 represents
every time exactly as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from theory_checks.recursions.compressed import shard, unshard
from theory_checks.recursions.shared import Gradients, Step, at_one


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


class Schedule(NamedTuple):
    """The events of each update.

    Args:
        worker: the worker whose gradient was applied, `[T]`.
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
        allowed = _allowed([min(each) + bound for each in versions], t)
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


def _allowed(deadlines: Sequence[float], t: int) -> list[bool]:
    """Returns which workers may provide update t such that all others can still be applied in
    time.
    """

    def may(n):
        others = sorted([*deadlines[:n], *deadlines[n + 1 :]])
        return deadlines[n] >= t and all(last >= t + 1 + k for k, last in enumerate(others))

    return [may(n) for n in range(len(deadlines))]


def stale_steps(
    x: np.ndarray,
    G: Gradients,
    N: int,
    step: Step,
    worker: Sequence[int] | np.ndarray,
    staleness: np.ndarray,
    *,
    aware: bool = False,
) -> np.ndarray:
    r"""Computes $x_{t+1} = x_t - \gamma g_{n_t}(x_{D(t)})$, where each of P parts has its own D(t):
    `[T + 1, d]`.

    Args:
        x: the start, `[d]`.
        G: gradients.
        N: number of workers.
        step: from the gradient to the change of the model.
        worker: n_t, `[T]`.
        staleness: t - D(t), `[T, P]`.
        aware: whether the step of each part is divided by max(1, t - D(t)).

    Source: Liu and Zhang, (4.2); Zhang et al., "Staleness-aware async-SGD", 2016.
    """
    servers, d, found = staleness.shape[1], len(x), [x]
    for t, (n, old) in enumerate(zip(worker, staleness, strict=True)):
        read = unshard(
            np.stack([shard(found[t - age], servers)[part] for part, age in enumerate(old)]), d
        )
        change = shard(step(at_one(G, t, read, N)[n]), servers)
        found.append(
            found[t] + unshard(change / np.maximum(1, old)[:, None] if aware else change, d)
        )
    return np.stack(found)


class Exchanges(NamedTuple):
    """The events of each update.

    Args:
        worker, partner: the two workers, `[T]`.
        clock: seconds after the update, `[T]`.
        held: beginning and end of each exchange of each worker.
    """

    worker: list[int]
    partner: list[int]
    clock: list[float]
    held: list[list[tuple[float, float]]]


def gossip_schedule(
    numbers: Numbers, latency: float, partners: Sequence[Sequence[int]], updates: int, bits: float
) -> Exchanges:
    """Simulates updates: the next exchange is the one that can begin first; ties go to the gradient
    that was ready first, then to the lowest worker id.

    Args:
        partners: for each worker, its partners in its first, second, ... update.
        numbers, latency, updates, bits: as in `server_schedule`.

    Source: Lian et al., "Asynchronous decentralized parallel stochastic gradient descent", 2018.
    """
    N, queues = len(numbers.up), [list(queue) for queue in partners]
    ready, free, now = [numbers.seconds(n, 0.0) for n in range(N)], [0.0] * N, 0.0
    found = Exchanges([], [], [], [[] for _ in range(N)])
    for _ in range(updates):
        starts = [
            (max(ready[n], free[n], free[queues[n][0]]), ready[n], n) for n in range(N) if queues[n]
        ]
        start, _, i = min(starts)
        j = queues[i].pop(0)
        slowest = min(numbers.up[i], numbers.down[i], numbers.up[j], numbers.down[j])
        end = start + latency + bits / slowest
        for n in (i, j):
            found.held[n].append((start, end))
        free[i] = free[j] = end
        now = max(now, end)
        ready[i] = end + numbers.seconds(i, end)
        found.worker.append(i)
        found.partner.append(j)
        found.clock.append(now)
    return found


def pairwise_steps(
    X: np.ndarray,
    G: Gradients,
    steps: Sequence[Step],
    workers: Sequence[int],
    partners: Sequence[int],
) -> np.ndarray:
    """Averages each worker with its partner when it has a gradient, and applies the gradient, which
    was computed at the worker's model after its last step: `[T + 1, N, d]`.

    Args:
        X: the models, `[N, d]`.
        G: gradients.
        steps: each worker's step function, which may have memory.
        workers, partners: of each update.

    Source: Lian et al., 2018, algorithm 1.
    """
    X, read, found = X.copy(), X.copy(), [X.copy()]
    for t, (i, j) in enumerate(zip(workers, partners, strict=True)):
        change = steps[i](G(t, read)[i])
        X[i] = X[j] = (X[i] + X[j]) / 2
        X[i] += change
        read[i] = X[i]
        found.append(X.copy())
    return np.stack(found)
