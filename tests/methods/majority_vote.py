"""Signum with majority vote: Bernstein et al., "signSGD with majority vote", algorithm 1; and the
recursion of Distributed Lion. One bit expresses a sign: 0, and a tie, count as positive.
"""

from collections.abc import Callable

import numpy as np

from algorithms import majority_vote
from tests.methods.bits import Bits, packed_bits
from tests.methods.given import Case, Given, Rounds

LEARNING_RATE, BETA = 0.02, 0.8


def signs(x: np.ndarray) -> np.ndarray:
    """Returns the signs that one bit can express."""
    return np.where(x < 0, -1.0, 1.0)


def recursion(
    given: Given,
    beta1: float,
    beta2: float,
    aggregate: Callable[[np.ndarray], np.ndarray] = signs,
    width: int = 1,
) -> Rounds:
    """Votes with the weight beta1 of the momentum, and beta2 for its next value; servers
    reply with `width` bits per element of the aggregate of the sum of votes.
    """
    x, step, m = given.x, given.step(), np.zeros((given.N, given.d))
    up, down = (sum(packed_bits(bits, d) for d in given.layers) for bits in (1, width))
    for t in given.rounds:
        g, S = given.gradients_at(t, x), given.contributes(t)
        votes = signs(beta1 * m + (1 - beta1) * g)[S]
        m = np.where(given.present(t), beta2 * m + (1 - beta2) * g, m)
        x = x + step(aggregate(votes.sum(axis=0)), S.any())
        yield {"x": x, "m": m} | given.to_server(t, up, down)


def bits(t: int, N: int, d: int) -> Bits:
    return packed_bits(1, d)


SYMBOLS = {"m": "workers"}
CASES = {
    title: Case(
        lambda given: majority_vote(given.optimizer, momentum=BETA),
        lambda given: recursion(given, BETA, BETA),
        absent=bool(title),
        symbols=SYMBOLS,
    )
    for title in ("", "absent")
}
