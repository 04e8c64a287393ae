"""FedDyn: Acar et al., 2021, algorithm 1. The clients' problems are solved by H gradient steps; a
client with a lost message keeps its memory.
"""

import numpy as np

from algorithms import fed_dyn
from dsgd import Algorithm
from tests.methods.bits import FLOAT, Bits, period_end
from tests.methods.fed_avg import H
from tests.methods.given import Case, Given, Rounds, Setting

ALPHA = 0.7


def recursion(given: Given) -> Rounds:
    x, Y, step = given.x, given.X, given.step()
    memory, h = np.zeros_like(Y), np.zeros_like(x)
    for t in given.rounds:
        Y = Y + step(given.G(t, Y) - memory + ALPHA * (Y - x), given.present(t))
        sent = given.nothing()
        if (t + 1) % H == 0:
            S = given.contributes(t)
            change = np.where(S[:, None], Y - x, 0)
            memory, h = memory - ALPHA * change, h - ALPHA / given.N * change.sum(axis=0)
            x = x + change.sum(axis=0) / S.sum() - h / ALPHA if S.any() else x
            Y, step = np.tile(x, (given.N, 1)), given.step()
            sent = given.to_server(t, given.model + given.word, given.model + given.word)
        yield {"params": Y, "memory": memory, "server": x, "h": h} | sent


def method(given: Setting) -> Algorithm:
    return fed_dyn(given.optimizer, H, ALPHA)


def bits(t: int, N: int, d: int) -> Bits:
    return period_end(t, (d + 1) * FLOAT)  # a change, and the share of clients


SYMBOLS = {"memory": "workers.memory", "server": "server.params", "h": "server.memory"}
CASES = {
    "": Case(method, recursion, optimizer="momentum", symbols=SYMBOLS),
    "absent": Case(method, recursion, optimizer="momentum", absent=True, symbols=SYMBOLS),
}
