"""Gradient tracking: Nedic, Olshevsky and Shi, 2017, DIGing. Departure for schedules: trackers are
mixed by the round's matrix, as the models are.
"""

import numpy as np

from algorithms import gradient_tracking
from dsgd import Algorithm
from tests.methods.bits import Bits, ring_bits
from tests.methods.given import Case, Given, Rounds, Setting

APART = True


def recursion(given: Given) -> Rounds:
    X, y, g, step = given.X, np.zeros_like(given.X), np.zeros_like(given.X), given.step()
    for t in given.rounds:
        W, here, last = given.W(t), given.present(t), g
        g = np.where(here, given.G(t, X), last)
        y = W @ y + g - last
        X = W @ X + step(y, here)
        exchange = given.to_neighbours(t, 2 * given.model)
        yield {"params": X, "tracker": y, "gradient": g} | exchange


def method(given: Setting) -> Algorithm:
    return gradient_tracking(given.optimizer, given.graph)


def bits(t: int, N: int, d: int) -> Bits:
    return ring_bits(N, d, 2)


CASES = {
    "": Case(method, recursion, "exponential"),
    "schedule": Case(method, recursion, "one peer", "momentum"),
    "absent": Case(method, recursion, "matchings", absent=True),
}
