"""q-FedAvg: Li et al., 2020, algorithm 2. A client whose loss was not computed at the beginning of
the period counts as absent.
"""

from functools import partial

import numpy as np

import algorithms
from algorithms import q_fed_avg
from tests.methods.bits import FLOAT, Bits, period_end
from tests.methods.fed_avg import H
from tests.methods.given import SGD, Case, Given, Rounds, T, two_gradients

Q = 2.0  # losses of the quadratics may be negative


def losses(given: Given, t: int, x: np.ndarray, least: float) -> np.ndarray:
    """Returns all workers' losses without noise, `[N]`; they are `least` at 0."""
    slopes = [given.exact(t, np.tile(point, (given.N, 1))) for point in (x, np.zeros_like(x))]
    return (slopes[0] + slopes[1]) @ x / 2 + least


def recursion(given: Given, q: float = Q, least: float = 0.0) -> Rounds:
    x, Y, step, L = given.x, given.X, given.step(), 1 / given.gamma
    F, known = np.zeros(given.N), np.zeros(given.N, bool)
    p = np.ones(given.N) if given.weights is None else given.weights
    for t in given.rounds:
        if t % H == 0:
            F, known = losses(given, t, x, least), given.participates[t]
        Y, sent = Y + step(given.G(t, Y), given.present(t)), given.nothing()
        if (t + 1) % H == 0:
            S = p * (given.contributes(t) & known)
            change = L * (x - Y)
            h = q * F ** (q - 1) * np.sum(change**2, axis=1) + L * F**q
            x = x - (S * F**q) @ change / (S @ h) if S.any() else x
            Y, step = np.tile(x, (given.N, 1)), given.step()
            sent = given.to_server(t, given.model + given.word, given.model + given.word)
        yield {"params": Y, "server": x} | sent


def bits(t: int, N: int, d: int) -> Bits:
    return period_end(t, (d + 1) * FLOAT)


CASES = {
    title: Case(
        lambda given: q_fed_avg(given.optimizer, H, Q),
        recursion,
        optimizer="momentum",
        absent=title == "absent",
        symbols={"server": "server.params"},
        place=partial(two_gradients, np.arange(T) % H == 0) if title else None,
    )
    for title in ("", "absent")
}
EQUALS = {
    "equal powers": (lambda: q_fed_avg(SGD, 4, 0.0), lambda: algorithms.fed_avg(SGD, 4)),
}
