"""Compressed differences of gradients: three-point compressors and MARINA. Randomness is passed as
coins, and as the clients drawn.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from theory_checks.recursions.compressed import Q
from theory_checks.recursions.shared import Gradients, Rounds, Step, at_one

# (t, x, h, y), vectors of one worker -> C_{h,y}(x)
ThreePoint = Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def three_point(x: np.ndarray, G: Gradients, N: int, step: Step, C: ThreePoint) -> Rounds:
    """3PC: Richtarik et al., 2022. The estimates start at 0; the first y is the first gradient."""
    h, y, t = np.zeros((N, len(x))), at_one(G, 0, x, N), 0
    while True:
        g = at_one(G, t, x, N)
        h = np.array([C(t, g[n], h[n], y[n]) for n in range(N)])
        x, y, t = x + step(h.mean(axis=0)), g, t + 1
        yield {"x": x, "h": h, "y": y, "g": h.mean(axis=0)}


def ef21(q: Q) -> ThreePoint:
    """EF21: Richtarik et al., 2021."""
    return lambda t, x, h, y: h + q(x - h)


def lag(zeta: float) -> ThreePoint:
    """LAG: Chen et al., 2018."""
    return lambda t, x, h, y: x if np.sum((x - h) ** 2) > zeta * np.sum((x - y) ** 2) else h


def clag(q: Q, zeta: float) -> ThreePoint:
    """CLAG: Richtarik et al., 2022, as v1 to v5."""

    def C(t, x, h, y):
        return h + q(x - h) if np.sum((x - h) ** 2) > zeta * np.sum((x - y) ** 2) else h

    return C


def v1(q: Q) -> ThreePoint:
    """3PCv1."""
    return lambda t, x, h, y: y + q(x - y)


def v2(q: Q, unbiased: Q) -> ThreePoint:
    """3PCv2."""

    def C(t, x, h, y):
        b = h + unbiased(x - y)
        return b + q(x - b)

    return C


def v3(q: Q, first: ThreePoint) -> ThreePoint:
    """3PCv3."""

    def C(t, x, h, y):
        b = first(t, x, h, y)
        return b + q(x - b)

    return C


def v4(first: Q, second: Q) -> ThreePoint:
    """3PCv4."""

    def C(t, x, h, y):
        b = h + first(x - h)
        return b + second(x - b)

    return C


def v5(unbiased: Q, coins: np.ndarray) -> ThreePoint:
    """3PCv5.

    Args:
        coins: the rounds that send whole gradients, bool `[T]`.
    """
    return lambda t, x, h, y: x if coins[t] else h + unbiased(x - y)


def marina(
    x: np.ndarray,
    G: Gradients,
    exact: Gradients,
    N: int,
    step: Step,
    q: Q,
    coins: np.ndarray,
    drawn: np.ndarray,
) -> Rounds:
    """VR-MARINA, and with G = exact MARINA; with clients PP-MARINA: Gorbunov et al., 2021.

    Args:
        G: G(t, X) has draw t, the same at both models.
        q: the unbiased compressor.
        coins: the rounds that send whole gradients, bool `[T]`.
        drawn: the clients that send in the other rounds, bool `[T, N]`.
    """
    g, before = np.zeros_like(x), x
    for t, coin in enumerate(coins):
        if coin:
            g = at_one(exact, t, x, N).mean(axis=0)
        else:
            differences = at_one(G, t, x, N) - at_one(G, t, before, N)
            g = g + np.mean([q(differences[n]) for n in np.flatnonzero(drawn[t])], axis=0)
        before, x = x, x + step(g)
        yield {"x": x, "g": g}
