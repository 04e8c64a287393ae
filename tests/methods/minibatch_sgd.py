"""Mini-batch SGD: Liu and Zhang, section 2.1.2, "Gradient Aggregation"."""

from collections.abc import Callable

from algorithms import minibatch_sgd
from tests.methods.bits import Bits, all_reduce
from tests.methods.given import Case, Given, Rounds


def all_reduced(given: Given, t: int) -> dict:
    """Returns the bits of an all-reduce of one vector."""
    return given.all_reduce(t, given.model)


def recursion(given: Given, exchange: Callable[[Given, int], dict] = all_reduced) -> Rounds:
    x, step = given.x, given.step()
    for t in given.rounds:
        S = given.contributes(t)
        if S.any():
            x = x + step(given.gradients_at(t, x)[S].mean(axis=0))
        yield {"x": x} | exchange(given, t)


def bits(t: int, N: int, d: int) -> Bits:
    return all_reduce(N, d)


CASES = {
    title: Case(
        lambda given: minibatch_sgd(given.optimizer),
        recursion,
        optimizer="momentum",
        absent=title == "absent",
    )
    for title in ("", "absent")
}
