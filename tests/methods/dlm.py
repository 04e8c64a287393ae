"""DLM with equal step sizes: Ling, Shi, Wu and Ribeiro, 2015. The dual variables are those that
the method has used in the round.
"""

import networkx as nx
import numpy as np

import topologies
from algorithms import dlm, extra
from tests.methods.bits import Bits, ring_bits
from tests.methods.given import GAMMA, SGD, Case, Given, Rounds
from tests.methods.graphs import IRREGULAR

APART, RHO = True, 0.4


def recursion(given: Given) -> Rounds:
    A, X, Y, step = given.adjacency(), given.X, np.zeros_like(given.X), given.step()
    L = np.diag(A.sum(axis=1)) - A
    for t in given.rounds:
        used = Y
        X = X + step(given.G(t, X) + RHO * L @ X + Y)
        Y = Y + RHO * L @ X
        yield {"params": X, "correction": used} | given.to_neighbours(t, given.model)


def bits(t: int, N: int, d: int) -> Bits:
    return ring_bits(N, d)


CASES = {
    "": Case(
        lambda given: dlm(given.optimizer, given.graph, RHO), recursion, "irregular", "momentum"
    )
}
LAPLACIAN = nx.laplacian_matrix(nx.Graph(IRREGULAR.edges.tolist()), range(6)).toarray()
EQUALS = {
    "EXTRA with another W": (
        lambda: dlm(SGD, IRREGULAR, 0.3),
        lambda: extra(SGD, topologies.from_matrix(np.eye(6) - 0.6 * GAMMA * LAPLACIAN)),
    ),
}
