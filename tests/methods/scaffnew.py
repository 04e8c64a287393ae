"""Scaffnew: Mishchenko et al., "ProxSkip", 2022, algorithm 2. The coins are those of the method."""

import numpy as np

from algorithms import minibatch_sgd, scaffnew
from tests.methods.bits import Bits, all_reduce
from tests.methods.given import SGD, Case, Given, Rounds

P = 0.4


def recursion(given: Given) -> Rounds:
    X, h = given.X, np.zeros_like(given.X)
    for t, coin in enumerate(given.found.sent[:, 0] > 0):
        hat = X - given.gamma * (given.G(t, X) - h)
        X = np.tile(hat.mean(axis=0), (given.N, 1)) if coin else hat
        h = h + P / given.gamma * (X - hat)
        exchange = given.all_reduce(t, given.model) if coin else given.nothing()
        yield {"params": X, "control": h} | exchange


def bits(t: int, N: int, d: int) -> Bits:
    return [0, all_reduce(N, d)]


CASES = {"": Case(lambda given: scaffnew(given.optimizer, P), recursion)}
EQUALS = {
    "always averaging": (lambda: scaffnew(SGD, 1.0), lambda: minibatch_sgd(SGD)),
}
