"""Mixing matrices written by hand, and their properties."""

from __future__ import annotations

import numpy as np


def circulant(n: int, weights: dict[int, float]) -> np.ndarray:
    """Returns the circulant matrix with these weights by shift, in both directions; the remainder
    to 1 is on the diagonal.
    """
    W = np.zeros((n, n))
    for shift, weight in weights.items():
        for s in {shift % n, -shift % n}:
            W += weight * np.roll(np.eye(n), s, axis=0)
    return W + np.eye(n) * (1 - W[0].sum())


def second_largest(W: np.ndarray) -> float:
    """Returns the second largest |eigenvalue|, by numpy's general solver, which does not use
    symmetry.
    """
    return np.sort(np.abs(np.linalg.eigvals(W)))[-2]
