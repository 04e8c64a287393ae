"""Malenia: Tyurin and Richtárik, 2023, method 6."""

import numpy as np

from algorithms import malenia_sgd
from tests.methods.given import Given
from tests.methods.server_events import Rule, bits, server_case

__all__ = ["bits"]
# The server waits for all workers.
CONTRACT_ROUNDS, EXACT_RATE = 60, 0.2


def rule(given: Given, S: float) -> Rule:
    step, collected = given.step(), [list[np.ndarray]() for _ in range(given.N)]

    def arrive(now):
        if now.delay > 0:
            return None
        collected[now.worker].append(now.g)
        if not all(collected):
            return None
        B = np.array(list(map(len, collected)))
        if 1 / np.mean(1 / B) < S / given.N:
            return None
        change = step(np.mean([np.mean(each, axis=0) for each in collected], axis=0))
        for each in collected:
            each.clear()
        return change

    return arrive


CASES = {
    title: server_case(
        lambda given, S=S: malenia_sgd(given.optimizer, S),
        lambda given, S=S: rule(given, S),
        optimizer="momentum",
    )
    for title, S in (("", 9.5), ("one gradient of each worker", 0.5))
}
