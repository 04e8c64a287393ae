"""DecentLaM: Yuan et al., 2021. The symbol `momentum` is gamma times the paper's."""

import numpy as np

from algorithms import decentlam, decentralized_sgd
from dsgd import Algorithm
from tests.methods.bits import Bits, ring_bits
from tests.methods.given import SGD, Case, Given, Rounds, Setting
from tests.methods.graphs import LAZY

APART, BETA = True, 0.7


def recursion(given: Given) -> Rounds:
    X, m, gamma = given.X, np.zeros_like(given.X), given.gamma
    for t in given.rounds:
        here = given.present(t)
        g = (X - given.W(t) @ (X - gamma * here * given.G(t, X))) / gamma
        m = np.where(here, BETA * m + g, m)
        X = X - gamma * here * m
        yield {"params": X, "momentum": gamma * m} | given.to_neighbours(t, given.model)


def method(given: Setting) -> Algorithm:
    return decentlam(given.optimizer, given.graph, BETA)


def bits(t: int, N: int, d: int) -> Bits:
    return ring_bits(N, d)


CASES = {
    "": Case(method, recursion, "one peer"),
    "absent": Case(method, recursion, "ring", absent=True),
}
EQUALS = {
    "no momentum": (lambda: decentlam(SGD, LAZY, 0.0), lambda: decentralized_sgd(SGD, LAZY)),
}
