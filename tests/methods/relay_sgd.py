"""RelaySGD on a tree: Vogels et al., 2021. `m[i, j]` is the last message of j that i has received,
and `c[i, j]` its count.
"""

import numpy as np

from algorithms import relay_sgd
from tests.methods.bits import FLOAT, Bits
from tests.methods.given import Case, Given, Rounds
from tests.methods.graphs import neighbour_values

APART, COUNT = True, 32  # bits of a count


def recursion(given: Given) -> Rounds:
    N, A, X, step = given.N, given.adjacency(), given.X, given.step()
    m, c = np.zeros((N, N, given.d)), np.zeros((N, N), int)
    for t in given.rounds:
        here, hears = given.present(t), given.hears(t)
        Y = X + step(given.G(t, X), here)
        # What j has received from all neighbours but i.
        message = (Y + m.sum(axis=1))[None] - m.swapaxes(0, 1)
        count = (1 + c.sum(axis=1))[None] - c.T
        m, c = np.where(hears[:, :, None], message, m), np.where(hears, count, c)
        missing = N - 1 - c.sum(axis=1)
        X = np.where(here, (Y + m.sum(axis=1) + missing[:, None] * given.x) / N, X)
        symbols = {
            "params": X,
            "messages": neighbour_values(m, A),
            "counts": neighbour_values(c, A),
        }
        yield symbols | given.to_neighbours(t, given.model + COUNT)


def bits(t: int, N: int, d: int) -> Bits:
    neighbours = np.minimum(np.arange(N), 1) + np.minimum(np.arange(N)[::-1], 1)  # on a chain
    return neighbours * (d + 1) * FLOAT


CASES = {
    "": Case(lambda given: relay_sgd(given.optimizer, given.graph), recursion, "tree", "momentum"),
    "absent": Case(
        lambda given: relay_sgd(given.optimizer, given.graph), recursion, "tree", absent=True
    ),
}
