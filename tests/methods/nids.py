"""NIDS: Li, Shi and Yan, 2019, with a step size of each worker."""

import numpy as np

from algorithms import nids
from dsgd import problems
from tests.methods.bits import Bits, ring_bits
from tests.methods.given import Case, Given, Rounds
from tests.methods.steps import PENALTY, soft_threshold

APART, N = True, 6
COUPLING = 1.3  # 1 / (2 gamma) or less, for step sizes up to 0.3


def recursion(given: Given) -> Rounds:
    X, gamma, eye = given.X, given.more, np.eye(given.N)
    mixing = eye - COUPLING * np.diag(gamma) @ (eye - given.W(0))
    Z, before, last, steps = X, X, 0.0, gamma[:, None]
    for t in given.rounds:
        g = given.G(t, X)
        adapted = 2 * X - before + steps * last - steps * g
        Z = Z - X + (mixing @ adapted if t else adapted)
        before, X, last = X, soft_threshold(Z, steps), g
        yield {"params": X} | (given.to_neighbours(t, given.model) if t else given.nothing())


def bits(t: int, N: int, d: int) -> Bits:
    return ring_bits(N, d) if t else 0


CASES = {
    "": Case(
        lambda given: nids(given.more, given.graph, COUPLING),
        recursion,
        "star",
        more=lambda draws: np.array([draws.real(0.05, 0.3) for _ in range(N)]),
        regularizer=problems.l1(PENALTY),
    )
}
