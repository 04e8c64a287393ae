"""CHOCO-SGD: Koloskova, Stich and Jaggi, 2019, algorithm 2. The estimates start at the common x_0
instead of 0.
"""

import numpy as np

from algorithms import choco_sgd
from tests.methods.bits import Bits, degree, signs
from tests.methods.compressors import CLIPPED, HALVES, Compression
from tests.methods.given import Case, Given, Rounds

ETA = 0.3


def recursion(given: Given, C: Compression) -> Rounds:
    W, X, hat, step = given.W(0), given.X, given.X, given.step()
    for t in given.rounds:
        half = X + step(given.G(t, X))
        hat = hat + C(given, half - hat)
        laplacian = (W - np.eye(given.N)) @ hat
        X = half + ETA * laplacian
        symbols = {"params": X, "x_hat": hat, "laplacian": laplacian}
        yield symbols | given.to_neighbours(t, C.bits(given))


def case(C: Compression, graph: str, optimizer: str) -> Case:
    return Case(
        lambda given: choco_sgd(given.optimizer, given.graph, C.compressor, ETA),
        lambda given: recursion(given, C),
        graph,
        optimizer,
    )


def bits(t: int, N: int, d: int) -> Bits:
    return degree(N) * signs(d)


CASES = {
    "": case(HALVES, "irregular", "momentum"),
    "whole model": case(CLIPPED, "star", "plain"),
}
