"""Fragile SGD: Tyurin and Richtárik, 2024, as a heap of gradients that arrive at the pivot."""

import heapq
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import topologies
from algorithms import fragile_sgd, rennala_sgd
from dsgd import Algorithm
from tests.methods import events
from tests.methods.asynchronous_sgd import LATENCY
from tests.methods.given import MOMENTUM, Case, Given, Rounds, Setting
from tests.methods.rennala_sgd import BATCH, rule
from tests.methods.server_events import Arrival, Rule


def shortest_paths(links: np.ndarray, pivot: int) -> tuple[list[float], list[int | None]]:
    """Returns the seconds of each worker's shortest path to the pivot, and its next worker.

    Args:
        links: seconds of the links, `[sender, receiver]`; infinite for those that do not exist.
        pivot: the end of all paths.
    """
    N, heap = len(links), [(0.0, 0, pivot)]
    found: dict[int, tuple[float, int]] = {}
    while heap:
        seconds, hops, n = heapq.heappop(heap)
        if n not in found:
            found[n] = seconds, hops
            for m in np.flatnonzero(np.isfinite(links[:, n])):
                heapq.heappush(heap, (seconds + links[m, n], hops + 1, int(m)))
    following: list[int | None] = [None] * N
    for n in set(range(N)) - {pivot}:
        ways = (m for m in range(N) if np.isfinite(links[n, m]))
        following[n] = next(
            m for m in ways if (found[m][0] + links[n, m], found[m][1] + 1) == found[n]
        )
    return [found[n][0] for n in range(N)], following


def pivot_case(
    make: Callable[[Setting], Algorithm],
    rule: Callable[[Given], Rule],
    graph: str,
    pivot: int,
    length: int = 90,
) -> Case:
    """Returns the case of a pivot, from the rule of a server."""

    def rounds(given: Given) -> Rounds:
        numbers, N = given.more, given.N
        slowest = np.minimum(numbers.up[:, None], numbers.down[None])
        links = np.where(given.adjacency().T, LATENCY + given.model / slowest, np.inf)
        (up, following), (down, parent) = (shortest_paths(each, pivot) for each in (links, links.T))
        arrive, x, steps = rule(given), [given.x], [-np.inf]
        begin = [(numbers.seconds(n, 0.0), 0) for n in range(N)]  # (ready, number of the model)
        heap = [(ready + up[n], n) for n, (ready, _) in enumerate(begin)]
        heapq.heapify(heap)
        for t in given.rounds:
            now, n = heapq.heappop(heap)
            ready, read = begin[n]
            sent, received = np.zeros(N), np.zeros(N)
            at = n
            while (to := following[at]) is not None:
                sent[at] += given.model
                received[to] += given.model
                at = to
            g, delay = given.gradients_at(t, x[read])[n], len(x) - 1 - read
            change = arrive(Arrival(t, g, n, n, delay, delay, x[-1], x[read], now))
            counted = read == len(x) - 1
            if change is not None:
                x.append(x[-1] + change)
                steps.append(now)
                for m in set(range(N)) - {pivot}:
                    sent[parent[m]] += given.model
                    received[m] += given.model
            read = max(k for k, when in enumerate(steps) if when + down[n] <= ready)
            ready += numbers.seconds(n, ready)
            begin[n] = ready, read
            heapq.heappush(heap, (ready + up[n], n))
            symbols = {"x": x[-1], "steps": len(x) - 1, "counted": counted, "clock": now}
            yield symbols | {"worker": n, "asked": n, "bits up": sent, "bits down": received}

    return Case(
        make,
        rounds,
        graph,
        "momentum",
        symbols={
            "x": "server.model.params",
            "steps": "metrics.server_steps",
            "counted": "metrics.counted",
            "worker": "metrics.worker",
            "asked": events.asked_worker,
            "clock": lambda found: found.clock,
        },
        more=events.cluster,
        place=partial(events.place, latency=LATENCY),
        length=length,
    )


def bits(t: int, N: int, d: int) -> None:
    """They depend on the worker's path; the cases compare them."""


def without_network(
    method: Callable[..., Algorithm], server: Callable[..., Algorithm], batch: float
) -> tuple[Callable[[], Algorithm], Callable[[], Algorithm]]:
    """Returns a method with a pivot and the same with a server, which are equal if messages take no
    time.
    """
    graph = topologies.ring(6)
    return (lambda: method(MOMENTUM, graph, batch, 4)), (lambda: server(MOMENTUM, batch))


CASES: dict[str, Any] = {
    # the centre is the worker with the fewest links to the farthest one
    "": pivot_case(lambda given: fragile_sgd(given.optimizer, given.graph, BATCH), rule, "tree", 2),
    "directed": pivot_case(
        lambda given: fragile_sgd(given.optimizer, given.graph, BATCH, pivot=4),
        rule,
        "directed",
        4,
    ),
}
EQUALS = {"messages that take no time": without_network(fragile_sgd, rennala_sgd, BATCH)}
