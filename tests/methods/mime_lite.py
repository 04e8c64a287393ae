r"""MimeLite with momentum, $\mathcal U(g, m) = g + \beta m$, $\mathcal V(c, m) = c + \beta m$:
Karimireddy et al., 2020, algorithm 1. A client's first local gradient in a period is that at x.
"""

import numpy as np

from algorithms import fed_avg, mime_lite, minibatch_sgd
from dsgd import Algorithm
from tests.methods.bits import FLOAT, Bits, period_end
from tests.methods.fed_avg import H
from tests.methods.given import MOMENTUM, SGD, Case, Given, Rounds, Setting

ETA, BETA = 0.8, 0.9


def recursion(given: Given) -> Rounds:
    x, Y, m = given.x, given.X, np.zeros(given.d)
    first, known = np.zeros_like(Y), np.zeros((given.N, 1), bool)
    for t in given.rounds:
        g, here, sent = given.G(t, Y), given.present(t), given.nothing()
        first, known = np.where(here & ~known, g, first), known | here
        Y = np.where(here, Y - given.gamma * (g + BETA * m), Y)
        if (t + 1) % H == 0:
            S = given.contributes(t)
            if S.any():
                x, m = x + ETA * (Y[S].mean(axis=0) - x), first[S].mean(axis=0) + BETA * m
            Y, known = np.tile(x, (given.N, 1)), np.zeros_like(known)
            sent = given.to_server(t, 2 * given.model, 2 * given.model)
        yield {"params": Y, "server": x, "momentum": m} | sent


def method(given: Setting) -> Algorithm:
    return mime_lite(given.optimizer, H, ETA)


def bits(t: int, N: int, d: int) -> Bits:
    return period_end(t, 2 * d * FLOAT)  # of model and gradient


SYMBOLS = {"server": "server.params", "momentum": "server.optimizer.trace"}
CASES = {
    "": Case(method, recursion, optimizer="momentum", symbols=SYMBOLS),
    "absent": Case(method, recursion, optimizer="momentum", absent=True, symbols=SYMBOLS),
}
EQUALS = {
    "no momentum": (lambda: mime_lite(SGD, 4), lambda: fed_avg(SGD, 4)),
    "one step": (lambda: mime_lite(MOMENTUM, 1), lambda: minibatch_sgd(MOMENTUM)),
}
