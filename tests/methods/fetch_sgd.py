"""FetchSGD, with the step size applied to the update: Rothchild et al., 2020, algorithm 1; for the
counters that are set to 0, its code, CommEfficient.
"""

import numpy as np

from algorithms import fetch_sgd, minibatch_sgd, sketched_sgd
from tests.methods.bits import Bits, all_reduce
from tests.methods.given import MOMENTUM, SGD, Case, Given, Rounds
from tests.methods.sketched_sgd import hashes, largest
from theory_checks.machinery.trajectories import D

K, RHO, ROWS, COLUMNS = 4, 0.7, 3, 8
EXACT = 24  # at least D columns


def recursion(given: Given, columns: int, subtract: bool, k: int = K, rows: int = ROWS) -> Rounds:
    x, step, hashed = given.x, given.step(), hashes(given, rows, columns)
    S_u = S_e = np.zeros((rows, columns))
    for t in given.rounds:
        S = given.contributes(t)
        if S.any():
            sketches = [hashed.sketch(g) for g in given.gradients_at(t, x)[S]]
            S_u = RHO * S_u + np.mean(sketches, axis=0)
            S_e = S_e + S_u
            estimate, delta = hashed.estimate(S_e), np.zeros(given.d)
            for i in largest(estimate, k):
                delta[i] = estimate[i]
            sent = hashed.sketch(delta)
            if subtract:
                S_e = S_e - sent
            else:
                S_u, S_e = np.where(sent == 0, S_u, 0), np.where(sent == 0, S_e, 0)
            x = x + step(delta)
        counters = {} if given.found is None else {"S_u": S_u, "S_e": S_e}
        yield {"x": x} | counters | given.all_reduce(t, given.word * rows * columns)


def bits(t: int, N: int, d: int) -> Bits:
    return all_reduce(N, 5 * 32)


CASES = {
    "": Case(
        lambda given: fetch_sgd(given.optimizer, K / D, COLUMNS, ROWS, RHO),
        lambda given: recursion(given, COLUMNS, subtract=False),
    ),
    "subtracted, without collisions": Case(
        lambda given: fetch_sgd(given.optimizer, K / D, EXACT, ROWS, RHO, "subtract"),
        lambda given: recursion(given, EXACT, subtract=True),
    ),
    "absent": Case(
        lambda given: fetch_sgd(given.optimizer, 1 / 4, 4, 1, RHO, "subtract"),
        lambda given: recursion(given, given.d, True, 1, 1),
        absent=True,
    ),
}
EQUALS = {
    "all elements": (lambda: fetch_sgd(SGD, 1.0, 24, 3, 0.9, "zero"), lambda: minibatch_sgd(SGD)),
    "all elements, subtracted": (
        lambda: fetch_sgd(SGD, 1.0, 24, 3, 0.5, "subtract"),
        lambda: minibatch_sgd(MOMENTUM),
    ),
    "no collisions": (
        lambda: fetch_sgd(SGD, 3 / 22, 24, 3, 0.9, "zero"),
        lambda: sketched_sgd(SGD, 3 / 22, 24, 3, 2, 0.9),
    ),
}
