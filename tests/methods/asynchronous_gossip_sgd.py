"""AD-PSGD: Lian et al., 2018, algorithm 1, with the partners that the method draws."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from algorithms import asynchronous_gossip_sgd
from dsgd import Algorithm
from tests.methods import events
from tests.methods.asynchronous_sgd import LATENCY, LENGTH, SYMBOLS
from tests.methods.bits import FLOAT, Bits, bits_of_some
from tests.methods.events import Numbers
from tests.methods.given import Case, Given, Rounds, Setting, Symbols
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
    numbers: Numbers,
    latency: float,
    partners: Sequence[Sequence[int]],
    updates: int,
    bits: float,
    pulls: bool = False,
) -> Exchanges:
    """Simulates updates: the next exchange is the one that can begin first; ties go to the gradient
    that was ready first, then to the lowest worker id.

    Args:
        partners: for each worker, its partners in its first, second, ... update; -1: nobody.
        numbers, latency, updates, bits: as in `events.server_schedule`.
        pulls: whether only the partner sends.

    Source: Lian et al., "Asynchronous decentralized parallel stochastic gradient descent", 2018.
    """
    N, queues = len(numbers.up), [list(queue) for queue in partners]
    ready, free, now = [numbers.seconds(n, 0.0) for n in range(N)], [0.0] * N, 0.0
    found = Exchanges([], [], [], [[] for _ in range(N)])
    for _ in range(updates):
        starts = [
            (
                max([ready[n], *(free[m] for m in (n, queues[n][0]) if queues[n][0] >= 0)]),
                ready[n],
                n,
            )
            for n in range(N)
            if queues[n]
        ]
        start, _, i = min(starts)
        j = queues[i].pop(0)
        end = start
        if j >= 0:
            ways = [(j, i)] if pulls else [(i, j), (j, i)]
            slowest = min(min(numbers.up[n], numbers.down[m]) for n, m in ways)
            end = free[i] = free[j] = start + latency + bits / slowest
            for n in (i, j):
                found.held[n].append((start, end))
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
        found_.append(others[0] if len(others) == 1 else -1)
    return np.array(found_)


# (gradient of worker i [d], i, j) -> models [N, d] and other symbols; j is -1 if i meets nobody
Meeting = Callable[[np.ndarray, int, int], Symbols]


def pairs_case(
    make: Callable[[Setting], Algorithm],
    meeting: Callable[[Given], Meeting],
    *,
    pulls: bool = False,
    **options: Any,
) -> Case:
    """Returns the case of workers that meet after their gradients, each of which is computed at the
    worker's model after its last update.
    """

    def rounds(given: Given) -> Rounds:
        worker, partner = given.found.metrics["worker"], partners(given.found)
        queues = [partner[worker == n].tolist() for n in range(given.N)]
        found = gossip_schedule(given.more, LATENCY, queues, given.length, given.model, pulls)
        meet, read, last = meeting(given), given.X.copy(), np.zeros(given.N, int)
        for t, (i, j) in enumerate(zip(found.worker, found.partner, strict=True)):
            symbols = meet(given.G(t, read)[i], i, j)
            read[i] = symbols["params"][i]
            both = np.isin(np.arange(given.N), [i, j]) & (j >= 0)
            up, down = [np.arange(given.N) == n for n in (j, i)] if pulls else [both, both]
            yield symbols | {
                "worker": i,
                "asked": i,
                "clock": found.clock[t],
                "staleness": t - last[i],
                "bits up": given.model * up,
                "bits down": given.model * down,
            }
            last[i] = t + 1

    return Case(
        make,
        rounds,
        "irregular",
        "momentum",
        more=events.cluster,
        place=partial(events.place, latency=LATENCY),
        **{"length": LENGTH, "symbols": SYMBOLS} | options,
    )


def average(given: Given, pulls: bool = False) -> Meeting:
    """Averages the worker with its partner, and applies the gradient."""
    X, steps = given.X.copy(), [given.step() for _ in range(given.N)]

    def meet(g, i, j):
        middle = (X[i] + X[j]) / 2
        X[i] = middle + steps[i](g)
        if not pulls:
            X[j] = middle
        return {"params": X.copy()}

    return meet


def bits(t: int, N: int, d: int) -> Bits:
    return None if t else bits_of_some(2, min(1, N - 1) * d * FLOAT, N)


CASES = {
    "": pairs_case(lambda given: asynchronous_gossip_sgd(given.optimizer, given.graph), average)
}
