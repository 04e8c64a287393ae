r"""SPARTA, $x_n \leftarrow x_n \odot (1 - M_t) + \bar x \odot M_t$ after each local step: EXO Labs,
2025. The elements M are those that the method drew; with absent workers, all.
"""

import numpy as np

from algorithms import local_sgd, sparta
from tests.methods.bits import Bits, all_reduce
from tests.methods.given import MOMENTUM, Case, Given, Rounds
from theory_checks.machinery import trajectories
from theory_checks.machinery.trajectories import Trajectory

APART = True
DENSITY = 0.3


def drawn_elements(found: Trajectory) -> np.ndarray:
    """Returns the elements that are equal in all models after each round, bool `[T, d]`."""
    X = trajectories.rows(found.states.workers.params)[1:]
    return np.ptp(X, axis=1) == 0


def recursion(given: Given, density: float) -> Rounds:
    shape, X, step = (given.length, given.d), given.X, given.step()
    M = np.ones(shape, bool) if given.found is None else drawn_elements(given.found)
    number = sum(int(np.ceil(density * size)) for size in given.layers)
    assert (M.sum(axis=1) == number).all()
    for t in given.rounds:
        X, S = X + step(given.G(t, X), given.present(t)), given.contributes(t)
        X = np.where(M[t], X[S].mean(axis=0), X) if S.any() else X
        yield {"params": X} | given.all_reduce(t, number * given.word)


def bits(t: int, N: int, d: int) -> Bits:
    return all_reduce(N, -(-d // 5))


CASES = {
    "": Case(
        lambda given: sparta(given.optimizer, DENSITY),
        lambda given: recursion(given, DENSITY),
        optimizer="momentum",
    ),
    "absent": Case(
        lambda given: sparta(given.optimizer, 1.0),
        lambda given: recursion(given, 1.0),
        optimizer="momentum",
        absent=True,
    ),
}
EQUALS = {
    "all elements": (lambda: sparta(MOMENTUM, 1.0), lambda: local_sgd(MOMENTUM, 1)),
}
