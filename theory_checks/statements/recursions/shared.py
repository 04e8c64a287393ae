"""What cases of several families are made of: clusters, graphs and compressors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax.numpy as jnp
import networkx as nx
import numpy as np

import topologies
from dsgd import clusters, compressors
from dsgd.base import Compressor
from dsgd.graphs.topology import Topology
from theory_checks.machinery.rounds import Instance
from theory_checks.machinery.statement import Draws
from theory_checks.machinery.trajectories import D, N, Trajectory
from theory_checks.recursions import asynchronous, graphs
from theory_checks.recursions.shared import Matrices

DOUBLE = 64  # bits of a number
BITS = DOUBLE * D  # of a model
HALF, SHORT = compressors.top_k(0.5), compressors.clipping(3)
SIGN: Compressor = compressors.sign
HALF_OF_ALL, SHORT_OF_ALL = compressors.whole_model(HALF), compressors.whole_model(SHORT)


def asked(found: Trajectory) -> np.ndarray:
    """The one worker whose gradient each round asked for, `[T]`; -1 where that is not one."""
    if found.asked is None or found.asked.shape[1] != 1:
        return np.full(len(found.home), -1)
    return found.asked[:, 0]


def cluster(draws: Draws) -> asynchronous.Numbers:
    """Dyadic seconds of three laps, bandwidths powers of two: float32 has every time exactly. With
    many ties.
    """
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    most = draws.choice((3, 40))
    up, down = (BITS * 2.0 ** rng.integers(-1, 4, size=N) for _ in range(2))
    return asynchronous.Numbers((rng.integers(1, 41, size=(N, 3)) % most + 1) / 8.0, up, down)


def cluster_of(numbers: Any, **options: Any) -> clusters.Cluster:
    """Of these numbers, as `cluster` has them. Who begins to compute at a time takes one of its
    laps by that time.
    """

    def bandwidth(values):
        return clusters.Quantity(
            lambda key, clock, worker: values[worker], "bandwidth", positive=True, steady=True
        )

    def seconds(key, clock, worker):
        return numbers.compute[
            worker, jnp.floor(8 * clock).astype(jnp.int32) % numbers.compute.shape[1]
        ]

    computing = clusters.Quantity(seconds, "seconds", positive=False)
    return clusters.Cluster(computing, bandwidth(numbers.up), bandwidth(numbers.down), **options)


def placed(of: Instance, **options: Any) -> clusters.Cluster:
    """The cluster of an instance's numbers."""
    return cluster_of(of.more, **options)


_RING = [(n, (n + 1) % N) for n in range(N)]
_IRREGULAR = [(0, 1), (0, 2), (0, 3), (1, 2), (3, 4), (4, 5)]
# no two kinds of workers send, or receive, equally often: only columns sum to 1
_DIRECTED = [*_RING, (0, 2), (0, 3), (3, 1)]


@cache
def graph(name: str) -> Topology:
    """One of those that the cases are on."""
    made: dict[str, Callable[[], Topology]] = {
        "lazy": lambda: topologies.from_graph(nx.Graph(_IRREGULAR), topologies.lazy, name="lazy"),
        "star": lambda: topologies.star(N),
        "exponential": lambda: topologies.exponential(N),
        "one peer": lambda: topologies.one_peer_exponential(N),
        "matchings": lambda: topologies.random_matchings(N, 4),
        "irregular": lambda: topologies.from_graph(nx.Graph(_IRREGULAR), name="irregular"),
        "directed": lambda: topologies.from_graph(nx.DiGraph(_DIRECTED), name="directed"),
    }
    return made[name]()


def matrices(name: str) -> Matrices:
    """W(t) of a graph, or of a schedule, written down once more; of what is random, the project's
    own.
    """
    written = {
        "lazy": lambda: [graphs.weighted("lazy", graphs.edges(N, _IRREGULAR))],
        "star": lambda: [
            graphs.weighted("metropolis", graphs.edges(N, [(0, n) for n in range(1, N)]))
        ],
        "irregular": lambda: [graphs.weighted("metropolis", graphs.edges(N, _IRREGULAR))],
        "exponential": lambda: [graphs.weighted("uniform", graphs.around(N, 1, 2, 4))],
        "one peer": lambda: graphs.one_peer(N),
        "directed": lambda: [graphs.weighted("uniform", graphs.arrows(N, _DIRECTED))],
        "matchings": lambda: [W.toarray() for W in graph("matchings").matrices],
    }
    dense = written[name]()
    return lambda t: dense[t % len(dense)]
