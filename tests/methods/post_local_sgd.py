"""Post-local SGD: Lin et al., 2020. Models are averaged in each of the first rounds, then every H
rounds.
"""

import numpy as np

from algorithms import local_sgd, minibatch_sgd, post_local_sgd
from tests.methods.bits import Bits, all_reduce
from tests.methods.given import MOMENTUM, Case, Given, Rounds

SWITCH, H = 2, 3


def recursion(given: Given) -> Rounds:
    x, Y, step = given.x, given.X, given.step()
    for t in given.rounds:
        Y, S = Y + step(given.G(t, Y), given.present(t)), given.contributes(t)
        averages = t < SWITCH or (t + 1 - SWITCH) % H == 0
        if averages:
            x = Y[S].mean(axis=0) if S.any() else x
            Y = np.tile(x, (given.N, 1))
        yield {"params": Y} | (given.all_reduce(t, given.model) if averages else given.nothing())


def bits(t: int, N: int, d: int) -> Bits:
    return all_reduce(N, d)


CASES = {
    title: Case(
        lambda given: post_local_sgd(given.optimizer, SWITCH, H),
        recursion,
        optimizer="momentum",
        absent=title == "absent",
    )
    for title in ("", "absent")
}
EQUALS = {
    "local at once": (lambda: post_local_sgd(MOMENTUM, 0, 4), lambda: local_sgd(MOMENTUM, 4)),
    "never local": (lambda: post_local_sgd(MOMENTUM, 10**6, 4), lambda: minibatch_sgd(MOMENTUM)),
}
