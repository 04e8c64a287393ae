"""Synchronous methods with averages over all workers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from theory_checks.recursions.shared import Gradients, Matrices, Rounds, Step, at_one


def minibatch(x: np.ndarray, G: Gradients, N: int, step: Step) -> Rounds:
    r"""Mini-batch SGD, $x_{t+1} = x_t - \gamma \frac1N \sum_n g_n(x_t)$; gradient descent (1.2) if
    the gradients are exact.

    Source: Liu and Zhang, (1.2) and section 2.1.2.
    """
    t = 0
    while True:
        x = x + step(at_one(G, t, x, N).mean(axis=0))
        t += 1
        yield {"x": x}


def sgd(x: np.ndarray, G: Gradients, N: int, step: Step, chosen: np.ndarray) -> Rounds:
    r"""SGD, $x_{t+1} = x_t - \gamma g_n(x_t)$, where n is the drawn worker.

    Args:
        chosen: n, `[T]`.

    Source: Liu and Zhang, (1.10).
    """
    for t, n in enumerate(chosen):
        x = x + step(at_one(G, t, x, N)[n])
        yield {"x": x}


def model_averaging(X: np.ndarray, G: Gradients, step: Step) -> Rounds:
    r"""Model averaging, $x_{t+1/2}^{(n)} = x_t - \gamma g_n(x_t)$, $x_{t+1} = \frac1N \sum_n
    x_{t+1/2}^{(n)}$.

    Source: Liu and Zhang, section 2.1.2, "Model Aggregation".
    """
    t = 0
    while True:
        half = X + step(G(t, X))
        X = np.tile(half.mean(axis=0), (len(X), 1))
        t += 1
        yield {"params": X}


def local(X: np.ndarray, G: Gradients, W: Matrices, step: Step, H: int) -> Rounds:
    """Local SGD: models are averaged in rounds H, 2H, ...; a schedule advances with each averaging.

    Source: Stich, "Local SGD converges fast and communicates little", 2019, algorithm 1.
    """
    t, averagings = 0, 0
    while True:
        X = X + step(G(t, X))
        t += 1
        if t % H == 0:
            X = W(averagings) @ X
            averagings += 1
        yield {"params": X}


def scaffold(x: np.ndarray, G: Gradients, N: int, gamma: float, H: int) -> Rounds:
    """SCAFFOLD, Algorithm 1, option II, with all workers and a global step size of 1. The paper's y
    are the models between two communications.

    Source: Karimireddy et al., "SCAFFOLD", 2020.
    """
    c, controls, t = np.zeros_like(x), np.zeros((N, len(x))), 0
    while True:
        y = np.tile(x, (N, 1))
        for h in range(H):
            y = y - gamma * (G(t, y) - controls + c)
            t += 1
            if h + 1 < H:
                yield {"params": y, "control": controls, "c": c}
        new_controls = controls - c + (x - y) / (H * gamma)
        x = x + (y - x).mean(axis=0)
        c = c + (new_controls - controls).mean(axis=0)
        controls = new_controls
        yield {"params": np.tile(x, (N, 1)), "control": controls, "c": c}


def backup(
    x: np.ndarray, G: Gradients, N: int, step: Step, seconds: Callable[[int], np.ndarray], k: int
) -> Rounds:
    r"""Backup workers, $x_{t+1} = x_t - \gamma \frac{1}{N - k} \sum_{n \in S_t} g_n(x_t)$, where
    $S_t$ is the set of the N - k workers that finish first; ties go to the lowest id.

    Args:
        seconds: t -> seconds that each worker computes, `[N]`.
        k: number of workers that are dropped.

    Source: Chen et al., "Revisiting distributed synchronous SGD", 2016.
    """
    t = 0
    while True:
        takes = seconds(t)
        first = sorted(range(N), key=lambda n: (takes[n], n))[: N - k]
        x = x + step(at_one(G, t, x, N)[first].sum(axis=0) / (N - k))
        t += 1
        yield {"x": x, "compute": np.minimum(takes, max(takes[n] for n in first))}
