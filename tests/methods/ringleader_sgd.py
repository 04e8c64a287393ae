"""Ringleader: Maranjyan and Richtárik, 2025, algorithm 1."""

import numpy as np

from algorithms import ringleader_sgd
from tests.methods.given import Given
from tests.methods.server_events import Rule, bits, server_case

__all__ = ["bits"]
CONTRACT_ROUNDS = 30  # the first step waits for all workers


def rule(given: Given) -> Rule:
    """Lists of gradients in place of sums and numbers; no delay is more than 2 N - 2."""
    N, step = given.N, given.step()
    table, following = ([list[np.ndarray]() for _ in range(N)] for _ in range(2))
    left = set[int]()  # workers that make a step in the second part

    def arrive(now):
        nonlocal table, following
        n = now.worker
        assert now.delay <= 2 * N - 2
        if left and n not in left:
            following[n].append(now.g)
            return None
        table[n].append(now.g)
        if not all(table):
            return None
        left.update(range(N) if not left else ())
        left.remove(n)
        change = step(np.mean([np.mean(each, axis=0) for each in table], axis=0))
        if not left:
            table, following = following, [[] for _ in range(N)]
        return change

    return arrive


CASES = {"": server_case(lambda given: ringleader_sgd(given.optimizer), rule, "momentum")}
