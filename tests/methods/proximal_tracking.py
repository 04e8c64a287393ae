r"""Prox-ATC tracking: the proximal unified decentralized algorithm of Alghunaim et al., 2021, with
$\bar A = W$ and B = C = I - W; Y is its dual variable. $\gamma$ times the trackers are the
differences of the models and Z. If W differs between rounds, the trackers take its place.
"""

import numpy as np

from algorithms import atc_tracking, proximal_tracking
from dsgd import Algorithm, problems
from tests.methods.bits import Bits, ring_bits
from tests.methods.given import GAMMA, SGD, Case, Given, Rounds, Setting
from tests.methods.graphs import BALANCED
from tests.methods.steps import PENALTY, soft_threshold

APART = True


def recursion(given: Given) -> Rounds:
    X, W, gamma = given.X, given.W(0), given.gamma
    B, Y = np.eye(given.N) - W, np.zeros_like(X)
    for t in given.rounds:
        Z = W @ X - gamma * given.G(t, X) - B @ Y
        Y = Y + B @ Z
        before, X = X, soft_threshold(W @ Z, gamma)
        symbols = {"params": X, "tracker": before - Z, "shift": W @ Z - X}
        yield symbols | given.to_neighbours(t, 2 * given.model)


def trackers(given: Given) -> Rounds:
    """Yields the rounds without a regularizer."""
    X, gamma = given.X, given.gamma
    Y = g = np.zeros_like(X)
    for t in given.rounds:
        here, last = given.present(t), g
        g = np.where(here, given.G(t, X), g)
        Y = given.W(t) @ Y + g - last
        X = given.W(t) @ (X - gamma * here * Y)
        symbols = {"params": X, "tracker": gamma * Y, "change": -gamma * g, "shift": 0 * X}
        yield symbols | given.to_neighbours(t, 2 * given.model)


def method(given: Setting) -> Algorithm:
    return proximal_tracking(given.gamma, given.graph)


def bits(t: int, N: int, d: int) -> Bits:
    return ring_bits(N, d, 2)


CASES = {
    "": Case(method, recursion, "irregular", regularizer=problems.l1(PENALTY)),
    "absent": Case(method, trackers, "matchings", absent=True),
}
EQUALS = {
    "no regularizer": (
        lambda: proximal_tracking(GAMMA, BALANCED),
        lambda: atc_tracking(SGD, BALANCED),
    ),
}
