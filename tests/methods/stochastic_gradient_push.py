"""Stochastic gradient push: Assran et al., 2019, algorithm 1."""

import numpy as np

from algorithms import stochastic_gradient_push
from dsgd import Algorithm
from tests.methods.bits import FLOAT, Bits
from tests.methods.given import Case, Given, Rounds, Setting

APART = True


def recursion(given: Given) -> Rounds:
    X, w, step = given.X, np.ones(given.N), given.step()
    for t in given.rounds:
        P = given.P(t)
        X = P @ (X + step(given.G(t, X / w[:, None]), given.present(t)))
        w = P @ w
        yield {"params": X, "weight": w} | given.to_neighbours(t, given.model + given.word)


def method(given: Setting) -> Algorithm:
    return stochastic_gradient_push(given.optimizer, given.graph)


def bits(t: int, N: int, d: int) -> Bits:
    """To one peer, with the weight."""
    return min(1, N - 1) * (d + 1) * FLOAT


CASES = {
    "": Case(method, recursion, "directed", "momentum"),
    "schedule": Case(method, recursion, "one peer"),
    "absent": Case(method, recursion, "one peer", "momentum", absent=True),
}
