"""DeepSqueeze: Tang et al., 2019, algorithm 1."""

import numpy as np

from algorithms import deepsqueeze
from tests.methods.bits import Bits, degree, signs
from tests.methods.compressors import SIGNS, WHOLE_HALVES, Compression
from tests.methods.given import Case, Given, Rounds

APART, ETA = True, 0.3


def recursion(given: Given, C: Compression) -> Rounds:
    X, delta, step = given.X, np.zeros_like(given.X), given.step()
    for t in given.rounds:
        here = given.present(t)
        half = X + step(given.G(t, X), here)
        v = half + delta
        sent = C(given, v)
        delta = np.where(here, v - sent, delta)
        X = half + ETA * (given.W(t) - np.eye(given.N)) @ sent
        yield {"params": X, "error": delta} | given.to_neighbours(t, C.bits(given))


def case(C: Compression, graph: str, optimizer: str = "plain", absent: bool = False) -> Case:
    return Case(
        lambda given: deepsqueeze(given.optimizer, given.graph, C.compressor, ETA),
        lambda given: recursion(given, C),
        graph,
        optimizer,
        absent,
    )


def bits(t: int, N: int, d: int) -> Bits:
    return degree(N) * signs(d)


CASES = {
    "": case(SIGNS, "irregular"),
    "schedule": case(WHOLE_HALVES, "matchings", "momentum"),
    "absent": case(WHOLE_HALVES, "ring", absent=True),
}
