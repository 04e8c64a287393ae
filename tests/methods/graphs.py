"""The graphs of the cases, by name: as topologies, and their matrices, constructed independently of
`topologies`. The weight that i gives to j's model is W[i, j].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import networkx as nx
import numpy as np

import topologies
from dsgd.graphs.topology import Topology
from theory_checks.machinery import mixing_matrices as written

Matrices = Callable[[int], np.ndarray]  # number of an exchange -> W [N, N]
Pairs = Sequence[tuple[int, int]]

# Pairs with numbers that are too large for a graph are left out.
_IRREGULAR = [(0, 1), (0, 2), (0, 3), (1, 2), (3, 4), (4, 5), (5, 6), (4, 7)]
_TREE = [(0, 1), (0, 2), (2, 3), (2, 4), (4, 5), (4, 6), (6, 7)]
_FROM_ROOT = [(2, 0), (2, 4), (4, 1), (4, 3), (3, 5), (3, 6), (0, 7)]
_TO_ROOT = [(receiver, sender) for sender, receiver in _FROM_ROOT]


def _directed_pairs(N: int) -> Pairs:
    """Returns messages such that workers differ in the numbers of those to which they send and from
    which they receive: only the columns of W sum to 1.
    """
    return [*((n, (n + 1) % N) for n in range(N)), (0, 2), (0, 3), (3, 1)]


def _existing(N: int, pairs: Pairs) -> Pairs:
    return [pair for pair in pairs if max(pair) < N]


@cache
def topology(name: str, N: int) -> Topology:
    """Returns the project's topology of this name."""
    irregular, directed = nx.Graph(_existing(N, _IRREGULAR)), nx.DiGraph(_directed_pairs(N))
    made: dict[str, Callable[[], Topology]] = {
        "lazy": lambda: topologies.from_graph(irregular, topologies.lazy, name="lazy"),
        "irregular": lambda: topologies.from_graph(irregular, name="irregular"),
        "ring": lambda: topologies.ring(N),
        "star": lambda: topologies.star(N),
        "ring, star": lambda: Topology("ring, star", [topologies.ring(N).W, topologies.star(N).W]),
        "complete": lambda: topologies.complete(N),
        "exponential": lambda: topologies.exponential(N),
        "one peer": lambda: topologies.one_peer_exponential(N),
        "matchings": lambda: topologies.random_matchings(N, 4),
        "directed": lambda: topologies.from_graph(directed, name="directed"),
        "directed, pull": lambda: topologies.from_graph(directed, topologies.pull, "directed"),
        "pushes": lambda: topologies.random_pushes(N, 4),
        "pushes, pull": lambda: topologies.random_pushes(N, 4, weights=topologies.pull),
        "tree": lambda: topologies.from_graph(nx.Graph(_existing(N, _TREE)), name="tree"),
        "tree, pull": lambda: topologies.from_graph(
            nx.DiGraph(_existing(N, _FROM_ROOT)), topologies.pull, "tree"
        ),
        "tree, push": lambda: topologies.from_graph(
            nx.DiGraph(_existing(N, _TO_ROOT)), topologies.push, "tree"
        ),
    }
    return made[name]()


@cache
def matrices(name: str, N: int) -> Matrices:
    """Returns the function from the number of an exchange to W; for random graphs the project's
    matrices are used.
    """
    irregular = written.edges(N, _existing(N, _IRREGULAR))
    directed = written.arrows(N, _directed_pairs(N))
    made: dict[str, Callable[[], list[np.ndarray]]] = {
        "lazy": lambda: [written.weigh("lazy", irregular)],
        "irregular": lambda: [written.weigh("metropolis", irregular)],
        "ring": lambda: [written.weigh("metropolis", written.circulant(N, 1, N - 1))],
        "star": lambda: [
            written.weigh("metropolis", written.edges(N, [(0, n) for n in range(1, N)]))
        ],
        "ring, star": lambda: [matrices("ring", N)(0), matrices("star", N)(0)],
        "complete": lambda: [np.full((N, N), 1 / N)],
        "exponential": lambda: [
            written.weigh("uniform", written.circulant(N, *(1 << k for k in range(3))))
        ],
        "one peer": lambda: written.one_peer(N),
        "matchings": lambda: [W.toarray() for W in topology("matchings", N).matrices],
        "directed": lambda: [written.weigh("uniform", directed)],
        "directed, pull": lambda: [written.pull_matrix(directed)],
        "pushes": lambda: [W.toarray() for W in topology("pushes", N).matrices],
        "pushes, pull": lambda: [
            written.pull_matrix((W.toarray() > 0) - np.eye(N))
            for W in topology("pushes", N).matrices
        ],
        "tree": lambda: [written.weigh("metropolis", written.edges(N, _existing(N, _TREE)))],
        "tree, pull": lambda: [written.pull_matrix(written.arrows(N, _existing(N, _FROM_ROOT)))],
        "tree, push": lambda: [written.weigh("uniform", written.arrows(N, _existing(N, _TO_ROOT)))],
    }
    dense = made[name]()
    return lambda number: dense[number % len(dense)]


def neighbour_values(values: np.ndarray, A: np.ndarray) -> np.ndarray:
    """Returns each worker's values of its neighbours in ascending order, then zeros: `[N, N, ...]`,
    of which those of other pairs are 0, to `[N, K, ...]` with the largest number of neighbours K.
    """
    order = np.argsort(~A, axis=1, kind="stable")[:, : A.sum(axis=1).max()]
    return values[np.arange(len(A))[:, None], order]


LAZY, IRREGULAR, COMPLETE, BALANCED = (
    topology(name, 6) for name in ("lazy", "irregular", "complete", "exponential")
)
"""For `EQUALS`."""
