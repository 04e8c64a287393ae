"""Proximal gradient methods, for problems with a regularizer that all workers know. `W` is the
mixing matrix, symmetric and the same in all rounds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from theory_checks.recursions.shared import Gradients, Rounds, at_one

# (x [...], steps of the same shape or scalar) -> the proximal step
Prox = Callable[[np.ndarray, np.ndarray | float], np.ndarray]


def soft_threshold(penalty: float) -> Prox:
    r"""Returns the proximal step of $\lambda |x|_1$."""

    def prox(x, step):
        return np.where(np.abs(x) > step * penalty, x - step * penalty * np.sign(x), 0)

    return prox


def gradient(x: np.ndarray, G: Gradients, N: int, gamma: float, prox: Prox) -> Rounds:
    r"""Proximal gradient method, $x_{t+1} = \mathrm{prox}_{\gamma r}(x_t - \gamma g_t)$: Beck and
    Teboulle, 2009.
    """
    t = 0
    while True:
        x = prox(x - gamma * at_one(G, t, x, N).mean(axis=0), gamma)
        t += 1
        yield {"x": x}


def extra(X: np.ndarray, G: Gradients, W: np.ndarray, gamma: float, prox: Prox) -> Rounds:
    """PG-EXTRA: Shi et al., "A proximal gradient algorithm for decentralized composite
    optimization", 2015.
    """
    last, eye = G(0, X), np.eye(len(X))
    half = W @ X - gamma * last
    before, X, t = X, prox(half, gamma), 1
    yield {"params": X}
    while True:
        g = G(t, X)
        half = W @ X + half - (eye + W) / 2 @ before - gamma * (g - last)
        before, X, last = X, prox(half, gamma), g
        t += 1
        yield {"params": X}


def nids(
    X: np.ndarray, G: Gradients, W: np.ndarray, gamma: np.ndarray, c: float, prox: Prox
) -> Rounds:
    """NIDS: Li, Shi and Yan, 2019.

    Args:
        gamma: step size of each worker, `[N]`.
    """
    steps = gamma[:, None]
    mixing = np.eye(len(X)) - c * np.diag(gamma) @ (np.eye(len(X)) - W)
    last = G(0, X)
    Z = X - steps * last
    before, X, t = X, prox(Z, steps), 1
    yield {"params": X}
    while True:
        g = G(t, X)
        Z = Z - X + mixing @ (2 * X - before + steps * last - steps * g)
        before, X, last = X, prox(Z, steps), g
        t += 1
        yield {"params": X}


def adapt_then_combine(
    X: np.ndarray, G: Gradients, W: np.ndarray, gamma: float, prox: Prox
) -> Rounds:
    r"""Prox-ATC tracking: the proximal unified decentralized algorithm of Alghunaim et al., 2021,
    with $\bar A = W$ and B = C = I - W; Y is its dual variable. $\gamma$ times the trackers are
    the differences of the models and Z.
    """
    B, Y, t = np.eye(len(X)) - W, np.zeros_like(X), 0
    while True:
        Z = W @ X - gamma * G(t, X) - B @ Y
        Y = Y + B @ Z
        before, X = X, prox(W @ Z, gamma)
        t += 1
        yield {"params": X, "tracker": before - Z, "shift": W @ Z - X}
