"""DCD-PSGD: Tang et al., 2018."""

from algorithms import dcd_sgd, dgd
from dsgd import compressors
from tests.methods.bits import Bits, codes, degree
from tests.methods.compressors import CLIPPED, SHORT_OF_ALL, declare_unbiased
from tests.methods.given import SGD, Case, Given, Rounds
from tests.methods.graphs import LAZY


def recursion(given: Given) -> Rounds:
    W, X, step = given.W(0), given.X, given.step()
    for t in given.rounds:
        half = W @ X + step(given.G(t, X))
        X = X + CLIPPED(given, half - X)
        symbols = {"params": X, "laplacian": W @ X - X}
        yield symbols | given.to_neighbours(t, CLIPPED.bits(given))


def bits(t: int, N: int, d: int) -> Bits:
    return degree(N) * codes(8, d)


CASES = {
    "": Case(
        lambda given: dcd_sgd(given.optimizer, given.graph, declare_unbiased(SHORT_OF_ALL)),
        recursion,
        "star",
        "momentum",
    )
}
EQUALS = {
    "uncompressed": (lambda: dcd_sgd(SGD, LAZY, compressors.identity), lambda: dgd(SGD, LAZY)),
}
