"""Kimad's allocation of a bit budget to layers: its dynamic program, in numpy."""

from __future__ import annotations

import numpy as np


def knapsack(
    errors: np.ndarray, sizes: np.ndarray, budget: int, R: int
) -> tuple[np.ndarray, float]:
    r"""Computes $F_i(b) = \min_j F_{i-1}(b - w_{ij}) + \varepsilon_{ij}$, $F_0 = 0$, with $w_{ij} =
    \lceil b_{ij} R / c \rceil$.

    Args:
        errors: $\varepsilon$, `[layers, choices]`.
        sizes: b, bits, `[layers, choices]`.
        budget: c, bits, at least 1.
        R: number of units of the budget.

    Returns:
        The choice of each layer, and $F_l(R)$, which is infinite, with arbitrary choices, if no
        choices fit.

    Source: Xin et al., "Kimad: Adaptive gradient compression with bandwidth awareness", algorithm
    4, with exact errors, and with the first layer treated like all others.
    """
    units = -(-sizes.astype(np.int64) * R // budget)
    F = [np.zeros(R + 1)]
    for layer, of_layer in zip(errors, units, strict=True):
        best = np.full(R + 1, np.inf)
        for error, w in zip(layer, of_layer, strict=True):
            best[w:] = np.minimum(best[w:], F[-1][: max(R + 1 - w, 0)] + error)
        F.append(best)
    b, choices = R, []
    for before, layer, of_layer in zip(F[-2::-1], errors[::-1], units[::-1], strict=True):
        j = min(
            range(len(layer)),
            key=lambda j: before[b - of_layer[j]] + layer[j] if of_layer[j] <= b else np.inf,
        )
        choices.append(j)
        b -= of_layer[j]
    return np.array(choices[::-1]), float(F[-1][R])
