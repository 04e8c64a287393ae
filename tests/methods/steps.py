"""Local steps in numpy: gradients [...] -> change of the models. Some have memory, of each worker.
`here` says which workers participate, bool `[N, 1]`: the others make no step, and
their memory does not change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Step = Callable[..., np.ndarray]  # (g, here=True) -> change
PENALTY = 0.3  # of the l1 norm
CLIP = 1.5  # the largest norm of a clipped gradient


def plain(gamma: float) -> Step:
    r"""Returns the SGD step $-\gamma g$."""
    return lambda g, here=True: np.where(here, -gamma * g, 0.0)


def momentum(gamma: float, share: float = 0.9) -> Step:
    r"""Returns the momentum step $-\gamma m_t$, $m_t = \beta m_{t-1} + g_t$, from $m = 0$ (Polyak,
    1964).
    """
    memory = np.zeros(())

    def step(g: np.ndarray, here: Any = True) -> np.ndarray:
        nonlocal memory
        memory = np.where(here, share * memory + g, memory)
        return np.where(here, -gamma * memory, 0.0)

    return step


def adam(gamma: float) -> Step:
    r"""Returns the Adam step $-\gamma \hat m_t / (\sqrt{\hat v_t} + 10^{-8})$ with decay rates 0.9
    and 0.999 (Kingma and Ba, 2015, algorithm 1).
    """
    first, second, t = np.zeros(()), np.zeros(()), np.zeros(())

    def step(g: np.ndarray, here: Any = True) -> np.ndarray:
        nonlocal first, second, t
        t = t + here
        first = np.where(here, 0.9 * first + 0.1 * g, first)
        second = np.where(here, 0.999 * second + 0.001 * g**2, second)
        own = np.maximum(t, 1)
        change = (first / (1 - 0.9**own)) / (np.sqrt(second / (1 - 0.999**own)) + 1e-8)
        return np.where(here, -gamma * change, 0.0)

    return step


def lion(gamma: float) -> Step:
    r"""Returns the Lion step $-\gamma\, \mathrm{sign}(0.9 m_{t-1} + 0.1 g_t)$,
    $m_t = 0.99 m_{t-1} + 0.01 g_t$, from $m = 0$ (Chen et al., 2023).
    """
    memory = np.zeros(())

    def step(g: np.ndarray, here: Any = True) -> np.ndarray:
        nonlocal memory
        change = np.sign(0.9 * memory + 0.1 * g)
        memory = np.where(here, 0.99 * memory + 0.01 * g, memory)
        return np.where(here, -gamma * change, 0.0)

    return step


def clipped(gamma: float) -> Step:
    r"""Returns the clipped step $-\gamma \min(1, c / |g|) g$ of one vector; c is `CLIP`."""
    return lambda g: -gamma * min(1.0, CLIP / np.linalg.norm(g)) * g


def soft_threshold(x: np.ndarray, gamma: np.ndarray | float) -> np.ndarray:
    r"""Returns the proximal step of $\lambda |x|_1$ with step sizes gamma; lambda is `PENALTY`."""
    return np.where(np.abs(x) > gamma * PENALTY, x - gamma * PENALTY * np.sign(x), 0)
