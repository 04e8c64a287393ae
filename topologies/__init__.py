"""Gossip topologies: static graphs, time-varying schedules, mixing weights and pictures."""

from dsgd import spelling
from topologies.acceleration import chebyshev, fast_mix
from topologies.equi_topo import equi_dynamic, equi_static
from topologies.finite_time import base_graph, one_peer_hypercube
from topologies.graphs import (
    chain,
    complete,
    erdos_renyi,
    exponential,
    from_graph,
    from_matrix,
    geometric,
    grid,
    hypercube,
    random_directed,
    random_regular,
    ring,
    spanning_tree,
    star,
    torus,
)
from topologies.pictures import draw
from topologies.random_subgraphs import matcha
from topologies.schedules import one_peer_exponential, random_matchings, random_pushes
from topologies.weights import WEIGHTS, lazy, max_degree, metropolis, pull, push, uniform

__all__ = [
    "WEIGHTS",
    "base_graph",
    "chain",
    "chebyshev",
    "complete",
    "draw",
    "equi_dynamic",
    "equi_static",
    "erdos_renyi",
    "exponential",
    "fast_mix",
    "from_graph",
    "from_matrix",
    "geometric",
    "grid",
    "hypercube",
    "lazy",
    "matcha",
    "max_degree",
    "metropolis",
    "one_peer_exponential",
    "one_peer_hypercube",
    "pull",
    "push",
    "random_directed",
    "random_matchings",
    "random_pushes",
    "random_regular",
    "ring",
    "spanning_tree",
    "star",
    "torus",
    "uniform",
]

spelling.add_suggestions(__name__)
