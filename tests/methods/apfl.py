"""APFL: Deng et al., 2020, algorithm 1, with adaptive mixtures."""

from functools import partial

import numpy as np

import algorithms
from algorithms import apfl
from tests.methods import fed_avg
from tests.methods.fed_avg import H
from tests.methods.given import SGD, Case, Given, Rounds, T, personal, two_gradients

ALPHA, STEP = 0.3, 0.02


def recursion(given: Given) -> Rounds:
    x, Y, V, steps = given.x, given.X, given.X, (given.step(), given.step())
    alpha = np.full((given.N, 1), ALPHA)
    for t in given.rounds:
        here, sent = given.present(t), given.nothing()
        at_mixture = given.G(t, alpha * V + (1 - alpha) * Y)
        slope = np.sum((V - Y) * at_mixture, axis=1, keepdims=True)
        Y = Y + steps[0](given.G(t, Y), here)
        V = V + steps[1](alpha * at_mixture, here)
        alpha = np.where(here, np.clip(alpha - STEP * slope, 0, 1), alpha)
        if (t + 1) % H == 0:
            x = given.mean(t, Y) if given.contributes(t).any() else x
            Y, steps = np.tile(x, (given.N, 1)), (given.step(), given.step())
            sent = given.to_server(t, given.model, given.model)
        mixed = alpha * V + (1 - alpha) * Y
        own = {"mixture": alpha[:, 0], "local": V, "personal": mixed}
        yield {"params": Y, "server": x} | own | sent


bits = fed_avg.bits
CASES = {
    title: Case(
        lambda given: apfl(given.optimizer, H, ALPHA, STEP),
        recursion,
        optimizer="momentum",
        absent=title == "absent",
        symbols={
            "server": "server.params",
            "local": "workers.memory.params",
            "mixture": "workers.memory.mixture",
            "personal": personal(apfl(SGD, H, ALPHA, STEP)),
        },
        place=partial(two_gradients, np.ones(T, bool)) if title else None,
    )
    for title in ("", "absent")
}
EQUALS = {
    "the common model": (lambda: apfl(SGD, 4, 0.3, 0.2), lambda: algorithms.fed_avg(SGD, 4)),
}
