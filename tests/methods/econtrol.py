"""EControl: Gao, Islamov and Stich, 2024, algorithm 1."""

from algorithms import econtrol, ef21, minibatch_sgd
from dsgd import compressors, network
from tests.methods import ef_bv
from tests.methods.bits import Bits, tenth, with_reply
from tests.methods.compressors import HALF
from tests.methods.ef_bv import SYMBOLS
from tests.methods.given import MOMENTUM, Case, Given, Rounds, Setting

ETA = 0.2


def method(given: Setting):
    return econtrol(given.optimizer, HALF, ETA)


def recursion(given: Given) -> Rounds:
    return ef_bv.recursion(given, eta=ETA)


def bits(t: int, N: int, d: int) -> Bits:
    return with_reply(tenth(d), d)


CASES = {
    "": Case(method, recursion, symbols=SYMBOLS),
    "absent": Case(method, recursion, absent=True, symbols=SYMBOLS),
}
EQUALS = {
    "without errors": (
        lambda: econtrol(MOMENTUM, HALF, 0.0),
        lambda: ef21(MOMENTUM, HALF, None, via=network.star),
    ),
    "identity": (
        lambda: econtrol(MOMENTUM, compressors.identity, 0.3),
        lambda: minibatch_sgd(MOMENTUM),
    ),
}
