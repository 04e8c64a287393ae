"""EF21-SGDM and, with momenta of momenta, EF21-SGD2M: Fatkhullin, Tyurin and Richtarik, 2023. They
start at 0, and the server makes its first step after the first messages.
"""

import numpy as np
import optax

from algorithms import ef21, ef21_sgdm, minibatch_sgd
from dsgd import Algorithm, compressors, network
from tests.methods import ef_bv
from tests.methods.bits import Bits, tenth, with_reply
from tests.methods.compressors import HALF
from tests.methods.ef_bv import SYMBOLS
from tests.methods.given import GAMMA, SGD, Case, Given, Rounds, Setting

ETA = 0.2


def recursion(given: Given, double: bool = False) -> Rounds:
    v, u = np.zeros((2, given.N, given.d))

    def momenta(t, x):
        nonlocal v, u
        v = np.where(given.present(t), (1 - ETA) * v + ETA * given.gradients_at(t, x), v)
        u = np.where(given.present(t), (1 - ETA) * u + ETA * v, u)
        return u if double else v

    for symbols in ef_bv.recursion(given, vectors=momenta):
        yield symbols | {"vector": np.hstack([v, u]) if double else v}


def single(given: Setting) -> Algorithm:
    return ef21_sgdm(given.optimizer, HALF, ETA)


def double(given: Setting) -> Algorithm:
    return ef21_sgdm(given.optimizer, HALF, ETA, double=True)


def bits(t: int, N: int, d: int) -> Bits:
    return with_reply(tenth(d), d)


CASES = {
    "": Case(single, recursion, symbols=SYMBOLS),
    "absent": Case(single, recursion, absent=True, symbols=SYMBOLS),
    "double": Case(double, lambda given: recursion(given, True), symbols=SYMBOLS),
    "double, absent": Case(
        double, lambda given: recursion(given, True), absent=True, symbols=SYMBOLS
    ),
}
EQUALS = {
    "no momentum": (
        lambda: ef21_sgdm(SGD, HALF, 1.0),
        lambda: ef21(SGD, HALF, None, via=network.star),
    ),
    "double, no momentum": (
        lambda: ef21_sgdm(SGD, HALF, 1.0, double=True),
        lambda: ef21(SGD, HALF, None, via=network.star),
    ),
    "identity": (
        lambda: ef21_sgdm(SGD, compressors.identity, 0.2),
        lambda: minibatch_sgd(optax.sgd(0.2 * GAMMA, 0.8)),
    ),
}
