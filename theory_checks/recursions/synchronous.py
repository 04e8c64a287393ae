"""Methods whose workers compute in step with each other, and average all together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from theory_checks.recursions.shared import Gradients, Matrices, Rounds, Step, at_one


def minibatch(x: np.ndarray, G: Gradients, N: int, step: Step) -> Rounds:
    r"""$x_{t+1} = x_t - \gamma \frac1N \sum_n g_n(x_t)$: gradient descent (1.2) where gradients are
    exact.

    Source: Liu and Zhang, (1.2) and section 2.1.2.
    """
    t = 0
    while True:
        x = x + step(at_one(G, t, x, N).mean(axis=0))
        t += 1
        yield {"x": x}


def sgd(x: np.ndarray, G: Gradients, N: int, step: Step, chosen: np.ndarray) -> Rounds:
    r"""$x_{t+1} = x_t - \gamma g_n(x_t)$, n the worker drawn.

    Args:
        chosen: n, `[T]`.

    Source: Liu and Zhang, (1.10).
    """
    for t, n in enumerate(chosen):
        x = x + step(at_one(G, t, x, N)[n])
        yield {"x": x}


def model_averaging(X: np.ndarray, G: Gradients, step: Step) -> Rounds:
    r"""$x_{t+1/2}^{(n)} = x_t - \gamma g_n(x_t)$, $x_{t+1} = \frac1N \sum_n x_{t+1/2}^{(n)}$.

    Source: Liu and Zhang, section 2.1.2, "Model Aggregation".
    """
    t = 0
    while True:
        half = X + step(G(t, X))
        X = np.tile(half.mean(axis=0), (len(X), 1))
        t += 1
        yield {"params": X}


def local(X: np.ndarray, G: Gradients, W: Matrices, step: Step, H: int) -> Rounds:
    """In rounds H, 2H, ... models are averaged; a schedule is gone through by averagings.

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
    """Algorithm 1, option II, all workers, a global step of 1. What is called y there are the
    models between two communications.

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
        news = controls - c + (x - y) / (H * gamma)
        x = x + (y - x).mean(axis=0)
        c = c + (news - controls).mean(axis=0)
        controls = news
        yield {"params": np.tile(x, (N, 1)), "control": controls, "c": c}


def backup(
    x: np.ndarray, G: Gradients, N: int, step: Step, seconds: Callable[[int], np.ndarray], k: int
) -> Rounds:
    r"""$x_{t+1} = x_t - \gamma \frac{1}{N - k} \sum_{n \in S_t} g_n(x_t)$, $S_t$ the N - k who are
    done first; of equals, the first.

    Args:
        seconds: t -> how long each computes, `[N]`.
        k: how many are dropped.

    Source: Chen et al., "Revisiting distributed synchronous SGD", 2016.
    """
    t = 0
    while True:
        takes = seconds(t)
        first = sorted(range(N), key=lambda n: (takes[n], n))[: N - k]
        x = x + step(at_one(G, t, x, N)[first].sum(axis=0) / (N - k))
        t += 1
        yield {"x": x, "compute": np.minimum(takes, max(takes[n] for n in first))}
