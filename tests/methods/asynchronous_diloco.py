"""Asynchronous DiLoCo: Liu et al., 2024, algorithm 3 and equation 6."""

import numpy as np
import optax

from algorithms import asynchronous_diloco, fed_buff
from tests.methods.fed_buff import bits, local_case
from tests.methods.given import SGD, Given
from tests.methods.server_events import Rule

__all__ = ["bits"]
ETA, MU, M, C = 0.3, 0.8, 4, 0.15


def rule(given: Given, M: int, c: float) -> Rule:
    u, b = np.zeros(given.d), list[np.ndarray]()

    def arrive(now):
        nonlocal u
        b.append(now.g)
        if len(b) < M:
            return -ETA * (c * MU * u + now.g / M)
        u = MU * u + sum(b) / M
        b.clear()
        return -ETA * ((1 - c * M + c) * MU * u + now.g / M)

    return arrive


CASES = {
    "": local_case(
        lambda optimizer, H: asynchronous_diloco(optimizer, H, ETA, MU, buffer=M, share=C),
        lambda given: rule(given, M, C),
    ),
    "all workers": local_case(
        lambda optimizer, H: asynchronous_diloco(optimizer, H, ETA, MU),
        lambda given: rule(given, given.N, 0.0),
    ),
}
EQUALS = {
    "Nesterov with each change": (
        lambda: asynchronous_diloco(SGD, 3, ETA, MU, buffer=1),
        lambda: fed_buff(SGD, 3, 1, optax.sgd(ETA, MU, nesterov=True), exponent=0.0),
    )
}
