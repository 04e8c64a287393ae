"""DIANA: Mishchenko et al., 2019, algorithm 1."""

from algorithms import diana, error_feedback, minibatch_sgd
from algorithms.mechanisms.memories import Up
from dsgd import compressors, problems
from tests.methods import ef_bv
from tests.methods.compressors import HALF, declare_unbiased
from tests.methods.ef_bv import OMEGA, RANDOM, SYMBOLS
from tests.methods.given import MOMENTUM, SGD, Case, Given, Rounds, Setting
from tests.methods.steps import PENALTY, soft_threshold

ALPHA = 0.4


def method(given: Setting):
    return diana(given.optimizer, declare_unbiased(HALF), ALPHA)


def recursion(given: Given) -> Rounds:
    return ef_bv.recursion(given, ALPHA, over_arrived=True)


def with_prox(given: Given) -> Rounds:
    return ef_bv.recursion(given, ALPHA, prox=lambda x: soft_threshold(x, given.gamma))


bits = ef_bv.bits
CASES = {
    "": Case(method, recursion, optimizer="momentum", symbols=SYMBOLS),
    "l1": Case(
        method,
        with_prox,
        symbols=SYMBOLS,
        regularizer=problems.l1(PENALTY),
    ),
    "absent": Case(method, recursion, optimizer="momentum", absent=True, symbols=SYMBOLS),
}
EQUALS = {
    "its alpha": (
        lambda: diana(MOMENTUM, RANDOM, 1 / (1 + OMEGA)),
        lambda: diana(MOMENTUM, RANDOM),
    ),
    "without shifts": (lambda: diana(SGD, RANDOM, 0.0), lambda: error_feedback(SGD, Up(RANDOM))),
    "identity": (lambda: diana(MOMENTUM, compressors.identity), lambda: minibatch_sgd(MOMENTUM)),
}
