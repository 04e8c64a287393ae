"""Variance-reduced gradients, with a server and in gradient tracking. `W(t)` is the matrix of round
t.
"""

from __future__ import annotations

import numpy as np

from theory_checks.recursions.shared import Gradients, Matrices, Rounds, Step, at_one


def svrg(
    X: np.ndarray, G: Gradients, exact: Gradients, W: Matrices, step: Step, period: int
) -> Rounds:
    """GT-SVRG: Xin, Khan and Kar, 2020. G(t, X) has draw t, the same at the models and at the
    snapshot.
    """
    S, Y, V, t = X, np.zeros_like(X), np.zeros_like(X), 0
    while True:
        if t % period == 0:
            S = X
        last, V = V, G(t, X) - G(t, S) + exact(t, S)
        Y = W(t) @ (Y + V - last)
        X = W(t) @ (X + step(Y))
        t += 1
        yield {"params": X, "tracker": Y, "gradient": V}


def sarah(
    X: np.ndarray, G: Gradients, exact: Gradients, W: Matrices, step: Step, period: int
) -> Rounds:
    """GT-SARAH: Xin, Khan and Kar, 2022. Trackers are mixed by the round's matrix, as the models
    are.
    """
    Y, V, before, t = np.zeros_like(X), np.zeros_like(X), X, 0
    while True:
        last = V
        V = exact(t, X) if t % period == 0 else V + G(t, X) - G(t, before)
        Y = W(t) @ Y + V - last
        before, X = X, W(t) @ X + step(Y)
        t += 1
        yield {"params": X, "tracker": Y, "gradient": V}


def hsgd(
    X: np.ndarray, G: Gradients, exact: Gradients, W: Matrices, step: Step, beta: float
) -> Rounds:
    """GT-HSGD: Xin, Khan and Kar, 2021, with exact gradients in the first round."""
    Y, V, before, t = np.zeros_like(X), np.zeros_like(X), X, 0
    while True:
        last = V
        V = G(t, X) + (1 - beta) * (V - G(t, before)) if t else exact(t, X)
        Y = W(t) @ (Y + V - last)
        before, X = X, W(t) @ (X + step(Y))
        t += 1
        yield {"params": X, "tracker": Y, "gradient": V}


def page(
    x: np.ndarray, G: Gradients, exact: Gradients, N: int, step: Step, coins: np.ndarray
) -> Rounds:
    """PAGE: Li, Bao, Zhang and Richtarik, 2021.

    Args:
        coins: whether the estimates are exact, bool `[T]`.
    """
    V, before = np.zeros((N, len(x))), x
    for t, coin in enumerate(coins):
        changed = V + at_one(G, t, x, N) - at_one(G, t, before, N)
        V = at_one(exact, t, x, N) if coin else changed
        before, x = x, x + step(V.mean(axis=0))
        yield {"x": x}


def loopless_svrg(
    x: np.ndarray, G: Gradients, exact: Gradients, N: int, step: Step, coins: np.ndarray
) -> Rounds:
    """L-SVRG: Kovalev, Horvath and Richtarik, 2020, with snapshots that are renewed before the
    step.

    Args:
        coins: whether the snapshot is renewed, bool `[T]`.
    """
    w = x
    for t, coin in enumerate(coins):
        w = x if coin else w
        V = at_one(G, t, x, N) - at_one(G, t, w, N) + at_one(exact, t, w, N)
        x = x + step(V.mean(axis=0))
        yield {"x": x, "w": w}
