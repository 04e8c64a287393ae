"""dist-EF-blockSGD: Zheng, Huang and Kwok, 2019, algorithms 1 and 3, with Nesterov momentum of each
worker and gamma_{-1} = 0. Memories are in units of the gradient.
"""

import numpy as np
import optax

from algorithms import dist_ef_sgd, error_feedback
from algorithms.mechanisms.memories import Down, Up
from tests.methods.bits import Bits, signs
from tests.methods.compressors import HALF, HALVES
from tests.methods.given import SGD, Case, Given, Rounds

MU, GAMMA = 0.8, 0.1  # divided by t + 1


def recursion(given: Given) -> Rounds:
    x, e_server, last, (m, e) = given.x, np.zeros(given.d), 0.0, np.zeros((2, given.N, given.d))
    for t in given.rounds:
        gamma = GAMMA / (t + 1)
        g, ratio = given.gradients_at(t, x), last / gamma
        m = MU * m + g
        p = MU * m + g + ratio * e
        sent = HALVES(given, p)
        p_server = sent.mean(axis=0) + ratio * e_server
        answer = HALVES(given, p_server[None])[0]
        e, e_server = p - sent, p_server - answer
        x, last = x - gamma * answer, gamma
        symbols = {"x": x, "error": gamma * e, "server's error": gamma * e_server}
        yield symbols | given.to_server(t, *2 * [HALVES.bits(given)])


def bits(t: int, N: int, d: int) -> Bits:
    return signs(d)


CASES = {
    "": Case(
        lambda given: dist_ef_sgd(
            optax.sgd(lambda t: GAMMA / (t + 1), momentum=MU, nesterov=True), HALF
        ),
        recursion,
        symbols={"x": "server.shared.params", "server's error": "server.server.error"},
    )
}
EQUALS = {
    "error memories": (
        lambda: dist_ef_sgd(SGD, HALF),
        lambda: error_feedback(SGD, Up(HALF, error=1.0), Down(HALF)),
    ),
}
