"""L-SVRG: Kovalev, Horvath and Richtarik, 2020. Snapshots w are renewed before the step."""

import numpy as np

from algorithms import gradient_descent, loopless_svrg
from tests.methods.bits import Bits, all_reduce
from tests.methods.given import SGD, Case, Given, Rounds
from tests.methods.page import coins


def recursion(given: Given) -> Rounds:
    x, w, step = given.x, given.X, given.step()
    for t, coin in enumerate(coins(given)):
        w = np.tile(x, (given.N, 1)) if coin else w
        x = x + step((given.gradients_at(t, x) - given.G(t, w) + given.exact(t, w)).mean(axis=0))
        yield {"x": x, "w": w} | given.all_reduce(t, given.model)


def bits(t: int, N: int, d: int) -> Bits:
    return all_reduce(N, d)


CASES = {
    "": Case(
        lambda given: loopless_svrg(given.optimizer, 0.4),
        recursion,
        optimizer="momentum",
        symbols={"x": "server.inner.params", "w": lambda found: found.states.workers.memory[0]},
    )
}
EQUALS = {
    "always exact": (lambda: loopless_svrg(SGD, 1.0), lambda: gradient_descent(SGD)),
}
