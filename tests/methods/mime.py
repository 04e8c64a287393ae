"""Mime with momentum: Karimireddy et al., 2020, algorithm 1. The two gradients of a step have the
same draw; c is the mean of exact gradients of the clients in the first round of a period.
"""

from functools import partial

import numpy as np

from algorithms import gradient_descent, mime
from tests.methods.bits import FLOAT, Bits
from tests.methods.given import MOMENTUM, Case, Given, Rounds, T, add, two_gradients
from tests.methods.mime_lite import BETA, ETA, SYMBOLS

CANCELS = True  # differences of two gradients of a draw have no noise on quadratics


def recursion(given: Given, H: int) -> Rounds:
    x, Y, m, c = given.x, given.X, np.zeros(given.d), np.zeros(given.d)
    for t in given.rounds:
        S, start, sent = given.contributes(t), np.tile(x, (given.N, 1)), given.nothing()
        model = given.to_server(t, given.model, given.model)
        if t % H == 0:
            c = given.exact(t, start)[S].mean(axis=0) if S.any() else c
            sent = model
        g = given.G(t, Y) - given.G(t, start) + c + BETA * m
        Y = np.where(given.present(t), Y - given.gamma * g, Y)
        if (t + 1) % H == 0:
            if S.any():
                x, m = x + ETA * (Y[S].mean(axis=0) - x), c + BETA * m
            Y, sent = np.tile(x, (given.N, 1)), add(sent, model)
        yield {"params": Y, "server": x, "momentum": m} | sent


def case(H: int, absent: bool = False) -> Case:
    return Case(
        lambda given: mime(given.optimizer, H, ETA),
        lambda given: recursion(given, H),
        optimizer="momentum",
        absent=absent,
        symbols=SYMBOLS,
        place=partial(two_gradients, np.arange(T) % H != 0) if absent else None,
    )


def bits(t: int, N: int, d: int) -> Bits:
    return d * FLOAT if t % 4 in (0, 3) else 0


# With absent workers no message arrives in some last rounds of three, and in some first of four.
CASES = {"": case(3), "absent": case(3, absent=True), "absent, longer": case(4, absent=True)}
EQUALS = {
    "one step": (lambda: mime(MOMENTUM, 1), lambda: gradient_descent(MOMENTUM)),
}
