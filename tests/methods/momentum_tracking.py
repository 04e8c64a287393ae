"""MT-DSGDm: Takezawa et al., 2023. Departures: momenta and corrections start at 0. The corrections
of a round are mixed in the next, together with its models.
"""

import numpy as np

from algorithms import gradient_tracking, momentum_tracking
from dsgd import Algorithm
from tests.methods.bits import Bits, ring_bits
from tests.methods.given import MOMENTUM, SGD, Case, Given, Rounds, Setting
from tests.methods.graphs import LAZY

APART, BETA = True, 0.7


def recursion(given: Given) -> Rounds:
    X, u, c, step = given.X, np.zeros_like(given.X), np.zeros_like(given.X), given.step()
    for t in given.rounds:
        W, here, last = given.W(t), given.present(t), u
        u = np.where(here, BETA * u + given.G(t, X), u)
        c = W @ (c - last) + last  # of the paper's previous round: C = (C - U) W + U
        X = W @ X + step(u - c, here)
        exchange = given.to_neighbours(t, 2 * given.model)
        yield {"params": X, "tracker": u - c, "gradient": u} | exchange


def method(given: Setting) -> Algorithm:
    return momentum_tracking(given.optimizer, given.graph, BETA)


def bits(t: int, N: int, d: int) -> Bits:
    return ring_bits(N, d, 2)


CASES = {
    "": Case(method, recursion, "one peer"),
    "absent": Case(method, recursion, "matchings", absent=True),
}
EQUALS = {
    "momentum of the optimizer": (
        lambda: momentum_tracking(SGD, LAZY, 0.5),
        lambda: gradient_tracking(MOMENTUM, LAZY),
    ),
}
