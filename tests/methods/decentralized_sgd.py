"""Decentralized SGD: Liu and Zhang, (5.2); with averaged momenta: Yu, Jin and Yang, 2019; with
accelerated gossip: Scaman et al., 2017, algorithm 2.
"""

import numpy as np

import topologies
from algorithms import decentralized_sgd
from dsgd import Algorithm
from tests.methods.bits import FLOAT, Bits, ring_bits
from tests.methods.given import Case, Given, Rounds, Setting
from tests.methods.opapc import chebyshev

APART, BETA, K = True, 0.9, 3


def recursion(given: Given) -> Rounds:
    X, step = given.X, given.step()
    for t in given.rounds:
        X = given.W(t) @ (X + step(given.G(t, X), given.present(t)))
        yield {"params": X} | given.to_neighbours(t, given.model)


def with_averaged_momenta(given: Given) -> Rounds:
    X, u = given.X, np.zeros_like(given.X)
    for t in given.rounds:
        u = np.where(given.present(t), BETA * u + given.G(t, X), u)
        X, u = given.W(t) @ (X - given.gamma * given.present(t) * u), given.W(t) @ u
        yield {"params": X, "momentum": u} | given.to_neighbours(t, 2 * given.model)


def accelerated_gossip(given: Given) -> Rounds:
    """Yields the rounds with K accelerated exchanges."""
    X, step = given.X, given.step()
    for t in given.rounds:
        X = chebyshev(X + step(given.G(t, X)), given.W(t), K)
        yield {"params": X} | given.to_neighbours(t, K * given.model)


def method(given: Setting) -> Algorithm:
    return decentralized_sgd(given.optimizer, given.graph)


def average_momenta(given: Setting) -> Algorithm:
    return decentralized_sgd(given.optimizer, given.graph, average_momentum=True)


def bits(t: int, N: int, d: int) -> Bits:
    return ring_bits(N, d)


def bits_complete(t: int, N: int, d: int) -> Bits:
    return (N - 1) * d * FLOAT


CASES = {
    "": Case(method, recursion, "exponential", "momentum"),
    "schedule": Case(method, recursion, "one peer"),
    "absent": Case(method, recursion, "complete", "momentum", absent=True),
    "accelerated gossip": Case(
        lambda given: decentralized_sgd(given.optimizer, topologies.chebyshev(given.graph, K)),
        accelerated_gossip,
        "irregular",
    ),
    "averaged momenta": Case(
        average_momenta,
        with_averaged_momenta,
        "one peer",
        "momentum",
        symbols={"momentum": "workers.optimizer.trace"},
    ),
    "averaged momenta, absent": Case(
        average_momenta,
        with_averaged_momenta,
        "ring",
        "momentum",
        absent=True,
        symbols={"momentum": "workers.optimizer.trace"},
    ),
}
