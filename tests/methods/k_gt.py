r"""K-GT: Liu et al., "Decentralized gradient tracking with local steps", 2024. The symbol
`correction` is $-K \gamma c$.
"""

import numpy as np

from algorithms import atc_tracking, k_gt, scaffold
from dsgd import Algorithm
from tests.methods.bits import Bits, period_end, ring_bits
from tests.methods.given import SGD, Case, Given, Rounds, Setting
from tests.methods.graphs import COMPLETE, IRREGULAR

APART, K, ETA = True, 3, 0.3


def recursion(given: Given) -> Rounds:
    x, y, c, gamma = given.X, given.X, np.zeros_like(given.X), given.gamma
    for t in given.rounds:
        here, exchange = given.present(t), given.nothing()
        y = y - gamma * here * (given.G(t, y) + c)
        if (t + 1) % K == 0:
            W, exchange = given.W(t, t // K), given.to_neighbours(t, 2 * given.model, t // K)
            z = (x - y) / (K * gamma)
            c = c - z + W @ z
            x = np.where(here, W @ (x - K * gamma * ETA * z), x)
            y = np.where(here, x, y)
        yield {"params": y, "start": x, "correction": -K * gamma * c} | exchange


def method(given: Setting) -> Algorithm:
    return k_gt(given.optimizer, given.graph, K, ETA)


def bits(t: int, N: int, d: int) -> Bits:
    return period_end(t, ring_bits(N, d, 2))


CASES = {
    "": Case(method, recursion, "one peer"),
    "absent": Case(method, recursion, "matchings", absent=True),
}
EQUALS = {
    "one step": (lambda: k_gt(SGD, IRREGULAR, 1, 1.0), lambda: atc_tracking(SGD, IRREGULAR)),
    "complete graph": (lambda: k_gt(SGD, COMPLETE, 4, 1.0), lambda: scaffold(SGD, 4)),
}
