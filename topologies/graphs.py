"""The survey's graphs (section 5.2.1), and any graph as a matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsgd.topology import Topology


def ring(n: int) -> Topology:
    r"""The ring $W_2$: each worker and its two neighbours, 1/3 each; $\rho = \max_k |1 + 2\cos(2\pi k/n)|/3 \approx 1 - 4\pi^2/(3n^2)$.

    Two workers have one neighbour each, weight 1/2.

    Args:
        n: number of workers, at least 1.

    Raises:
        ValueError: n < 1.

    Source: Liu and Zhang, section 5.2.1, which prints $1 - 16\pi^2/(3n^2)$ (a misprint).
    """
    _need_workers("ring", n)
    W = np.zeros((n, n))
    i = np.arange(n)
    for neighbour in {0, 1 % n, -1 % n}:
        W[i, (i + neighbour) % n] = 1 / min(n, 3)
    return Topology(f"ring({n})", W)


def complete(n: int) -> Topology:
    r"""The complete graph $W_1 = 11^T/n$, $\rho = 0$: one gossip round is the exact mean.

    Args:
        n: number of workers, at least 1.

    Raises:
        ValueError: n < 1.

    Source: Liu and Zhang, section 5.2.1 (which misprints $\rho = 1$ in the text).
    """
    _need_workers("complete", n)
    return Topology(f"complete({n})", np.full((n, n), 1 / n))


def from_matrix(W: Any, name: str = "from_matrix") -> Topology:
    """Any mixing matrix: symmetric, rows that sum to 1, connected.

    Args:
        W: `[n, n]`.
        name: what tables and errors call it.

    Raises:
        ValueError: as `dsgd.Topology` says.
    """
    try:
        given = np.asarray(W)
    except ValueError as error:
        raise ValueError(f"{name}: W is no matrix of numbers ({error}); need a square matrix [n, n]") from error
    return Topology(name, given)


def _need_workers(graph: str, n: int) -> None:
    if n < 1:
        raise ValueError(f"{graph}({n}): need at least 1 worker")
