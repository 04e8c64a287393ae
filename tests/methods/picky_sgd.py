"""Picky SGD: Cohen et al., 2021."""

import numpy as np

from algorithms import asynchronous_sgd, picky_sgd
from tests.methods.given import SGD, Given
from tests.methods.server_events import Rule, bits, server_case

__all__ = ["bits"]
DISTANCE = 2.0


def rule(given: Given) -> Rule:
    step = given.step()
    return lambda now: step(now.g) if np.linalg.norm(now.x - now.read) <= DISTANCE else None


CASES = {
    "": server_case(lambda given: picky_sgd(given.optimizer, DISTANCE), rule, optimizer="momentum")
}
EQUALS = {
    "no gradient is ignored": (lambda: picky_sgd(SGD, 10.0**6), lambda: asynchronous_sgd(SGD))
}
