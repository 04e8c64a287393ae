"""DC-ASGD: Zheng et al., 2017."""

import numpy as np

from algorithms import asynchronous_sgd, dc_asgd
from tests.methods.given import SGD, Given
from tests.methods.server_events import Rule, bits, server_case

__all__ = ["bits"]
WEIGHT, DECAY = 0.03, 0.9


def rule(given: Given, decay: float | None = None) -> Rule:
    step, v = given.step(), np.zeros(given.d)

    def arrive(now):
        nonlocal v
        weight = WEIGHT
        if decay is not None:
            v = decay * v + (1 - decay) * now.g**2
            weight = WEIGHT / np.sqrt(v + 1e-7)
        return step(now.g + weight * now.g**2 * (now.x - now.read))

    return arrive


CASES = {
    "": server_case(lambda given: dc_asgd(given.optimizer, WEIGHT), rule),
    "adaptive": server_case(
        lambda given: dc_asgd(given.optimizer, WEIGHT, DECAY), lambda given: rule(given, DECAY)
    ),
}
EQUALS = {"no compensation": (lambda: dc_asgd(SGD, 0.0), lambda: asynchronous_sgd(SGD))}
