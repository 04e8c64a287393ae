"""Push-Pull: Pu, Shi, Xu and Nedic, 2021; and the recursion of AB. The tracker of the state is the
sum that the round's messages give.
"""

import numpy as np

from algorithms import atc_tracking, push_pull
from dsgd import Algorithm
from tests.methods.bits import FLOAT, Bits
from tests.methods.given import SGD, Case, Given, Rounds, Setting, add
from tests.methods.graphs import BALANCED

APART = True


def recursion(given: Given, adapt_first: bool = True) -> Rounds:
    X, mixed, g, step = given.X, np.zeros_like(given.X), np.zeros_like(given.X), given.step()
    for t in given.rounds:
        R, P, here, last = given.W(t, graph=0), given.P(t, graph=1), given.present(t), g
        g = np.where(here, given.G(t, X), last)
        y = mixed + g - last
        change = step(y, here)
        X, mixed = R @ (X + change) if adapt_first else R @ X + change, P @ y
        exchange = add(*(given.to_neighbours(t, given.model, graph=graph) for graph in (0, 1)))
        yield {"params": X, "tracker": mixed, "gradient": g} | exchange


def method(given: Setting) -> Algorithm:
    return push_pull(given.optimizer, *given.graphs)


def bits(t: int, N: int, d: int) -> Bits:
    """Model and tracker, to the workers that are a power of 2 further."""
    return (N - 1).bit_length() * 2 * d * FLOAT


CASES = {
    "": Case(method, recursion, ("directed, pull", "directed"), "momentum"),
    "schedule": Case(method, recursion, ("pushes, pull", "pushes")),
    "tree": Case(method, recursion, ("tree, pull", "tree, push")),
    "absent": Case(method, recursion, ("pushes, pull", "pushes"), absent=True),
}
EQUALS = {
    "doubly stochastic W": (
        lambda: push_pull(SGD, BALANCED, BALANCED),
        lambda: atc_tracking(SGD, BALANCED),
    ),
}
