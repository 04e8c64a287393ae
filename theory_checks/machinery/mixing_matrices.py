"""Mixing matrices, computed independently of `topologies`: W[i, j] is the weight that i gives to
j's model, from A[i, j] = 1 if j sends to i.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np


def arrows(N: int, pairs: Iterable[tuple[int, int]]) -> np.ndarray:
    """Returns A for messages (sender, receiver), `[N, N]`."""
    A = np.zeros((N, N))
    for sender, receiver in pairs:
        A[receiver, sender] = 1
    return A


def edges(N: int, pairs: Iterable[tuple[int, int]]) -> np.ndarray:
    """Returns A for undirected edges, on which both workers send."""
    A = arrows(N, pairs)
    return A + A.T


def circulant(N: int, *distances: int) -> np.ndarray:
    """Returns A for workers n that send to n + distance (mod N), for each distance."""
    return arrows(N, [(n, (n + distance) % N) for n in range(N) for distance in distances])


def _metropolis(A: np.ndarray) -> np.ndarray:
    degrees = A.sum(axis=0)
    return A / (1 + np.maximum(degrees[:, None], degrees[None, :]))


_SENT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "metropolis": _metropolis,
    "lazy": lambda A: _metropolis(A) / 2,
    "max_degree": lambda A: A / (1 + A.sum(axis=0).max()),
    "uniform": lambda A: A / (1 + A.sum(axis=0)),
}
WEIGHTS = tuple(_SENT)
"""Kinds of weights; directed graphs need "uniform"."""


def weigh(weights: str, A: np.ndarray) -> np.ndarray:
    """Returns W with weights of this kind on the edges, and on the diagonal the remainder of each
    column to 1.
    """
    sent = _SENT[weights](A)
    return sent + np.diag(1 - sent.sum(axis=0))


def pull_matrix(A: np.ndarray) -> np.ndarray:
    """Returns R, in which each receiver weighs its own model and those that it receives equally."""
    received = A / (1 + A.sum(axis=1, keepdims=True))
    return received + np.diag(1 - received.sum(axis=1))


def one_peer(N: int) -> list[np.ndarray]:
    """Returns the one-peer exponential schedule: in round t, n sends half to n + 2^t."""
    return [weigh("uniform", circulant(N, 1 << t)) for t in range(max(1, (N - 1).bit_length()))]
