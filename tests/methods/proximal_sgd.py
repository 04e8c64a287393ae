r"""Proximal SGD, $x_{t+1} = \mathrm{prox}_{\gamma r}(x_t - \gamma \frac1N \sum_n g_n(x_t))$: Beck
and Teboulle, 2009, with gradients of samples.
"""

from algorithms import proximal_sgd
from dsgd import problems
from tests.methods.bits import Bits, all_reduce
from tests.methods.given import Case, Given, Rounds
from tests.methods.steps import PENALTY, soft_threshold


def recursion(given: Given) -> Rounds:
    x = given.x
    for t in given.rounds:
        S = given.contributes(t)
        if S.any():
            half = x - given.gamma * given.gradients_at(t, x)[S].mean(axis=0)
            x = soft_threshold(half, given.gamma)
        yield {"x": x} | given.all_reduce(t, given.model)


def bits(t: int, N: int, d: int) -> Bits:
    return all_reduce(N, d)


CASES = {
    title: Case(
        lambda given: proximal_sgd(given.gamma),
        recursion,
        absent=title == "absent",
        regularizer=problems.l1(PENALTY),
    )
    for title in ("", "absent")
}
