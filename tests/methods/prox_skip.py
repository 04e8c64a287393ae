"""Decentralized ProxSkip, W_a = I - (I - W) / (2 chi): Guo et al., "Revisiting decentralized
ProxSkip", 2023. The symbol `correction` is -Y / p.
"""

import numpy as np

from algorithms import exact_diffusion, prox_skip, scaffnew
from tests.methods.bits import Bits, ring_bits
from tests.methods.given import SGD, Case, Given, Rounds
from tests.methods.graphs import COMPLETE, IRREGULAR

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
    return [0, ring_bits(N, d)]


CASES = {
    "": Case(
        lambda given: prox_skip(given.optimizer, given.graph, P, 1 / (2 * CHI)),
        recursion,
        "irregular",
    )
}
EQUALS = {
    "no skips": (
        lambda: prox_skip(SGD, IRREGULAR, 1.0, 0.5),
        lambda: exact_diffusion(SGD, IRREGULAR),
    ),
    "complete graph": (lambda: prox_skip(SGD, COMPLETE, 0.25, 1.0), lambda: scaffnew(SGD, 0.25)),
}
