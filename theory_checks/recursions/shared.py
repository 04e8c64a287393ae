r"""Common parts of the recursions: gradients, and the steps that are computed from them.

Models are the rows of X `[N, d]`, so that gossip, $x_i \leftarrow \sum_j W_{ij} x_j$, is W @ X.
(The papers have a column for each worker.) A recursion is an iterator: its t-th item maps the name
of each symbol to its value after round t.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

# (t, models [N, d]) -> gradients of all workers in round t at their own models [N, d]
Gradients = Callable[[int, np.ndarray], np.ndarray]
# gradients [...] -> change of the models, such as -gamma times the gradients; some have memory
Step = Callable[[np.ndarray], np.ndarray]
Steps = Callable[[], Step]  # makes a step function with empty memory
Matrices = Callable[[int], np.ndarray]  # t -> W of round t [N, N]
Rounds = Iterator[dict[str, np.ndarray]]


def quadratic(A: np.ndarray, b: np.ndarray, noise: np.ndarray | None = None) -> Gradients:
    r"""Returns the gradients $g_n(x) = A_n x - b_n + \xi_t^{(n)}$.

    Args:
        A: `[N, d, d]`.
        b: `[N, d]`.
        noise: xi, `[T, N, d]`; None: no noise.
    """

    def gradients(t, X):
        return np.einsum("nij,nj->ni", A, X) - b + (0 if noise is None else noise[t])

    return gradients


def quadratic_losses(A: np.ndarray, b: np.ndarray, noise: np.ndarray) -> Gradients:
    """Returns the losses with the gradients of `quadratic`, (t, X `[N, d]`) -> `[N]`; they are 0 at
    x = 0.
    """

    def losses(t, X):
        return np.einsum("ni,ni->n", X, np.einsum("nij,nj->ni", A, X) / 2 - b + noise[t])

    return losses


def at_one(gradients: Gradients, t: int, x: np.ndarray, N: int) -> np.ndarray:
    """Returns the gradients of all workers at the same model x `[d]`: `[N, d]`."""
    return gradients(t, np.tile(x, (N, 1)))


def plain(gamma: float) -> Step:
    r"""Returns the SGD step $-\gamma g$."""
    return lambda g: -gamma * g


def momentum(gamma: float, share: float = 0.9) -> Step:
    r"""Returns the momentum step $-\gamma m_t$, $m_t = \beta m_{t-1} + g_t$, from $m = 0$ (Polyak,
    1964).
    """
    memory = np.zeros(())

    def step(g):
        nonlocal memory
        memory = share * memory + g
        return -gamma * memory

    return step


def adam(gamma: float) -> Step:
    r"""Returns the Adam step $-\gamma \hat m_t / (\sqrt{\hat v_t} + 10^{-8})$ with decay rates 0.9
    and 0.999 (Kingma and Ba, 2015, algorithm 1).
    """
    first, second, t = np.zeros(()), np.zeros(()), 0

    def step(g):
        nonlocal first, second, t
        t += 1
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        return -gamma * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)

    return step
