"""Methods on graphs with corrected local steps. `W(t)` is the matrix of the t-th exchange."""

from __future__ import annotations

import numpy as np

from theory_checks.recursions.shared import Gradients, Matrices, Rounds


def k_gt(
    X: np.ndarray, G: Gradients, W: Matrices, gamma: float, K: int, eta: float = 1.0
) -> Rounds:
    r"""K-GT; "correction" is $-K \gamma c$.

    Args:
        K: number of local steps between two exchanges.
        eta: the consensus step.

    Source: Liu et al., "Decentralized gradient tracking with local steps", 2024.
    """
    c, t, exchanges = np.zeros_like(X), 0, 0
    while True:
        y = X
        for k in range(K):
            y = y - gamma * (G(t, y) + c)
            t += 1
            if k + 1 < K:
                yield {"params": y, "start": X, "correction": -K * gamma * c}
        z = (X - y) / (K * gamma)
        c = c - z + W(exchanges) @ z
        X = W(exchanges) @ (X - K * gamma * eta * z)
        exchanges += 1
        yield {"params": X, "start": X, "correction": -K * gamma * c}


def led(X: np.ndarray, G: Gradients, W: Matrices, gamma: float, tau: int, beta: float) -> Rounds:
    """Local exact diffusion; "correction" is -y.

    Args:
        tau: number of local steps between two exchanges.
        beta: the step of the correction.

    Source: Alghunaim, "Local exact-diffusion for decentralized optimization and learning", 2024.
    """
    y, t = np.zeros_like(X), 0
    while True:
        phi = X
        for k in range(tau):
            phi = phi - gamma * G(t, phi) - beta * y
            t += 1
            if k + 1 < tau:
                yield {"params": phi, "correction": -y}
        X = W(0) @ phi
        y = y + phi - X
        yield {"params": X, "correction": -y}


def prox_skip(
    X: np.ndarray,
    G: Gradients,
    W: Matrices,
    gamma: float,
    p: float,
    chi: float,
    coins: np.ndarray,
) -> Rounds:
    """Decentralized ProxSkip; "correction" is -Y / p.

    Args:
        p: probability of an exchange.
        chi: W_a = I - (I - W) / (2 chi).
        coins: theta, bool `[T]`.

    Source: Guo et al., "Revisiting decentralized ProxSkip", 2023.
    """
    Y, eye = np.zeros_like(X), np.eye(len(X))
    W_a = eye - (eye - W(0)) / (2 * chi)
    for t, coin in enumerate(coins):
        Z = X - gamma * G(t, X) - Y
        X = W_a @ Z if coin else Z
        Y = Y + p * (Z - X)
        yield {"params": X, "correction": -Y / p}
