"""EF21 in both directions: Kimad, algorithm 3, with weights 1/N and N servers that hold one part
each. The model's estimator is updated at the end of a round instead of at the start of the next.
"""

import numpy as np

from algorithms import ef21
from dsgd import compressors, network
from tests.methods import ef_bv
from tests.methods.bits import Bits, parts, tenth
from tests.methods.compressors import (
    HALF,
    HALF_OF_ALL,
    SHORT,
    SHORT_OF_ALL,
    Parts,
    clip,
    largest_half,
    parts_at,
)
from tests.methods.given import MOMENTUM, Case, Given, Rounds


def recursion(given: Given, whole: bool = False) -> Rounds:
    N, step, cutting = given.N, given.step(), Parts((given.d,) if whole else given.layers, given.N)
    up, down = cutting.each(largest_half), cutting.each(clip)
    x = x_hat = cutting.shard(given.x)
    u_hat = np.zeros((N, *x.shape))
    for t in given.rounds:
        u = np.array(
            [cutting.shard(g) for g in given.gradients_at(t, cutting.unshard(x_hat))]
        )  # line 9
        changes = [[up(u[m][k] - u_hat[m][k]) for k in range(N)] for m in range(N)]
        u_hat = u_hat + np.array(changes)  # lines 11 to 14
        x = x + step(u_hat.mean(axis=0))  # line 15
        x_hat = x_hat + np.array([down(x[k] - x_hat[k]) for k in range(N)])  # lines 5 to 8
        estimates = cutting.unshard(u_hat)
        symbols = {"x": cutting.unshard(x), "x_hat": cutting.unshard(x_hat), "u_hat": estimates}
        yield symbols | {"mean of u_hat": estimates.mean(axis=0)}


def bits(t: int, N: int, d: int) -> Bits:
    return parts(tenth, N, d)


SYMBOLS = {
    "x_hat": "server",
    "x": parts_at("workers.server.model.params"),
    "u_hat": parts_at("workers.worker.shift"),
    "mean of u_hat": parts_at("workers.server.shift"),
}
CASES = {
    "": Case(
        lambda given: ef21(given.optimizer, HALF, SHORT),
        recursion,
        optimizer="momentum",
        symbols=SYMBOLS,
    ),
    "whole model": Case(
        lambda given: ef21(given.optimizer, HALF_OF_ALL, SHORT_OF_ALL),
        lambda given: recursion(given, whole=True),
        symbols=SYMBOLS,
    ),
    "one server, absent": Case(
        lambda given: ef21(given.optimizer, HALF),
        ef_bv.recursion,
        optimizer="momentum",
        absent=True,
        symbols=ef_bv.SYMBOLS,
    ),
}
EQUALS = {
    "no compression of the reply": (
        lambda: ef21(MOMENTUM, HALF, None, via=network.multi_server),
        lambda: ef21(MOMENTUM, HALF, compressors.identity),
    ),
}
