"""AB, Push-Pull that combines, then adapts: Xin and Khan, 2018."""

from algorithms import ab, gradient_tracking
from dsgd import Algorithm
from tests.methods import push_pull
from tests.methods.given import SGD, Case, Given, Rounds, Setting
from tests.methods.graphs import BALANCED

APART, bits = True, push_pull.bits


def recursion(given: Given) -> Rounds:
    return push_pull.recursion(given, adapt_first=False)


def method(given: Setting) -> Algorithm:
    return ab(given.optimizer, *given.graphs)


CASES = {
    "": Case(method, recursion, ("directed, pull", "directed")),
    "absent": Case(method, recursion, ("tree, pull", "tree, push"), absent=True),
}
EQUALS = {
    "doubly stochastic W": (
        lambda: ab(SGD, BALANCED, BALANCED),
        lambda: gradient_tracking(SGD, BALANCED),
    ),
}
