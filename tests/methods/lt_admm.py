"""LT-ADMM: Ren, Bastianello, Johansson and Parisini, 2024. `z[i, j]` is i's variable of the edge to
j; it starts at rho x_0. It is kept if no message arrives.
"""

import numpy as np

from algorithms import lt_admm
from tests.methods.bits import Bits, period_end, ring_bits
from tests.methods.given import Case, Given, Gradients, Rounds
from tests.methods.graphs import neighbour_values

APART, TAU, RHO, BETA = True, 3, 0.4, 0.2


def recursion(given: Given, G: Gradients) -> Rounds:
    A, X, step, correction = given.adjacency(), given.X, given.step(), np.zeros_like(given.X)
    z = RHO * A[:, :, None] * X[:, None]
    for t in given.rounds:
        here, bits = given.present(t), given.nothing()
        X = X + step(G(t, X), here) - here * BETA * correction
        if (t + 1) % TAU == 0:
            message = z - 2 * RHO * X[:, None]
            z = np.where(given.hears(t)[:, :, None], (z - message.swapaxes(0, 1)) / 2, z)
            after = RHO * A.sum(axis=1)[:, None] * X - z.sum(axis=1)
            correction = np.where(here, after, correction)
            bits = given.to_neighbours(t, given.model)
        yield {"params": X, "z": neighbour_values(z, A), "correction": correction} | bits


def case(graph: str, optimizer: str, absent: bool) -> Case:
    return Case(
        lambda given: lt_admm(given.optimizer, given.graph, TAU, penalty=RHO, correction_step=BETA),
        lambda given: recursion(given, given.G),
        graph,
        optimizer,
        absent,
    )


def bits(t: int, N: int, d: int) -> Bits:
    return period_end(t, ring_bits(N, d))


CASES = {"": case("irregular", "momentum", False), "absent": case("star", "plain", True)}
