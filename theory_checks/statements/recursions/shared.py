"""Clusters, graphs and compressors that the cases of several families use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax

import topologies
from dsgd import clusters, compressors
from dsgd.base import Algorithm, Compressor
from dsgd.graphs.topology import Topology
from theory_checks.machinery.cases import Case, Inputs, Symbols, on_workers
from theory_checks.machinery.rounds import Instance
from theory_checks.machinery.statement import Draws
from theory_checks.machinery.trajectories import D, N, Trajectory
from theory_checks.machinery import mixing_matrices as graphs
from theory_checks.recursions import asynchronous
from theory_checks.recursions.shared import Matrices

DOUBLE = 64  # bits of a number
BITS = DOUBLE * D  # bits of a model
HALF, SHORT = compressors.top_k(0.5), compressors.clipping(3)
SIGN: Compressor = compressors.sign
HALF_OF_ALL, SHORT_OF_ALL = compressors.whole_model(HALF), compressors.whole_model(SHORT)


def asked(found: Trajectory) -> np.ndarray:
    """Returns the worker that computed the gradient of each round, `[T]`; -1 if it was not exactly
    one.
    """
    if found.asked is None or found.asked.shape[1] != 1:
        return np.full(len(found.home), -1)
    return found.asked[:, 0]


def cluster(draws: Draws) -> asynchronous.Numbers:
    """Draws computation times of three laps, multiples of an eighth of a second, and bandwidths
    that are powers of two. All times are exact in float32, and many of them coincide.
    """
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    longest = draws.choice((3, 40))
    up, down = (BITS * 2.0 ** rng.integers(-1, 4, size=N) for _ in range(2))
    return asynchronous.Numbers((rng.integers(1, 41, size=(N, 3)) % longest + 1) / 8.0, up, down)


def cluster_of(numbers: Any, **options: Any) -> clusters.Cluster:
    """Returns a cluster with these numbers, as `cluster` draws them. A worker's computation takes
    one of its laps, selected by the time at which it starts.
    """

    def bandwidth(values):
        return clusters.Quantity(
            lambda key, clock, worker: values[worker],
            "bandwidth",
            positive=True,
            time_invariant=True,
        )

    def seconds(key, clock, worker):
        return numbers.compute[
            worker, jnp.floor(8 * clock).astype(jnp.int32) % numbers.compute.shape[1]
        ]

    computing = clusters.Quantity(seconds, "seconds", positive=False)
    return clusters.Cluster(computing, bandwidth(numbers.up), bandwidth(numbers.down), **options)


def placed(of: Instance, **options: Any) -> clusters.Cluster:
    """Returns the cluster of an instance's numbers."""
    return cluster_of(of.more, **options)


_RING = [(n, (n + 1) % N) for n in range(N)]
_IRREGULAR = [(0, 1), (0, 2), (0, 3), (1, 2), (3, 4), (4, 5)]
_TREE = [(0, 1), (0, 2), (2, 3), (2, 4), (4, 5)]
# Workers differ in the numbers of nodes to which they send and from which they receive, so that
# only the columns of W sum to 1.
_DIRECTED = [*_RING, (0, 2), (0, 3), (3, 1)]
_FROM_ROOT = [(2, 0), (2, 4), (4, 1), (4, 3), (3, 5)]  # a tree
_TO_ROOT = [(receiver, sender) for sender, receiver in _FROM_ROOT]


@cache
def graph(name: str) -> Topology:
    """Returns one of the graphs of the cases, by name."""
    made: dict[str, Callable[[], Topology]] = {
        "lazy": lambda: topologies.from_graph(nx.Graph(_IRREGULAR), topologies.lazy, name="lazy"),
        "star": lambda: topologies.star(N),
        "exponential": lambda: topologies.exponential(N),
        "one peer": lambda: topologies.one_peer_exponential(N),
        "matchings": lambda: topologies.random_matchings(N, 4),
        "irregular": lambda: topologies.from_graph(nx.Graph(_IRREGULAR), name="irregular"),
        "directed": lambda: topologies.from_graph(nx.DiGraph(_DIRECTED), name="directed"),
        "directed, pull": lambda: topologies.from_graph(
            nx.DiGraph(_DIRECTED), topologies.pull, "directed"
        ),
        "pushes": lambda: topologies.random_pushes(N, 4),
        "pushes, pull": lambda: topologies.random_pushes(N, 4, weights=topologies.pull),
        "tree, pull": lambda: topologies.from_graph(
            nx.DiGraph(_FROM_ROOT), topologies.pull, "tree"
        ),
        "tree, push": lambda: topologies.from_graph(nx.DiGraph(_TO_ROOT), topologies.push, "tree"),
        "tree": lambda: topologies.from_graph(nx.Graph(_TREE), name="tree"),
    }
    return made[name]()


def matrices(name: str) -> Matrices:
    """Returns a function t -> W(t) of a graph or schedule, constructed independently of
    `topologies`; for random graphs the project's matrices are used.
    """
    written = {
        "lazy": lambda: [graphs.weighted("lazy", graphs.edges(N, _IRREGULAR))],
        "star": lambda: [
            graphs.weighted("metropolis", graphs.edges(N, [(0, n) for n in range(1, N)]))
        ],
        "irregular": lambda: [graphs.weighted("metropolis", graphs.edges(N, _IRREGULAR))],
        "tree": lambda: [graphs.weighted("metropolis", graphs.edges(N, _TREE))],
        "exponential": lambda: [graphs.weighted("uniform", graphs.around(N, 1, 2, 4))],
        "one peer": lambda: graphs.one_peer(N),
        "directed": lambda: [graphs.weighted("uniform", graphs.arrows(N, _DIRECTED))],
        "directed, pull": lambda: [graphs.pulled(graphs.arrows(N, _DIRECTED))],
        "tree, pull": lambda: [graphs.pulled(graphs.arrows(N, _FROM_ROOT))],
        "tree, push": lambda: [graphs.weighted("uniform", graphs.arrows(N, _TO_ROOT))],
        "pushes, pull": lambda: [
            graphs.pulled((W.toarray() > 0) - np.eye(N)) for W in graph("pushes").matrices
        ],
        "pushes": lambda: [W.toarray() for W in graph("pushes").matrices],
        "matchings": lambda: [W.toarray() for W in graph("matchings").matrices],
    }
    dense = written[name]()
    return lambda t: dense[t % len(dense)]


def between_neighbours(
    rounds: Iterator[Symbols],
    on: str | tuple[str, ...],
    message: float,
    every: int = 1,
    first: int = 1,
) -> Iterator[Symbols]:
    """Yields the same rounds with their bits: in the last of every `every` rounds, from round
    `first` on, each worker sends `message` bits to each neighbour on the graph, or on each of
    several graphs. Rounds are numbered from 1.
    """
    graphs = [matrices(name) for name in ((on,) if isinstance(on, str) else on)]
    for t, symbols in enumerate(rounds, start=1):
        links = np.sum([(W(t // every - 1) != 0) * (1 - np.eye(N)) for W in graphs], axis=0)
        sends = t >= first and t % every == 0
        up, down = (message * sends * links.sum(axis=axis) for axis in (0, 1))
        yield {**symbols, "bits up": up, "bits down": down}


def on_graph(
    name: str,
    reference: str,
    method: Callable[[optax.GradientTransformation], Algorithm],
    rounds: Callable[[Inputs], Iterator[Symbols]],
    on: str | tuple[str, ...],
    message: float = BITS,
    every: int = 1,
    **more: Any,
) -> Case:
    """Returns the case of a method with the messages of `between_neighbours`; `more` are other
    fields of the case.
    """
    where = on if isinstance(on, str) else ", ".join(on)
    return Case(
        name,
        reference,
        lambda optimizer, of: method(optimizer),
        lambda inputs: between_neighbours(rounds(inputs), on, message, every),
        **({"seen": on_workers, "hypotheses": f"on {where}"} | more),
    )
