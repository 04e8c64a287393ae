"""EXTRA, with W~ = (I + W) / 2: Shi, Ling, Wu and Yin, 2015, (2.13)."""

import numpy as np

from algorithms import extra
from tests.methods.bits import Bits, ring_bits
from tests.methods.given import Case, Given, Rounds

APART = True


def recursion(given: Given) -> Rounds:
    W, X, step, eye = given.W(0), given.X, given.step(), np.eye(given.N)
    before, change, last = X, 0.0, 0.0
    for t in given.rounds:
        last, change = change, step(given.G(t, X))
        after = (eye + W) @ X - (eye + W) / 2 @ before if t else W @ X
        before, X = X, after + change - last
        yield {"params": X} | given.to_neighbours(t, given.model)


def bits(t: int, N: int, d: int) -> Bits:
    return ring_bits(N, d)


CASES = {
    "": Case(lambda given: extra(given.optimizer, given.graph), recursion, "irregular", "momentum")
}
