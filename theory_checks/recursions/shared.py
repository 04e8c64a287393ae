r"""What all recursions share: where gradients come from, and the steps that are made of them.

Models are the rows of X `[N, d]`, so that gossip, $x_i \leftarrow \sum_j W_{ij} x_j$, is W @ X.
(The papers have a column for each worker.) A recursion is an iterator: its t-th item has, after
round t, each of its symbols by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

# (t, models [N, d]) -> every worker's gradient in round t at its own [N, d]
Gradients = Callable[[int, np.ndarray], np.ndarray]
# gradients [...] -> what models change by, -gamma times them; some remember the last ones
Step = Callable[[np.ndarray], np.ndarray]
Steps = Callable[[], Step]  # one that remembers nothing yet
Matrices = Callable[[int], np.ndarray]  # t -> W of round t [N, N]
Rounds = Iterator[dict[str, np.ndarray]]


def quadratic(A: np.ndarray, b: np.ndarray, noise: np.ndarray | None = None) -> Gradients:
    r"""$g_n(x) = A_n x - b_n + \xi_t^{(n)}$.

    Args:
        A: `[N, d, d]`.
        b: `[N, d]`.
        noise: xi, `[T, N, d]`; None: there is none.
    """

    def gradients(t, X):
        return np.einsum("nij,nj->ni", A, X) - b + (0 if noise is None else noise[t])

    return gradients


def at_one(gradients: Gradients, t: int, x: np.ndarray, N: int) -> np.ndarray:
    """Everybody's gradient at one model x `[d]`: `[N, d]`."""
    return gradients(t, np.tile(x, (N, 1)))


def plain(gamma: float) -> Step:
    r"""$-\gamma g$."""
    return lambda g: -gamma * g


def momentum(gamma: float, share: float = 0.9) -> Step:
    r"""$-\gamma m_t$, $m_t = \beta m_{t-1} + g_t$, from $m = 0$ (Polyak, 1964)."""
    memory = np.zeros(())

    def step(g):
        nonlocal memory
        memory = share * memory + g
        return -gamma * memory

    return step


def adam(gamma: float) -> Step:
    r"""$-\gamma \hat m_t / (\sqrt{\hat v_t} + 10^{-8})$ with means of 0.9 and 0.999 (Kingma and Ba,
    2015, algorithm 1).
    """
    first, second, t = np.zeros(()), np.zeros(()), 0

    def step(g):
        nonlocal first, second, t
        t += 1
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        return -gamma * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)

    return step
