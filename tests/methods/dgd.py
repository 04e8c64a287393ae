"""DGD, which combines, then adapts: Nedic and Ozdaglar, 2009."""

from algorithms import dgd
from dsgd import Algorithm
from tests.methods.bits import Bits, ring_bits
from tests.methods.given import Case, Given, Rounds, Setting

APART = True


def recursion(given: Given) -> Rounds:
    X, step = given.X, given.step()
    for t in given.rounds:
        X = given.W(t) @ X + step(given.G(t, X), given.present(t))
        yield {"params": X} | given.to_neighbours(t, given.model)


def method(given: Setting) -> Algorithm:
    return dgd(given.optimizer, given.graph)


def bits(t: int, N: int, d: int) -> Bits:
    return ring_bits(N, d)


CASES = {
    "": Case(method, recursion, "one peer", "momentum"),
    "absent": Case(method, recursion, "ring", "momentum", absent=True),
}
