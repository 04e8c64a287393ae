"""LED: Alghunaim, "Local exact-diffusion for decentralized optimization and learning", 2024. The
symbol `correction` is -y.
"""

import numpy as np

from algorithms import d2, local_exact_diffusion
from tests.methods.bits import Bits, period_end, ring_bits
from tests.methods.given import SGD, Case, Given, Rounds
from tests.methods.graphs import LAZY

APART, TAU, BETA = True, 3, 0.3


def recursion(given: Given, tau: int = TAU, beta: float = BETA) -> Rounds:
    phi, y = given.X, np.zeros_like(given.X)
    for t in given.rounds:
        phi, exchange = phi - given.gamma * given.G(t, phi) - beta * y, given.nothing()
        if (t + 1) % tau == 0:
            x, exchange = given.W(0) @ phi, given.to_neighbours(t, given.model)
            y, phi = y + phi - x, x
        yield {"params": phi, "correction": -y} | exchange


def bits(t: int, N: int, d: int) -> Bits:
    return period_end(t, ring_bits(N, d))


CASES = {
    "": Case(
        lambda given: local_exact_diffusion(given.optimizer, given.graph, TAU, BETA),
        recursion,
        "lazy",
    )
}
EQUALS = {
    "one step": (lambda: local_exact_diffusion(SGD, LAZY, 1, 1.0), lambda: d2(SGD, LAZY)),
}
