"""Methods that send count sketches."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from theory_checks.recursions.shared import Gradients, Rounds, Step, at_one


class Hashes(NamedTuple):
    """Hash functions of a count sketch.

    Args:
        h: counter of each element in each row, int `[r, d]`.
        s: its sign, `[r, d]`.
        columns: c.
    """

    h: np.ndarray
    s: np.ndarray
    columns: int

    def sketch(self, x: np.ndarray) -> np.ndarray:
        """Returns the counters, `[r, c]`, element by element."""
        S = np.zeros((len(self.h), self.columns))
        for j, (h, s) in enumerate(zip(self.h, self.s, strict=True)):
            for i, value in enumerate(x):
                S[j, h[i]] += s[i] * value
        return S

    def estimate(self, S: np.ndarray) -> np.ndarray:
        """Returns the median over the rows of each element's counters, `[d]`."""
        rows = [s * row[h] for h, s, row in zip(self.h, self.s, S, strict=True)]
        return np.median(rows, axis=0)


def largest(x: np.ndarray, k: int) -> np.ndarray:
    """Returns the places of the k largest magnitudes."""
    return np.argsort(-np.abs(x), kind="stable")[:k]


def sketched_sgd(
    x: np.ndarray, G: Gradients, step: Step, N: int, k: int, P: int, m: float, hashes: Hashes
) -> Rounds:
    """SketchedSGD, with means instead of sums.

    Source: Ivkin et al., "Communication-efficient distributed SGD with sketching".
    """
    u, v, t = np.zeros((N, len(x))), np.zeros((N, len(x))), 0
    while True:
        u = m * u + at_one(G, t, x, N)
        v = v + u
        S = np.mean([hashes.sketch(row) for row in v], axis=0)
        asked = largest(hashes.estimate(S), P * k)
        exact = v[:, asked].mean(axis=0)
        chosen = asked[largest(exact, k)]
        delta = np.zeros_like(x)
        delta[chosen] = v[:, chosen].mean(axis=0)
        u[:, chosen] = v[:, chosen] = 0
        x, t = x + step(delta), t + 1
        yield {"x": x, "u": u.copy(), "v": v.copy()}


def fetch_sgd(
    x: np.ndarray,
    G: Gradients,
    step: Callable,
    N: int,
    k: int,
    rho: float,
    hashes: Hashes,
    subtract: bool,
) -> Rounds:
    """FetchSGD, with the step size applied to the update.

    Source: Rothchild et al., "FetchSGD"; for the counters that are set to 0, its code,
    CommEfficient.
    """
    S_u = S_e = np.zeros((len(hashes.h), hashes.columns))
    t = 0
    while True:
        S = np.mean([hashes.sketch(g) for g in at_one(G, t, x, N)], axis=0)
        S_u = rho * S_u + S
        S_e = S_e + S_u
        estimate = hashes.estimate(S_e)
        delta = np.zeros_like(x)
        for i in largest(estimate, k):
            delta[i] = estimate[i]
        sent = hashes.sketch(delta)
        if subtract:
            S_e = S_e - sent
        else:
            S_u, S_e = np.where(sent == 0, S_u, 0), np.where(sent == 0, S_e, 0)
        x, t = x + step(delta), t + 1
        yield {"x": x, "S_u": S_u, "S_e": S_e}
