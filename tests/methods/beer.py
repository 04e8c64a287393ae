"""BEER: Zhao et al., 2022; with a momentum step below 1 MoTEF. Departure: the copies start at the
common x_0 and at C(V_0) instead of 0.
"""

import numpy as np

from algorithms import beer, gradient_tracking
from dsgd import compressors
from tests.methods.bits import Bits, degree, tenth
from tests.methods.compressors import HALF_OF_ALL, WHOLE_HALVES
from tests.methods.given import SGD, Case, Given, Rounds
from tests.methods.graphs import LAZY

ETA = 0.3


def recursion(given: Given, momentum: float = 1.0) -> Rounds:
    C, X, H, step = WHOLE_HALVES, given.X, given.X, given.step()
    pull = given.W(0) - np.eye(given.N)
    M = V = C_V = np.zeros_like(X)
    for t in given.rounds:
        before, share = M, momentum if t else 1.0
        M = (1 - share) * M + share * given.G(t, X)
        V = V + ETA * pull @ C_V + M - before
        C_V = C_V + C(given, V - C_V)
        H = H + C(given, X - H)
        X = X + ETA * pull @ H + step(V)
        symbols = {"params": X, "correction": V + ETA * pull @ C_V - M}
        yield symbols | given.to_neighbours(t, 2 * C.bits(given))


def bits(t: int, N: int, d: int) -> Bits:
    return degree(N) * 2 * tenth(d)


CASES = {
    "": Case(
        lambda given: beer(given.optimizer, given.graph, HALF_OF_ALL, ETA),
        recursion,
        "irregular",
        "momentum",
    )
}
EQUALS = {
    "uncompressed": (
        lambda: beer(SGD, LAZY, compressors.identity, 1.0),
        lambda: gradient_tracking(SGD, LAZY),
    ),
}
