"""Decentralized ProxSkip, W_a = I - (I - W) / (2 chi): Guo et al., "Revisiting decentralized
ProxSkip", 2023. The symbol `correction` is -Y / p.
"""

import numpy as np

from algorithms import prox_skip
from tests.methods.bits import Bits, on_ring
from tests.methods.given import Case, Given, Rounds

APART, P, CHI = True, 0.5, 0.75


def recursion(given: Given) -> Rounds:
    X, Y, eye = given.X, np.zeros_like(given.X), np.eye(given.N)
    W_a = eye - (eye - given.W(0)) / (2 * CHI)
    coins = given.found.sent[:, 0] > 0  # of the method
    for t, coin in zip(given.rounds, coins, strict=True):
        Z = X - given.gamma * given.G(t, X) - Y
        X = W_a @ Z if coin else Z
        Y = Y + P * (Z - X)
        exchange = given.to_neighbours(t, given.model) if coin else given.nothing()
        yield {"params": X, "correction": -Y / P} | exchange


def bits(t: int, N: int, d: int) -> Bits:
    return [0, on_ring(N, d)]


CASES = {
    "": Case(
        lambda given: prox_skip(given.optimizer, given.graph, P, 1 / (2 * CHI)),
        recursion,
        "irregular",
    )
}
