"""ECD-PSGD: Tang et al., 2018."""

from algorithms import dgd, ecd_sgd
from dsgd import compressors
from tests.methods import dcd_sgd
from tests.methods.bits import Bits
from tests.methods.compressors import CLIPPED, SHORT_OF_ALL, declare_unbiased
from tests.methods.given import SGD, Case, Given, Rounds
from tests.methods.graphs import LAZY


def recursion(given: Given) -> Rounds:
    X, X_hat, step = given.X, given.X, given.step()
    for s in given.rounds:
        t = s + 1  # the paper's
        after = given.W(0) @ X_hat + step(given.G(s, X))
        z = (1 - t / 2) * X + t / 2 * after
        X_hat = (1 - 2 / t) * X_hat + 2 / t * CLIPPED(given, z)
        X = after
        yield {"params": X, "x_hat": X_hat} | given.to_neighbours(s, CLIPPED.bits(given))


def bits(t: int, N: int, d: int) -> Bits:
    return dcd_sgd.bits(t, N, d)


CASES = {
    "": Case(
        lambda given: ecd_sgd(given.optimizer, given.graph, declare_unbiased(SHORT_OF_ALL)),
        recursion,
        "irregular",
    )
}
EQUALS = {
    "uncompressed": (lambda: ecd_sgd(SGD, LAZY, compressors.identity), lambda: dgd(SGD, LAZY)),
}
