"""OPAPC: Kovalev, Salim and Richtárik, 2020, algorithm 3, with the steps for the spectrum of
I - W_T, in terms of c_1.
"""

import math

import numpy as np

from algorithms import opapc
from tests.methods.bits import Bits, ring_bits
from tests.methods.given import Case, Given, Rounds

L, MU = 1.3, 0.1


def gaps(W: np.ndarray) -> tuple[float, float]:
    """Returns the extreme eigenvalues of I - W but 0."""
    values = np.linalg.eigvalsh(np.eye(len(W)) - W)
    return float(values[1]), float(values[-1])


def chebyshev(X: np.ndarray, W: np.ndarray, K: int) -> np.ndarray:
    """Returns X after K accelerated exchanges: Scaman et al., 2017, algorithm 2.

    Args:
        X: `[N, d]`.
        W: mixing matrix.
        K: number of exchanges.
    """
    (low, high), eye = gaps(W), np.eye(len(W))
    c2, c3 = (high + low) / (high - low), 2 / (low + high)
    C = c2 * (eye - c3 * (eye - W))
    a, last, Y, before = c2, 1.0, C @ X, X
    for _ in range(K - 1):
        a, last = 2 * c2 * a - last, a
        Y, before = 2 * C @ Y - before, Y
    return Y / a


def recursion(given: Given) -> Rounds:
    W = given.W(0)
    low, high = gaps(W)
    root = math.sqrt(high / low)
    T, c = math.floor(root), (root - 1) / (root + 1)
    tau = min(1.0, (1 + c**T) / (2 * (1 - c**T) * math.sqrt(L / MU)))
    eta = 1 / (4 * tau * L)
    theta = (1 + c ** (2 * T)) / (eta * (1 + c**T) ** 2)
    X, x_f, Y = given.X, given.X, np.zeros_like(given.X)
    for t in given.rounds:
        x_g = tau * X + (1 - tau) * x_f
        slope = given.exact(t, x_g) - MU * x_g
        U = (X - eta * (slope + Y)) / (1 + eta * MU)
        Y = Y + theta * (U - chebyshev(U, W, T))
        before, X = X, (X - eta * (slope + Y)) / (1 + eta * MU)
        x_f = x_g + 2 * tau / (2 - tau) * (X - before)
        yield {"params": X, "x_f": x_f, "correction": Y} | given.to_neighbours(t, T * given.model)


def bits(t: int, N: int, d: int) -> Bits:
    # The eigenvalues of I - W are 2/3 (1 - cos(2 pi k / N)).
    values = 1 - np.cos(2 * np.pi * np.arange(1, N) / N)
    return math.floor(math.sqrt(values.max() / values.min()) + 1e-9) * ring_bits(N, d)


CASES = {"": Case(lambda given: opapc(given.graph, L, MU), recursion, "irregular")}
