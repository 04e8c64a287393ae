"""Dion, from the right factor Q `[inputs, r]`; biases make the same step with the mean gradient:
Ahn, Xu, Abreu and Langford, 2025, algorithm 1; microsoft/dion, `dion_simple.py`.
"""

import numpy as np

from algorithms import dion, dion_with_adamw
from tests.methods import powersgd, steps
from tests.methods.given import Case, Given, Rounds
from tests.methods.powersgd import INPUTS, OUTPUTS, first_factor, gram, gram_schmidt, join, split
from tests.methods.steps import Step

MU, DECAY = 0.9, 1e-4


def recursion(given: Given, of_biases: Step | None = None, decay: float = 0.0) -> Rounds:
    """Biases make a step of their own if one is given, with this weight decay."""
    x, Q, step = given.x, first_factor(given), given.step()
    M = np.zeros((given.N, OUTPUTS, INPUTS))
    for t in given.rounds:
        biases, gradients = split(given.gradients_at(t, x))
        M = M + gradients
        P = gram_schmidt(np.mean([each @ Q for each in M], axis=0))
        R = np.mean([each.T @ P for each in M], axis=0)
        M = M - (1 - MU) * P @ R.T
        Q = R / (np.sqrt(np.sum(R**2, axis=0)) + 1e-8)
        mean = biases.mean(axis=0)
        change = step(join(mean, np.sqrt(OUTPUTS / INPUTS) * P @ Q.T))
        if of_biases is not None:
            old, _ = split(x)
            change[: mean.size] = of_biases(mean) - given.gamma * decay * old
        x = x + change
        yield {"x": x, "M": M, "Q Q^T": Q @ Q.T}


def with_adamw(given: Given) -> Rounds:
    return recursion(given, steps.adam(given.gamma), DECAY)


bits = powersgd.bits
SYMBOLS = {"M": lambda found: found.states.workers[0], "Q Q^T": gram}
CASES = {
    "": Case(
        lambda given: dion(given.optimizer, 0.5, MU),
        recursion,
        optimizer="momentum",
        symbols=SYMBOLS,
    ),
    "AdamW": Case(
        lambda given: dion(dion_with_adamw(given.gamma), 0.5, MU), with_adamw, symbols=SYMBOLS
    ),
}
