"""LEAD: Liu et al., 2021, with a fixed step size. Departures: no step without gossip before the
first round, and H starts at the common x_0.
"""

import numpy as np

from algorithms import exact_diffusion, lead
from dsgd import compressors
from tests.methods.bits import Bits, degree, five_values
from tests.methods.compressors import HALF, HALVES, declare_unbiased
from tests.methods.given import MOMENTUM, Case, Given, Rounds
from tests.methods.graphs import LAZY

ETA, ALPHA = 0.3, 0.4


def recursion(given: Given) -> Rounds:
    W, X, gamma = given.W(0), given.X, given.gamma
    D, H, H_w = np.zeros_like(X), X, W @ X
    for t in given.rounds:
        g = given.G(t, X)
        Y = X - gamma * g - gamma * D
        Q = HALVES(given, Y - H)
        Y_hat, Y_hat_w = H + Q, H_w + W @ Q
        H, H_w = (1 - ALPHA) * H + ALPHA * Y_hat, (1 - ALPHA) * H_w + ALPHA * Y_hat_w
        D = D + ETA / (2 * gamma) * (Y_hat - Y_hat_w)
        X = X - gamma * g - gamma * D
        symbols = {"params": X, "correction": -gamma * D}
        yield symbols | given.to_neighbours(t, HALVES.bits(given))


def bits(t: int, N: int, d: int) -> Bits:
    return degree(N) * five_values(d)


CASES = {
    "": Case(
        lambda given: lead(
            given.optimizer, given.graph, declare_unbiased(HALF), ETA, memory_step=ALPHA
        ),
        recursion,
        "irregular",
    )
}
EQUALS = {
    "uncompressed": (
        lambda: lead(MOMENTUM, LAZY, compressors.identity, 1.0, 0.5),
        lambda: exact_diffusion(MOMENTUM, LAZY),
    ),
}
