"""GT-HSGD: Xin, Khan and Kar, 2021, with exact gradients in the first round."""

import numpy as np

from algorithms import gt_hsgd
from tests.methods import gt_svrg
from tests.methods.bits import Bits
from tests.methods.given import Case, Given, Rounds

APART, BETA = True, 0.3


def recursion(given: Given) -> Rounds:
    X, before, step = given.X, given.X, given.step()
    Y = V = np.zeros_like(X)
    for t in given.rounds:
        last, W = V, given.W(t)
        hybrid = given.G(t, X) + (1 - BETA) * (V - given.G(t, before))
        V = hybrid if t else given.exact(t, X)
        Y = W @ (Y + V - last)
        before, X = X, W @ (X + step(Y))
        symbols = {"params": X, "tracker": Y, "gradient": V}
        yield symbols | given.to_neighbours(t, 2 * given.model)


def bits(t: int, N: int, d: int) -> Bits:
    return gt_svrg.bits(t, N, d)


CASES = {
    "": Case(
        lambda given: gt_hsgd(given.optimizer, given.graph, BETA),
        recursion,
        "one peer",
        "momentum",
        symbols=gt_svrg.INNER,
    )
}
