"""SCAFFOLD: Karimireddy et al., 2020, algorithm 1, option II, with a global step size of 1; control
variates are means of gradients. If a worker misses a round, its control variate replaces the
gradient.
"""

import numpy as np

from algorithms import scaffold
from tests.methods.bits import Bits, all_reduce, period_end
from tests.methods.given import Case, Given, Rounds

H = 2


def recursion(given: Given) -> Rounds:
    Y, step, c = given.X, given.step(), np.zeros_like(given.x)
    own, total = np.zeros_like(given.X), np.zeros_like(given.X)
    for t in given.rounds:
        g, here, S, exchange = (
            given.G(t, Y),
            given.present(t),
            given.contributes(t),
            given.nothing(),
        )
        total = total + np.where(here, g, own)
        Y = Y + step(g - own + c, here)
        if (t + 1) % H == 0:
            new = np.where(S[:, None], total / H, own)
            c, own, total = c + (new - own).mean(axis=0), new, np.zeros_like(total)
            Y = np.tile(Y[S].mean(axis=0), (given.N, 1)) if S.any() else Y
            exchange = given.all_reduce(t, 2 * given.model)
        yield {"params": Y, "control": own, "c": c} | exchange


def bits(t: int, N: int, d: int) -> Bits:
    return period_end(t, all_reduce(N, 2 * d))


CASES = {
    title: Case(
        lambda given: scaffold(given.optimizer, H),
        recursion,
        symbols={"c": "server"},
        absent=title == "absent",
    )
    for title in ("", "absent")
}
