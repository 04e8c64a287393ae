"""Proximal gradient descent: Beck and Teboulle, 2009."""

from dataclasses import replace

from algorithms import gradient_descent, proximal_gradient
from dsgd import problems
from tests.methods import proximal_sgd
from tests.methods.bits import Bits, all_reduce
from tests.methods.given import GAMMA, SGD, Case, Given, Rounds
from tests.methods.steps import PENALTY


def recursion(given: Given) -> Rounds:
    return proximal_sgd.recursion(replace(given, G=given.exact))


def bits(t: int, N: int, d: int) -> Bits:
    return all_reduce(N, d)


CASES = {
    title: Case(
        lambda given: proximal_gradient(given.gamma),
        recursion,
        absent=title == "absent",
        regularizer=problems.l1(PENALTY),
    )
    for title in ("", "absent")
}
EQUALS = {
    "no regularizer": (lambda: proximal_gradient(GAMMA), lambda: gradient_descent(SGD)),
}
