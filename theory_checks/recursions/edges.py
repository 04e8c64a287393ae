"""Methods on undirected graphs with variables of the edges, the unweighted Laplacian or accelerated
gossip. `A[i, j]` is 1 if i and j are neighbours.
"""

from __future__ import annotations

import math

import numpy as np

from theory_checks.recursions.shared import Gradients, Rounds, Step


def local_admm(
    X: np.ndarray,
    G: Gradients,
    A: np.ndarray,
    step: Step,
    tau: int,
    rho: float,
    beta: float,
) -> Rounds:
    """LT-ADMM: Ren, Bastianello, Johansson and Parisini, 2024. `z[i, j]` is i's variable of the
    edge to j; it starts at rho x_0.
    """
    N, degrees, t = len(X), A.sum(axis=1), 0
    z = rho * A[:, :, None] * X[:, None]
    while True:
        phi, correction = X, rho * degrees[:, None] * X - z.sum(axis=1)
        for h in range(tau):
            phi = phi + step(G(t, phi)) - beta * correction
            t += 1
            if h + 1 < tau:
                yield {"params": phi, "z": z}
        X = phi
        message = z - 2 * rho * X[:, None]
        z = np.array(
            [
                [(z[i, j] - message[j, i]) / 2 if A[i, j] else 0 * X[i] for j in range(N)]
                for i in range(N)
            ]
        )
        yield {"params": X, "z": z}


def linearized_admm(X: np.ndarray, G: Gradients, A: np.ndarray, step: Step, rho: float) -> Rounds:
    """DLM with equal step sizes: Ling, Shi, Wu and Ribeiro, 2015. The dual variables are those that
    the method has used in the round.
    """
    L, Y, t = np.diag(A.sum(axis=1)) - A, np.zeros_like(X), 0
    while True:
        used = Y
        X = X + step(G(t, X) + rho * L @ X + Y)
        Y = Y + rho * L @ X
        t += 1
        yield {"params": X, "correction": used}


def relayed(X: np.ndarray, G: Gradients, A: np.ndarray, step: Step) -> Rounds:
    """RelaySGD on a tree: Vogels et al., 2021. `m[i, j]` is the last message from i to j, and
    `c[i, j]` its count. The symbols have the receiver first.
    """
    N, first, t = len(X), X, 0
    m, c = np.zeros((N, N, X.shape[1])), np.zeros((N, N), int)
    while True:
        Y = X + step(G(t, X))
        new, count = np.zeros_like(m), np.zeros_like(c)
        for i in range(N):
            for j in np.flatnonzero(A[i]):
                others = [k for k in np.flatnonzero(A[i]) if k != j]
                new[i, j] = Y[i] + sum(m[k, i] for k in others)
                count[i, j] = 1 + sum(c[k, i] for k in others)
        m, c = new, count
        number = 1 + c.sum(axis=0)
        X = (Y + m.sum(axis=0) + (N - number)[:, None] * first) / N
        t += 1
        yield {"params": X, "messages": m.swapaxes(0, 1), "counts": c.T}


def chebyshev(X: np.ndarray, W: np.ndarray, K: int, low: float, high: float) -> np.ndarray:
    """Returns X after K accelerated exchanges: Scaman et al., 2017, algorithm 2.

    Args:
        X: `[N, d]`.
        W: mixing matrix.
        K: number of exchanges.
        low, high: extreme eigenvalues of I - W but 0.
    """
    eye, chi = np.eye(len(W)), high / low
    c2, c3 = (chi + 1) / (chi - 1), 2 / (low + high)
    C = c2 * (eye - c3 * (eye - W))
    a, last, Y, before = c2, 1.0, C @ X, X
    for _ in range(K - 1):
        a, last = 2 * c2 * a - last, a
        Y, before = 2 * C @ Y - before, Y
    return Y / a


def accelerated_gossip(X: np.ndarray, G: Gradients, W: np.ndarray, step: Step, K: int) -> Rounds:
    """Decentralized SGD with K accelerated exchanges in each round."""
    low, high = _gaps(W)
    t = 0
    while True:
        X = chebyshev(X + step(G(t, X)), W, K, low, high)
        t += 1
        yield {"params": X}


def optimal(X: np.ndarray, exact: Gradients, W: np.ndarray, L: float, mu: float) -> Rounds:
    """OPAPC: Kovalev, Salim and Richtárik, 2020, with the steps for the spectrum of I - W_T, in
    terms of c_1.
    """
    low, high = _gaps(W)
    root = math.sqrt(high / low)
    T, c = exchanges(W), (root - 1) / (root + 1)
    tau = min(1.0, (1 + c**T) / (2 * (1 - c**T) * math.sqrt(L / mu)))
    eta = 1 / (4 * tau * L)
    theta = (1 + c ** (2 * T)) / (eta * (1 + c**T) ** 2)
    x_f, Y, t = X, np.zeros_like(X), 0
    while True:
        x_g = tau * X + (1 - tau) * x_f
        slope = exact(t, x_g) - mu * x_g
        U = (X - eta * (slope + Y)) / (1 + eta * mu)
        Y = Y + theta * (U - chebyshev(U, W, T, low, high))
        before, X = X, (X - eta * (slope + Y)) / (1 + eta * mu)
        x_f = x_g + 2 * tau / (2 - tau) * (X - before)
        t += 1
        yield {"params": X, "x_f": x_f, "correction": Y}


def exchanges(W: np.ndarray) -> int:
    """Returns T, the number of OPAPC's exchanges in a round."""
    low, high = _gaps(W)
    return math.floor(math.sqrt(high / low))


def _gaps(W: np.ndarray) -> tuple[float, float]:
    """Returns the extreme eigenvalues of I - W but 0."""
    values = np.linalg.eigvalsh(np.eye(len(W)) - W)
    return float(values[1]), float(values[-1])
