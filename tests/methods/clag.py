"""CLAG: Richtarik et al., "3PC", 2022."""

from algorithms import clag, ef21
from dsgd import network
from tests.methods import three_point
from tests.methods.bits import Bits, tenth, with_reply
from tests.methods.compressors import HALF
from tests.methods.given import SGD, Case, Given, Rounds, Setting
from tests.methods.three_point import SYMBOLS, ZETA


def method(given: Setting):
    return clag(given.optimizer, HALF, ZETA)


def recursion(given: Given) -> Rounds:
    return three_point.recursion(given, three_point.clag)


def bits(t: int, N: int, d: int) -> Bits:
    """Later only workers with changed gradients send."""
    return None if t else with_reply(tenth(d), d)


CASES = {
    "": Case(method, recursion, optimizer="momentum", symbols=SYMBOLS),
    "absent": Case(method, recursion, absent=True, symbols=SYMBOLS),
}
EQUALS = {
    "no threshold": (lambda: clag(SGD, HALF, 0.0), lambda: ef21(SGD, HALF, None, via=network.star)),
}
