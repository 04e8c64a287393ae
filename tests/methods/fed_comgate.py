r"""FedCOMGATE: Haddadpour et al., 2021; messages are multiplied by $\gamma$."""

import numpy as np

from algorithms import fed_comgate, scaffold
from dsgd import Algorithm, compressors
from tests.methods import fed_paq
from tests.methods.compressors import SHORT, SHORTS, declare_unbiased
from tests.methods.fed_avg import H
from tests.methods.given import GAMMA, SGD, Case, Given, Rounds, Setting

ETA = 0.8


def recursion(given: Given) -> Rounds:
    x, Y, step = given.x, given.X, given.step()
    delta = np.zeros_like(Y)
    for t in given.rounds:
        Y, sent = Y + step(given.G(t, Y) - delta, given.present(t)), given.nothing()
        if (t + 1) % H == 0:
            S, q = given.contributes(t), SHORTS(given, x - Y)
            if S.any():
                mean = q[S].mean(axis=0)
                delta = np.where(S[:, None], delta + (q - mean) / (H * given.gamma), delta)
                x = x - ETA * mean
            Y, sent = np.tile(x, (given.N, 1)), fed_paq.short_up(given, t)
        yield {"params": Y, "memory": delta, "server": x} | sent


def method(given: Setting) -> Algorithm:
    return fed_comgate(given.gamma, H, declare_unbiased(SHORT), outer_step=ETA)


bits = fed_paq.bits
SYMBOLS = {"memory": "workers.memory", "server": "server.params"}
CASES = {
    "": Case(method, recursion, symbols=SYMBOLS),
    "absent": Case(method, recursion, absent=True, symbols=SYMBOLS),
}
EQUALS = {
    "uncompressed": (lambda: fed_comgate(GAMMA, 4, compressors.identity), lambda: scaffold(SGD, 4)),
}
