"""Methods for training over slow links: parts of models, compressed or delayed changes, pairs of
workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from theory_checks.recursions.outer import Outer
from theory_checks.recursions.shared import Gradients, Matrices, Rounds, Step

Compress = Callable[[np.ndarray], np.ndarray]  # one vector -> the decoded vector


def e3m0(x: np.ndarray) -> np.ndarray:
    """Returns x rounded to the nearest of 0 and 1, 1/2, ..., 1/64 times its largest magnitude."""
    largest = np.abs(x).max()
    levels = largest * np.array([0.0, *(2.0**-j for j in range(7))])
    nearest = levels[np.argmin(np.abs(np.abs(x)[:, None] - levels), axis=1)]
    return np.sign(x) * nearest


def largest_of_chunks(k: int, chunk: int) -> Compress:
    """Returns the compressor that keeps the k largest elements of each chunk."""

    def compress(x):
        kept = np.zeros_like(x)
        for start in range(0, len(x), chunk):
            part = np.arange(start, min(start + chunk, len(x)))
            chosen = part[np.argsort(-np.abs(x[part]))[:k]]
            kept[chosen] = x[chosen]
        return kept

    return compress


def streaming(
    X: np.ndarray,
    G: Gradients,
    step: Step,
    H: int,
    fragments: Sequence[slice],
    offsets: Sequence[int],
    outers: Sequence[Outer],
    tau: int,
    alpha: float,
    C: Compress,
    bits: Callable[[int], int],
) -> Rounds:
    r"""Streaming DiLoCo. After inner step t, fragment p with $(t - t_p) \bmod H = 0$ is sent; the
    mean arrives $\tau$ steps later, and only then is the outer step made.

    Args:
        offsets: t_p.
        outers: the outer step of each fragment.
        bits: number of elements -> bits that a worker sends.

    Source: Douillard et al., "Streaming DiLoCo with overlapping communication", 2025, Algorithm 2.
    """
    x, t, N = X[0].copy(), 0, len(X)
    flying: dict[tuple[int, int], np.ndarray] = {}
    while True:
        X = X + step(G(t, X))
        t, sent = t + 1, 0
        for p, part in enumerate(fragments):
            if (t - offsets[p]) % H == 0:
                changes = [C(x[part] - y[part]) for y in X]
                flying[p, t + tau] = np.mean(changes, axis=0)
                sent += bits(len(x[part]))
            if (p, t) in flying:
                x[part] = outers[p](x[part], flying.pop((p, t)))
                X[:, part] = alpha * X[:, part] + (1 - alpha) * x[part]
        yield {"params": X.copy(), "bits up": np.full(N, sent), "bits down": np.full(N, sent)}


def remembered(
    x: np.ndarray,
    G: Gradients,
    N: int,
    step: Step,
    H: int,
    outer: Outer,
    beta: float,
    C: Compress,
    layers: Sequence[slice],
) -> Rounds:
    r"""Compressed outer gradients with error memory, $e_n \leftarrow \beta e_n + x - y_n$,
    $m_n = C(e_n)$, $e_n \leftarrow e_n - m_n$, $x \leftarrow \mathrm{Outer}(x, \frac1N \sum_n
    m_n)$.

    Source: Sarfi et al., "SparseLoCo", 2025; Thérien et al., "MuLoCo", 2025.
    """
    e, t = np.zeros((N, len(x))), 0
    while True:
        y = np.tile(x, (N, 1))
        for h in range(H):
            y = y + step(G(t, y))
            t += 1
            if h + 1 < H:
                yield {"params": y, "memory": e}
        e = beta * e + x - y
        m = np.stack([np.concatenate([C(row[layer]) for layer in layers]) for row in e])
        e = e - m
        x = outer(x, m.mean(axis=0))
        yield {"params": np.tile(x, (N, 1)), "memory": e}


def delayed(x: np.ndarray, G: Gradients, N: int, step: Step, H: int, outer: Outer) -> Rounds:
    r"""DiLoCo with delayed steps, $x_{t+1} = \mathrm{Outer}(x_t, \bar\Delta_{t-1})$.

    Source: Kale, Douillard and Donchev, "Eager updates", 2025.
    """
    last, t = np.zeros_like(x), 0
    while True:
        y = np.tile(x, (N, 1))
        for h in range(H):
            y = y + step(G(t, y))
            t += 1
            if h + 1 < H:
                yield {"params": y}
        x, last = outer(x, last), (x - y).mean(axis=0)
        yield {"params": np.tile(x, (N, 1))}


def eager(
    x: np.ndarray, G: Gradients, N: int, step: Step, H: int, outers: Sequence[Outer]
) -> Rounds:
    r"""DiLoCo with eager steps along $\bar\Delta_{t-1} + \frac1N (\Delta_{n,t} - \Delta_{n,t-1})$.

    Args:
        outers: the outer step of each worker.

    Source: Kale, Douillard and Donchev, "Eager updates", 2025.
    """
    X, last, t = np.tile(x, (N, 1)), np.zeros((N, len(x))), 0
    while True:
        y = X
        for h in range(H):
            y = y + step(G(t, y))
            t += 1
            if h + 1 < H:
                yield {"params": y}
        change = X - y
        along = last.mean(axis=0) + (change - last) / N
        X = np.stack([outer(x, delta) for outer, x, delta in zip(outers, X, along, strict=True)])
        last = change
        yield {"params": X}


def noloco(
    X: np.ndarray,
    G: Gradients,
    W: Matrices,
    step: Step,
    H: int,
    alpha: float,
    eta: float,
    consensus: float,
) -> Rounds:
    r"""NoLoCo, $v_n \leftarrow \alpha v_n + \eta \frac12 (D_n + D_m) + \eta_c (\frac12 (\phi_n +
    \phi_m) - \phi_n)$, $\phi_n \leftarrow \phi_n + v_n$, with the partner m of an exchange.

    Source: Kolehmainen et al., "NoLoCo", 2025.
    """
    phi, v, t, exchanges = X, np.zeros_like(X), 0, 0
    while True:
        y = phi
        for h in range(H):
            y = y + step(G(t, y))
            t += 1
            if h + 1 < H:
                yield {"params": y, "slow": phi, "momentum": v}
        v = alpha * v + eta * W(exchanges) @ (y - phi) + consensus * (W(exchanges) @ phi - phi)
        phi, exchanges = phi + v, exchanges + 1
        yield {"params": phi, "slow": phi, "momentum": v}


def sparta(X: np.ndarray, G: Gradients, step: Step, mask: np.ndarray) -> Rounds:
    r"""SPARTA, $x_n \leftarrow x_n \odot (1 - M_t) + \bar x \odot M_t$ after each local step.

    Args:
        mask: M_t, bool `[T, d]`.

    Source: EXO Labs, "SPARTA", 2025.
    """
    for t, chosen in enumerate(mask):
        X = X + step(G(t, X))
        X = np.where(chosen, X.mean(axis=0), X)
        yield {"params": X}
