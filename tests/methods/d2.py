"""D2: Tang et al., "D2: decentralized training over decentralized data", 2018, algorithm 1; and the
recursion of exact diffusion.
"""

import numpy as np

from algorithms import d2, exact_diffusion
from tests.methods.bits import Bits, ring_bits
from tests.methods.given import SGD, Case, Given, Rounds
from tests.methods.graphs import IRREGULAR, LAZY

APART = True


def recursion(given: Given, share: float = 1.0) -> Rounds:
    """Yields the rounds that combine by I + share (W - I)."""
    W = (1 - share) * np.eye(given.N) + share * given.W(0)
    X, before, step, change = given.X, given.X, given.step(), 0.0
    for t in given.rounds:
        last, change = change, step(given.G(t, X))
        before, X = X, W @ (2 * X - before + change - last)
        yield {"params": X} | given.to_neighbours(t, given.model)


def bits(t: int, N: int, d: int) -> Bits:
    return ring_bits(N, d)


CASES = {"": Case(lambda given: d2(given.optimizer, given.graph), recursion, "lazy", "momentum")}
EQUALS = {
    "lazy weights": (lambda: d2(SGD, LAZY), lambda: exact_diffusion(SGD, IRREGULAR)),
}
