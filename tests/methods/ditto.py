"""Ditto: Li et al., 2021, algorithm 1, with FedAvg."""

from functools import partial

import numpy as np

import algorithms
from algorithms import ditto
from tests.methods import fed_avg
from tests.methods.fed_avg import H
from tests.methods.given import SGD, Case, Given, Rounds, T, personal, two_gradients

LAMBDA = 0.3


def recursion(given: Given) -> Rounds:
    x, Y, V, steps = given.x, given.X, given.X, (given.step(), given.step())
    for t in given.rounds:
        here, sent = given.present(t), given.nothing()
        moved = steps[0](given.G(t, Y), here)
        V = V + steps[1](given.G(t, V) + LAMBDA * (V - x), here)
        Y = Y + moved
        if (t + 1) % H == 0:
            x = given.mean(t, Y) if given.contributes(t).any() else x
            Y, steps = np.tile(x, (given.N, 1)), (given.step(), given.step())
            sent = given.to_server(t, given.model, given.model)
        yield {"params": Y, "server": x, "personal": V} | sent


bits = fed_avg.bits
CASES = {
    title: Case(
        lambda given: ditto(given.optimizer, H, LAMBDA),
        recursion,
        optimizer="momentum",
        absent=title == "absent",
        symbols={"server": "server.params", "personal": personal(ditto(SGD, H, LAMBDA))},
        place=partial(two_gradients, np.ones(T, bool)) if title else None,
    )
    for title in ("", "absent")
}
EQUALS = {
    "the common model": (lambda: ditto(SGD, 4, 0.3), lambda: algorithms.fed_avg(SGD, 4)),
}
