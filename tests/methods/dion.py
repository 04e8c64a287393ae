"""Dion, from the right factor Q `[inputs, r]`; biases make the same step with the mean gradient:
Ahn, Xu, Abreu and Langford, 2025, algorithm 1; microsoft/dion, `dion_simple.py`.
"""

import numpy as np

from algorithms import dion
from tests.methods import powersgd
from tests.methods.given import Case, Given, Rounds
from tests.methods.powersgd import INPUTS, OUTPUTS, first_factor, gram, gram_schmidt, join, split

MU = 0.9


def recursion(given: Given) -> Rounds:
    x, Q, step = given.x, first_factor(given), given.step()
    M = np.zeros((given.N, OUTPUTS, INPUTS))
    for t in given.rounds:
        biases, gradients = split(given.gradients_at(t, x))
        M = M + gradients
        P = gram_schmidt(np.mean([each @ Q for each in M], axis=0))
        R = np.mean([each.T @ P for each in M], axis=0)
        M = M - (1 - MU) * P @ R.T
        Q = R / (np.sqrt(np.sum(R**2, axis=0)) + 1e-8)
        x = x + step(join(biases.mean(axis=0), np.sqrt(OUTPUTS / INPUTS) * P @ Q.T))
        yield {"x": x, "M": M, "Q Q^T": Q @ Q.T}


bits = powersgd.bits
CASES = {
    "": Case(
        lambda given: dion(given.optimizer, 0.5, MU),
        recursion,
        optimizer="momentum",
        symbols={"M": lambda found: found.states.workers[0], "Q Q^T": gram},
    )
}
