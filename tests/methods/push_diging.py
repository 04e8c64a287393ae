"""Push-DIGing: Nedic, Olshevsky and Shi, 2017. The tracker of the state is the sum that the round's
messages give.
"""

import numpy as np

from algorithms import atc_tracking, push_diging
from dsgd import Algorithm
from tests.methods.bits import FLOAT, Bits
from tests.methods.given import SGD, Case, Given, Rounds, Setting
from tests.methods.graphs import BALANCED

APART = True


def recursion(given: Given) -> Rounds:
    U, mixed, g, step = given.X, np.zeros_like(given.X), np.zeros_like(given.X), given.step()
    v = np.ones(given.N)
    for t in given.rounds:
        P, here, last = given.P(t), given.present(t), g
        g = np.where(here, given.G(t, U / v[:, None]), last)
        y = mixed + g - last
        U, v, mixed = P @ (U + step(y, here)), P @ v, P @ y
        exchange = given.to_neighbours(t, 2 * given.model + given.word)
        yield {"params": U, "weight": v, "tracker": mixed, "gradient": g} | exchange


def method(given: Setting) -> Algorithm:
    return push_diging(given.optimizer, given.graph)


def bits(t: int, N: int, d: int) -> Bits:
    """To one peer: model, tracker and weight."""
    return min(1, N - 1) * (2 * d + 1) * FLOAT


CASES = {
    "": Case(method, recursion, "directed", "momentum"),
    "schedule": Case(method, recursion, "pushes"),
    "absent": Case(method, recursion, "pushes", absent=True),
}
EQUALS = {
    "doubly stochastic W": (
        lambda: push_diging(SGD, BALANCED),
        lambda: atc_tracking(SGD, BALANCED),
    ),
}
