"""Accelerated gossip: several rounds on one graph as one round of a matrix polynomial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np
from scipy.sparse import csr_array, eye_array

from dsgd.base import PyTree
from dsgd.graphs.topology import Topology


class Accelerated(Topology):
    r"""K exchanges on a topology in each round, which together are one round of gossip with a
    polynomial $W_K$ of its W. The package `topologies` has functions that make them.

    $$ x_{k+1} = \omega_{k+1} \big(x_k + s\, (W - I) x_k\big) - (\omega_{k+1} - 1)\, x_{k-1},
    \qquad x_{-1} = x_0, \qquad W_K x_0 = x_K $$

    W, `matrices`, `rho` and the eigenvalues are those of $W_K$, which is symmetric and may have
    negative weights. The links and edges, on which messages are sent, are those of one exchange.

    Args:
        name: for tables and error messages.
        exchanged: the topology of one exchange, symmetric, the same in all rounds.
        factors: $\omega_1, \dots, \omega_K$.
        share: s.

    Raises:
        ValueError: if repeated rounds do not converge to the mean.
    """

    def __init__(
        self, name: str, exchanged: Topology, factors: Sequence[float], share: float = 1.0
    ) -> None:
        self.name = name
        self.names: tuple[Any, ...] | None = exchanged.names
        self.exchanged: Topology = exchanged
        """The topology of one exchange."""
        self.factors: tuple[float, ...] = tuple(factors)
        self.share: float = share
        identity = csr_array(eye_array(exchanged.n))
        W = identity + self.change(lambda X: exchanged.matrices[0] @ X - X, identity)
        self.matrices: tuple[csr_array, ...] = (csr_array((W + W.T) / 2),)
        if self.rho > 1 - 1e-12:
            raise ValueError(
                f"{name}: rho = {self.rho:.6g}, so gossip does not converge; expected rho < 1: "
                f"pass a larger number of rounds, or weights that make the eigenvalues of "
                f"{exchanged.name} positive, such as topologies.lazy"
            )

    def change(self, laplacian: Callable[[PyTree], PyTree], x: PyTree) -> PyTree:
        """Returns the change of x by a round, $x_K - x_0$. It is a sum of Laplacian differences,
        so that models that agree do not change.

        Args:
            laplacian: x -> (W - I) x, one exchange.
            x: a tree of arrays.
        """

        def step(omega, before, change, pull):
            return omega * (change + self.share * pull) - (omega - 1) * before

        before = change = jax.tree.map(lambda x: 0 * x, x)
        for omega in self.factors:
            pull = laplacian(jax.tree.map(lambda x, change: x + change, x, change))
            before, change = (
                change,
                jax.tree.map(partial(step, omega), before, change, pull),
            )
        return change

    def require_one_exchange(self, name: str) -> None:
        """Raises a ValueError."""
        raise ValueError(
            f"{name} on {self.name}: a round has {len(self.factors)} exchanges; expected a "
            f"topology that is not accelerated, such as {self.exchanged.name}"
        )

    @cached_property
    def links(self) -> list[np.ndarray]:
        """(sender, receiver) of every message of one exchange, int `[messages, 2]`, in a list of
        one element.
        """
        return self.exchanged.links

    @property
    def degree(self) -> int:
        """Largest number of messages that a worker sends, or receives, in a round of K
        exchanges.
        """
        return len(self.factors) * self.exchanged.degree
