"""GT-SARAH: Xin, Khan and Kar, 2022. Trackers are mixed by the matrix of the round, as models."""

import numpy as np

from algorithms import gt_sarah
from tests.methods import gt_svrg
from tests.methods.bits import Bits
from tests.methods.given import Case, Given, Rounds

CANCELS = True  # differences of two gradients of a draw have no noise on quadratics

APART, PERIOD = True, 3


def recursion(given: Given) -> Rounds:
    X, before, step = given.X, given.X, given.step()
    Y = V = np.zeros_like(X)
    for t in given.rounds:
        last, W = V, given.W(t)
        changed = V + given.G(t, X) - given.G(t, before)
        V = changed if t % PERIOD else given.exact(t, X)
        Y = W @ Y + V - last
        before, X = X, W @ X + step(Y)
        exact = np.full(given.N, t % PERIOD == 0)
        symbols = {"params": X, "tracker": Y, "gradient": V, "exact": exact}
        yield symbols | given.to_neighbours(t, 2 * given.model)


def bits(t: int, N: int, d: int) -> Bits:
    return gt_svrg.bits(t, N, d)


CASES = {
    "": Case(
        lambda given: gt_sarah(given.optimizer, given.graph, PERIOD),
        recursion,
        "one peer",
        symbols=gt_svrg.INNER | {"exact": gt_svrg.exact},
    )
}
