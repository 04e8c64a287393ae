"""EF-BV: Condat, Yi and Richtarik, 2022, algorithm 1; and the recursion of all methods with shifts
and errors at workers, and with one server that replies uncompressed.
"""

from collections.abc import Callable

import numpy as np

from algorithms import diana, ef21, ef_bv
from dsgd import compressors, network
from tests.methods.bits import Bits, codes, with_reply
from tests.methods.compressors import HALF, HALVES, Q
from tests.methods.given import MOMENTUM, SGD, Case, Given, Rounds, Setting
from theory_checks.machinery.trajectories import N

LAMBDA, NU = 0.4, 0.7
SYMBOLS = {"x": "server.shared.params", "mean shift": "server.server.shift"}


def recursion(
    given: Given,
    lambda_: float = 1.0,
    nu: float = 1.0,
    *,
    eta: float = 0.0,
    over_arrived: bool = False,
    prox: Q = lambda x: x,
    vectors: Callable[[int, np.ndarray], np.ndarray] | None = None,
) -> Rounds:
    """Shifts h_n that learn vectors, of which half of the elements of each layer are sent.

    Args:
        given: see `Given`.
        lambda_: the step of the shifts.
        nu: the weight of the messages in the direction.
        eta: the weight of the errors in the messages.
        over_arrived: whether the messages' mean in the direction is over those that arrive.
        prox: the proximal step.
        vectors: (t, x) -> the workers' vectors; None: the gradients.
    """
    x, step, (h, e) = given.x, given.step(), np.zeros((2, given.N, given.d))
    for t in given.rounds:
        S, rest = given.contributes(t)[:, None], (vectors or given.gradients_at)(t, x) - h
        m = np.where(S, HALVES(given, rest + eta * e), 0)
        mean = m.sum(axis=0) / (max(S.sum(), 1) if over_arrived else given.N)
        x = prox(x + step(h.mean(axis=0) + nu * mean, S.any()))
        e, h = np.where(S, e + rest - m, e), h + lambda_ * m
        symbols = {"x": x, "shift": h, "mean shift": h.mean(axis=0)} | ({"error": e} if eta else {})
        yield symbols | given.to_server(t, HALVES.bits(given), given.model)


def method(given: Setting):
    return ef_bv(given.optimizer, HALF, LAMBDA, NU)


def rounds(given: Given) -> Rounds:
    return recursion(given, LAMBDA, NU)


def bits(t: int, N: int, d: int) -> Bits:
    return with_reply(codes(4, d), d)


CASES = {
    "": Case(method, rounds, symbols=SYMBOLS),
    "absent": Case(method, rounds, optimizer="momentum", absent=True, symbols=SYMBOLS),
}
RANDOM, OMEGA = compressors.random_k(0.2), 15 / 3 - 1  # 3 of the 15 elements of the larger layer
EQUALS = {
    "numbers of 1": (
        lambda: ef_bv(MOMENTUM, HALF, 1.0, 1.0),
        lambda: ef21(MOMENTUM, HALF, None, via=network.star),
    ),
    "contraction": (
        lambda: ef_bv(MOMENTUM, HALF),
        lambda: ef21(MOMENTUM, HALF, None, via=network.star),
    ),
    "shifts of DIANA": (
        lambda: ef_bv(SGD, RANDOM, 1 / (1 + OMEGA), 1.0),
        lambda: diana(SGD, RANDOM),
    ),
    "own numbers": (
        lambda: ef_bv(SGD, RANDOM, 1 / (1 + OMEGA), 1 / (1 + OMEGA / N)),
        lambda: ef_bv(SGD, RANDOM),
    ),
}
