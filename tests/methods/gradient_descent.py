"""Gradient descent: Liu and Zhang, (1.2)."""

from dataclasses import replace

from algorithms import gradient_descent
from tests.methods import minibatch_sgd
from tests.methods.bits import Bits, all_reduce
from tests.methods.given import Case, Given, Rounds


def recursion(given: Given) -> Rounds:
    return minibatch_sgd.recursion(replace(given, G=given.exact))


def bits(t: int, N: int, d: int) -> Bits:
    return all_reduce(N, d)


CASES = {
    title: Case(
        lambda given: gradient_descent(given.optimizer), recursion, absent=title == "absent"
    )
    for title in ("", "absent")
}
