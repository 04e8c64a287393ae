"""R-FAST: Zhu et al., 2023, algorithm 1, as a heap of gradients and of messages on links."""

import heapq
from functools import partial
from typing import Any

import numpy as np

from algorithms import r_fast
from tests.methods import events
from tests.methods.asynchronous_sgd import LATENCY
from tests.methods.bits import FLOAT, Bits
from tests.methods.given import Case, Given, Rounds
from theory_checks.machinery.trajectories import Trajectory, rows

EXACT_RATE = 0.1


def recursion(given: Given) -> Rounds:
    """Messages that arrive when a gradient is computed arrive before it."""
    numbers, N = given.more, given.N
    R, P = given.W(0, graph=0), given.P(0, graph=1)
    x, steps = given.X.copy(), [given.step() for _ in range(N)]
    z, last = np.zeros_like(x), np.zeros_like(x)
    # of links (receiver, sender), as the indices of R and P
    links = [(i, j) for i in range(N) for j in range(N) if i != j and (R[i, j] or P[i, j])]
    rho, taken = ({link: np.zeros(given.d) for link in links} for _ in range(2))
    known = {link: (x[link[1]].copy(), np.zeros(given.d)) for link in links}
    began, busy = np.zeros(N), set()
    # (seconds, 0, link, message) or (seconds, 1, worker, None)
    heap: list[Any] = [(numbers.seconds(n, 0.0), 1, n, None) for n in range(N)]
    heapq.heapify(heap)
    for t in given.rounds:
        while (event := heapq.heappop(heap))[1] == 0:
            _, _, link, message = event
            busy.remove(link)
            known[link] = message
        now, _, i, _ = event
        g = given.G(t, x)[i]
        u = z[i] + g - last[i]
        for link in links:
            if link[0] == i:
                u = u + known[link][1] - taken[link]
                taken[link] = known[link][1]
        z[i], last[i] = P[i, i] * u, g
        v = x[i] + steps[i](z[i])
        up, down = np.zeros(N), np.zeros(N)
        for link in links:
            j, sender = link
            if sender != i:
                continue
            rho[link] = rho[link] + P[link] * u
            if link not in busy:
                busy.add(link)
                size = given.model * sum(bool(W[link]) for W in (R, P))
                seconds = LATENCY + size / min(numbers.up[i], numbers.down[j])
                heapq.heappush(heap, (now + seconds, 0, link, (v, rho[link])))
                up[i] += size
                down[j] += size
        x[i] = R[i, i] * v + sum(R[link] * known[link][0] for link in links if link[0] == i)
        heapq.heappush(heap, (now + numbers.seconds(i, now), 1, i, None))
        yield {
            "params": x.copy(),
            "tracker": z.copy(),
            "mass": last.sum(axis=0),
            "worker": i,
            "asked": i,
            "began": began[i],
            "ended": now,
            "clock": now,
            "bits up": up,
            "bits down": down,
        }
        began[i] = now


def mass(found: Trajectory) -> np.ndarray:
    """Returns the sum of the trackers and of the shares that are not yet added, `[T, d]`."""
    links = found.states.server
    waiting = rows(links.total) - rows(links.taken)
    return rows(found.states.workers.tracker).sum(axis=1) + waiting.sum(axis=1)


def bits(t: int, N: int, d: int) -> Bits:
    """Worker 0 is first, and sends model and share to the workers that are a power of 2 further."""
    if t:
        return None
    to = (N - 1).bit_length()
    up, down = np.zeros(N), np.zeros(N)
    up[-1], down[N - to :] = to, 1
    return 2 * d * FLOAT * up, 2 * d * FLOAT * down


CASES = {
    title: Case(
        lambda given: r_fast(given.optimizer, *given.graphs),
        recursion,
        graphs,
        "momentum",
        symbols={
            "mass": mass,
            "worker": "metrics.worker",
            "began": "metrics.began",
            "ended": "metrics.ended",
            "asked": events.asked_worker,
            "clock": lambda found: found.clock,
        },
        more=events.cluster,
        place=partial(events.place, latency=LATENCY),
        length=90,
    )
    for title, graphs in (
        ("", ("directed, pull", "directed")),
        ("tree", ("tree, pull", "tree, push")),
    )
}
