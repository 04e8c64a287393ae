"""AD-PSGD: Lian et al., 2018, algorithm 1, with the partners that the method draws."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from algorithms import asynchronous_gossip_sgd
from tests.methods import events
from tests.methods.asynchronous_sgd import LATENCY, LENGTH, SYMBOLS
from tests.methods.bits import FLOAT, Bits, bits_of_some
from tests.methods.events import Numbers
from tests.methods.given import Case, Given, Rounds
from theory_checks.machinery.trajectories import Trajectory


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
        numbers, latency, updates, bits: as in `events.server_schedule`.

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


def partners(found: Trajectory) -> np.ndarray:
    """Returns the partner of each update, the other worker that sends, `[T]`; -1 if there is not
    exactly one.
    """
    found_ = []
    for worker, sent in zip(found.metrics["worker"], found.sent, strict=True):
        others = [n for n in np.flatnonzero(sent) if n != worker]
        found_.append(others[0] if len(others) == 1 and sent[worker] else -1)
    return np.array(found_)


def recursion(given: Given) -> Rounds:
    """Averages each worker with its partner when it has a gradient, and applies the gradient, which
    was computed at the worker's model after its last step.
    """
    worker, partner = given.found.metrics["worker"], partners(given.found)
    queues = [partner[worker == n].tolist() for n in range(given.N)]
    found = gossip_schedule(given.more, LATENCY, queues, given.length, given.model)
    X, read, steps = given.X.copy(), given.X.copy(), [given.step() for _ in range(given.N)]
    last = np.zeros(given.N, int)
    for t, (i, j) in enumerate(zip(found.worker, found.partner, strict=True)):
        change = steps[i](given.G(t, read)[i])
        X[i] = X[j] = (X[i] + X[j]) / 2
        X[i] += change
        read[i] = X[i]
        sent = np.where(np.isin(np.arange(given.N), [i, j]), given.model, 0)
        symbols = {"params": X.copy(), "worker": i, "asked": i, "clock": found.clock[t]}
        yield symbols | {"staleness": t - last[i], "bits up": sent, "bits down": sent}
        last[i] = t + 1


def bits(t: int, N: int, d: int) -> Bits:
    return None if t else bits_of_some(2, min(1, N - 1) * d * FLOAT, N)


CASES = {
    "": Case(
        lambda given: asynchronous_gossip_sgd(given.optimizer, given.graph),
        recursion,
        "irregular",
        "momentum",
        symbols=SYMBOLS,
        more=events.cluster,
        place=partial(events.place, latency=LATENCY),
        length=LENGTH,
    )
}
