"""C-GT: Liao, Li, Huang and Pu, 2022. Departure: the copies start at the common x_0 and 0."""

import numpy as np

from algorithms import beer, c_gt
from tests.methods.bits import Bits, degree, five_values
from tests.methods.compressors import HALF, HALF_OF_ALL, WHOLE_HALVES
from tests.methods.given import SGD, Case, Given, Rounds
from tests.methods.graphs import LAZY

ETA, ALPHA = 0.3, 0.6


def recursion(given: Given) -> Rounds:
    C, X, step, I_W = WHOLE_HALVES, given.X, given.step(), np.eye(given.N) - given.W(0)
    H, H_Y, Y, g = X, np.zeros_like(X), 0.0, 0.0
    for t in given.rounds:
        last, g = g, given.G(t, X)
        Y = Y + g - last
        Q, Q_Y = C(given, X - H), C(given, Y - H_Y)
        X_hat, Y_hat = H + Q, H_Y + Q_Y
        H, H_Y = H + ALPHA * Q, H_Y + ALPHA * Q_Y
        X = X - ETA * I_W @ X_hat + step(Y)
        Y = Y - ETA * I_W @ Y_hat
        symbols = {"params": X, "correction": Y - g}
        yield symbols | given.to_neighbours(t, 2 * C.bits(given))


def bits(t: int, N: int, d: int) -> Bits:
    return degree(N) * 2 * five_values(d)


CASES = {
    "": Case(
        lambda given: c_gt(given.optimizer, given.graph, HALF_OF_ALL, ETA, memory_step=ALPHA),
        recursion,
        "irregular",
        "momentum",
    )
}
EQUALS = {
    "no damping": (lambda: c_gt(SGD, LAZY, HALF, 0.4, 1.0), lambda: beer(SGD, LAZY, HALF, 0.4)),
}
