"""Gradient tracking that adapts, then combines: Di Lorenzo and Scutari, 2016, NEXT with linear
surrogates. The tracker of the state is the average that the round's messages give.
"""

import numpy as np

from algorithms import atc_tracking, minibatch_sgd
from dsgd import Algorithm
from tests.methods.bits import Bits, ring_bits
from tests.methods.given import SGD, Case, Given, Rounds, Setting
from tests.methods.graphs import COMPLETE

APART = True


def recursion(given: Given) -> Rounds:
    X, mixed, g, step = given.X, np.zeros_like(given.X), np.zeros_like(given.X), given.step()
    for t in given.rounds:
        W, here, last = given.W(t), given.present(t), g
        g = np.where(here, given.G(t, X), last)
        y = mixed + g - last
        X, mixed = W @ (X + step(y, here)), W @ y
        exchange = given.to_neighbours(t, 2 * given.model)
        yield {"params": X, "tracker": mixed, "gradient": g} | exchange


def method(given: Setting) -> Algorithm:
    return atc_tracking(given.optimizer, given.graph)


def bits(t: int, N: int, d: int) -> Bits:
    return ring_bits(N, d, 2)


CASES = {
    "": Case(method, recursion, "one peer", "momentum"),
    "absent": Case(method, recursion, "matchings", "momentum", absent=True),
}
EQUALS = {
    "complete graph": (lambda: atc_tracking(SGD, COMPLETE), lambda: minibatch_sgd(SGD)),
}
