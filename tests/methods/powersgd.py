"""PowerSGD with error feedback, from the right factor Q `[inputs, r]`; biases make the same step
with the mean gradient: Vogels, Karimireddy and Jaggi, 2019, algorithms 1 and 2.
"""

import numpy as np

from algorithms import powersgd, powersgd_momentum
from tests.methods import steps
from tests.methods.bits import Bits, all_reduce
from tests.methods.given import Case, Given, Rounds
from tests.methods.steps import Step
from theory_checks.machinery.trajectories import WEIGHTS

INPUTS, OUTPUTS = WEIGHTS


def split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the biases, `[..., d - inputs outputs]`, and the kernel's matrix; its rows are the
    output features: `[..., outputs, inputs]`.
    """
    size = INPUTS * OUTPUTS
    kernel = x[..., -size:].reshape(*x.shape[:-1], INPUTS, OUTPUTS)
    return x[..., :-size], np.swapaxes(kernel, -1, -2)


def join(biases: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Returns the vector of these two layers."""
    return np.concatenate([biases, matrix.T.ravel()])


def gram_schmidt(matrix: np.ndarray) -> np.ndarray:
    """Orthonormalizes columns, one after the other."""
    basis: list[np.ndarray] = []
    for column in matrix.T:
        rest = column - sum((b @ column) * b for b in basis)
        basis.append(rest / np.linalg.norm(rest))
    return np.stack(basis, axis=1)


def first_factor(given: Given) -> np.ndarray:
    """Returns a right factor from which one power iteration yields the factor that the method has
    after the first round. The method draws its own and does not store it.
    """
    gradient = split(given.G(0, given.X))[1].mean(axis=0)
    return np.linalg.pinv(gradient) @ np.linalg.pinv(gradient.T) @ given.found.states.server.Q[0][1]


def recursion(given: Given, step: Step | None = None) -> Rounds:
    x, Q, step = given.x, first_factor(given), step or given.step()
    e = np.zeros((given.N, OUTPUTS, INPUTS))
    for t in given.rounds:
        biases, D = split(given.gradients_at(t, x))
        D = D + e
        P = gram_schmidt(np.mean([each @ Q for each in D], axis=0))
        Q = np.mean([each.T @ P for each in D], axis=0)
        delta = P @ Q.T
        e = D - delta
        x = x + step(join(biases.mean(axis=0), delta))
        # the columns of P and Q are determined up to their sign
        yield {"x": x, "e": e, "Q Q^T": Q @ Q.T}


def with_momentum(given: Given) -> Rounds:
    """Steps x - gamma (delta + m): algorithm 2."""
    m = steps.momentum(given.gamma)
    return recursion(given, lambda delta: m(delta) - given.gamma * delta)


def gram(found) -> np.ndarray:
    """Returns Q Q^T of each round."""
    Q = found.states.server.Q[0]
    return Q @ np.swapaxes(Q, 1, 2)


def bits(t: int, N: int, d: int) -> Bits:
    """Of vectors, which are not compressed."""
    return all_reduce(N, d)


SYMBOLS = {"e": lambda found: found.states.workers[0], "Q Q^T": gram}
CASES = {
    "": Case(lambda given: powersgd(given.optimizer, 2), recursion, symbols=SYMBOLS),
    "rank 1, momentum": Case(
        lambda given: powersgd(powersgd_momentum(given.gamma), 1), with_momentum, symbols=SYMBOLS
    ),
}
