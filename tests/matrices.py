"""Mixing matrices by hand, and what is known of them."""

from __future__ import annotations

import numpy as np


def circulant(n: int, weights: dict[int, float]) -> np.ndarray:
    """The weights by shift, both ways; what is left of 1 stays on the diagonal."""
    W = np.zeros((n, n))
    for shift, weight in weights.items():
        for s in {shift % n, -shift % n}:
            W += weight * np.roll(np.eye(n), s, axis=0)
    return W + np.eye(n) * (1 - W[0].sum())


def second_largest(W: np.ndarray) -> float:
    """|eigenvalue|, by numpy's general solver, which does not know that W is symmetric."""
    return np.sort(np.abs(np.linalg.eigvals(W)))[-2]
