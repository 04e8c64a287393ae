"""QG-DSGDm: Lin, Karimireddy, Stich and Jaggi, 2021. The symbol `momentum` is gamma times the
paper's.
"""

import numpy as np

from algorithms import decentralized_sgd, quasi_global_momentum
from dsgd import Algorithm
from tests.methods.bits import Bits, ring_bits
from tests.methods.given import SGD, Case, Given, Rounds, Setting
from tests.methods.graphs import LAZY

APART, BETA, DECAY = True, 0.7, 0.6


def recursion(given: Given, mu: float = DECAY, nesterov: bool = False) -> Rounds:
    X, m, gamma = given.X, np.zeros_like(given.X), given.gamma
    for t in given.rounds:
        g, here, before = given.G(t, X), given.present(t), X
        direction = BETA * m + g
        if nesterov:
            direction = g + BETA * direction
        X = given.W(t) @ (X - gamma * here * direction)
        m = np.where(here, mu * m + (1 - mu) * (before - X) / gamma, m)
        yield {"params": X, "momentum": gamma * m} | given.to_neighbours(t, given.model)


def method(given: Setting) -> Algorithm:
    return quasi_global_momentum(given.optimizer, given.graph, BETA, DECAY)


def bits(t: int, N: int, d: int) -> Bits:
    return ring_bits(N, d)


CASES = {
    "": Case(method, recursion, "one peer"),
    "Nesterov": Case(
        lambda given: quasi_global_momentum(given.optimizer, given.graph, BETA, nesterov=True),
        lambda given: recursion(given, mu=BETA, nesterov=True),
        "star",
    ),
    "absent": Case(method, recursion, "ring", absent=True),
}
EQUALS = {
    "no momentum": (
        lambda: quasi_global_momentum(SGD, LAZY, 0.0, 0.8),
        lambda: decentralized_sgd(SGD, LAZY),
    ),
}
