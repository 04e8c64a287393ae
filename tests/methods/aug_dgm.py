"""Aug-DGM, with step sizes that differ: Xu, Zhu, Soh and Xie, 2015. Departure: the first trackers
are mixed, too.
"""

import numpy as np

from algorithms import aug_dgm, minibatch_sgd
from dsgd import Algorithm
from tests.methods.bits import Bits, ring_bits
from tests.methods.given import SGD, Case, Given, Rounds, Setting
from tests.methods.graphs import COMPLETE

APART = True
FACTORS = [0.5, 1.0, 1.5, 0.7, 1.2, 0.9, 0.6, 1.1]  # of the workers' steps


def recursion(given: Given) -> Rounds:
    X, y, g, step = given.X, np.zeros_like(given.X), np.zeros_like(given.X), given.step()
    factors = np.array(FACTORS)[: given.N, None]
    for t in given.rounds:
        W, here, last = given.W(t), given.present(t), g
        g = np.where(here, given.G(t, X), last)
        y = W @ (y + g - last)
        X = W @ (X + factors * step(y, here))
        exchange = given.to_neighbours(t, 2 * given.model)
        yield {"params": X, "tracker": y, "gradient": g} | exchange


def method(given: Setting) -> Algorithm:
    return aug_dgm(given.optimizer, given.graph, FACTORS[: given.N])


def bits(t: int, N: int, d: int) -> Bits:
    return ring_bits(N, d, 2)


CASES = {
    "": Case(method, recursion, "irregular", "momentum"),
    "absent": Case(method, recursion, "matchings", absent=True),
}
EQUALS = {
    "complete graph": (lambda: aug_dgm(SGD, COMPLETE), lambda: minibatch_sgd(SGD)),
}
