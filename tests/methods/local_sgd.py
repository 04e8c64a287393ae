"""Local SGD: Stich, 2019, algorithm 1; on graphs: Koloskova et al., 2020, where a schedule advances
with each averaging.
"""

import numpy as np

from algorithms import local_sgd
from tests.methods.bits import Bits, all_reduce, period_end
from tests.methods.given import Case, Given, Rounds

APART, H, FEW = True, 3, 2


def recursion(given: Given, period: int) -> Rounds:
    X, step = given.X, given.step()
    for t in given.rounds:
        X, S = X + step(given.G(t, X), given.present(t)), given.contributes(t)
        if (t + 1) % period:
            yield {"params": X} | given.nothing()
        elif given.graphs:
            turn = (t + 1) // period - 1
            X = given.W(t, turn) @ X
            yield {"params": X} | given.to_neighbours(t, given.model, turn)
        else:
            X = np.tile(X[S].mean(axis=0), (given.N, 1)) if S.any() else X
            yield {"params": X} | given.all_reduce(t, given.model)


def bits(t: int, N: int, d: int) -> Bits:
    return period_end(t, all_reduce(N, d))


CASES = {
    title: Case(
        lambda given: local_sgd(given.optimizer, H),
        lambda given: recursion(given, H),
        optimizer="momentum",
        absent=title == "absent",
    )
    for title in ("", "absent")
} | {
    title: Case(
        lambda given: local_sgd(given.optimizer, FEW, given.graph),
        lambda given: recursion(given, FEW),
        graph,
        absent=graph == "ring",
    )
    for title, graph in (("schedule", "one peer"), ("ring, absent", "ring"))
}
