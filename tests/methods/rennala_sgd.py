"""Rennala: Tyurin and Richtárik, 2023, method 4."""

import numpy as np

from algorithms import rennala_sgd, ringmaster_sgd
from tests.methods.given import SGD, Given
from tests.methods.server_events import Rule, bits, server_case

__all__ = ["bits"]
BATCH = 3


def rule(given: Given) -> Rule:
    step, collected = given.step(), list[np.ndarray]()

    def arrive(now):
        if now.delay > 0:
            return None
        collected.append(now.g)
        if len(collected) < BATCH:
            return None
        change = step(np.mean(collected, axis=0))
        collected.clear()
        return change

    return arrive


CASES = {
    "": server_case(lambda given: rennala_sgd(given.optimizer, BATCH), rule, optimizer="momentum")
}
EQUALS = {
    "one gradient of each model": (lambda: rennala_sgd(SGD, 1), lambda: ringmaster_sgd(SGD, 1))
}
