"""PG-EXTRA: Shi, Ling, Wu and Yin, "A proximal gradient algorithm for decentralized composite
optimization", 2015.
"""

import numpy as np

from algorithms import extra, pg_extra
from dsgd import problems
from tests.methods.bits import Bits, ring_bits
from tests.methods.given import GAMMA, SGD, Case, Given, Rounds
from tests.methods.graphs import LAZY
from tests.methods.steps import PENALTY, soft_threshold

APART = True


def recursion(given: Given) -> Rounds:
    W, X, gamma, eye = given.W(0), given.X, given.gamma, np.eye(given.N)
    before = last = half = 0.0 * X
    for t in given.rounds:
        g = given.G(t, X)
        half = W @ X + half - (eye + W) / 2 @ before - gamma * (g - last)
        before, X, last = X, soft_threshold(half, gamma), g
        yield {"params": X} | given.to_neighbours(t, given.model)


def bits(t: int, N: int, d: int) -> Bits:
    return ring_bits(N, d)


CASES = {
    "": Case(
        lambda given: pg_extra(given.gamma, given.graph),
        recursion,
        "irregular",
        regularizer=problems.l1(PENALTY),
    )
}
EQUALS = {
    "no regularizer": (lambda: pg_extra(GAMMA, LAZY), lambda: extra(SGD, LAZY)),
}
