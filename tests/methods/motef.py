"""MoTEF: Islamov, Gao and Stich, 2024. The recursion is in `beer`."""

import algorithms
from algorithms import motef
from tests.methods import beer
from tests.methods.bits import Bits
from tests.methods.compressors import HALF, HALF_OF_ALL
from tests.methods.given import SGD, Case
from tests.methods.graphs import LAZY

MOMENTUM = 0.4


def bits(t: int, N: int, d: int) -> Bits:
    return beer.bits(t, N, d)


CASES = {
    "": Case(
        lambda given: motef(given.optimizer, given.graph, HALF_OF_ALL, beer.ETA, MOMENTUM),
        lambda given: beer.recursion(given, MOMENTUM),
        "irregular",
        "momentum",
    )
}
EQUALS = {
    "no averages": (
        lambda: motef(SGD, LAZY, HALF, 0.4, 1.0),
        lambda: algorithms.beer(SGD, LAZY, HALF, 0.4),
    ),
}
