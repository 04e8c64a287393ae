"""LAG: Chen et al., 2018, with the condition of Richtarik et al., "3PC", 2022."""

from algorithms import lag, minibatch_sgd
from tests.methods import three_point
from tests.methods.bits import FLOAT, Bits, with_reply
from tests.methods.given import SGD, Case, Given, Rounds, Setting
from tests.methods.three_point import SYMBOLS, ZETA


def method(given: Setting):
    return lag(given.optimizer, ZETA)


def recursion(given: Given) -> Rounds:
    return three_point.recursion(given, three_point.lag)


def bits(t: int, N: int, d: int) -> Bits:
    """Later only workers with changed gradients send."""
    return None if t else with_reply(d * FLOAT, d)


CASES = {
    "": Case(method, recursion, symbols=SYMBOLS),
    "absent": Case(method, recursion, absent=True, symbols=SYMBOLS),
}
EQUALS = {
    "no threshold": (lambda: lag(SGD, 0.0), lambda: minibatch_sgd(SGD)),
}
