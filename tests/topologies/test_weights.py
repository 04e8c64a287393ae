"""Weights are what their formulas say, edge by edge."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

import topologies


def by_hand(weights: str, n: int, edges: list[tuple[int, int]]) -> np.ndarray:
    """A loop over the edges of an undirected graph."""
    degree = [sum(i in edge for edge in edges) for i in range(n)]
    W = np.zeros((n, n))
    for edge in edges:
        for receiver, sender in (edge, edge[::-1]):
            W[receiver, sender] = {
                "metropolis": 1 / (1 + max(degree[receiver], degree[sender])),
                "lazy": 1 / (2 + 2 * max(degree[receiver], degree[sender])),
                "max_degree": 1 / (1 + max(degree)),
                "uniform": 1 / (1 + degree[sender]),
            }[weights]
    for i in range(n):
        W[i, i] = 1 - sum(W[j, i] for j in range(n) if j != i)
    return W


def adjacency(n: int, arcs: list[tuple[int, int]]) -> csr_array:
    """1 where the second sends to the first."""
    dense = np.zeros((n, n))
    for receiver, sender in arcs:
        dense[receiver, sender] = 1
    return csr_array(dense)


def both_ways(edges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [*edges, *((j, i) for i, j in edges)]


@st.composite
def trees_and_more(draw) -> tuple[int, list[tuple[int, int]]]:
    n = draw(st.integers(2, 9))
    tree = [(draw(st.integers(0, i - 1)), i) for i in range(1, n)]
    pairs = [(i, j) for j in range(n) for i in range(j)]
    return n, sorted({*tree, *draw(st.lists(st.sampled_from(pairs), max_size=10))})


@given(trees_and_more())
def test_weights_are_their_formulas(graph):
    n, edges = graph
    for name, weights in topologies.WEIGHTS.items():
        W = weights(adjacency(n, both_ways(edges))).toarray()
        np.testing.assert_allclose(W, by_hand(name, n, edges), rtol=0, atol=1e-15)
        assert (W == W.T).all() or name == "uniform"
        assert np.linalg.eigvals(W).real.min() > -1e-14 or name != "lazy"


def test_uniform_weights_of_a_directed_graph_are_the_senders():
    """Worker 0 sends to 1 and 2, a third each; 1 sends to 0, and 2 to 1."""
    W = topologies.uniform(adjacency(3, [(1, 0), (2, 0), (0, 1), (1, 2)])).toarray()
    np.testing.assert_allclose(
        W, [[1 / 3, 1 / 2, 0], [1 / 3, 1 / 2, 1 / 2], [1 / 3, 0, 1 / 2]], rtol=0, atol=1e-15
    )


def test_uniform_weights_of_a_star_are_for_push_sum():
    star = topologies.star(5, topologies.uniform)
    assert not star.symmetric
    assert not star.doubly_stochastic
    np.testing.assert_allclose(star.W.sum(axis=0), 1, rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", ["metropolis", "max_degree", "lazy"])
def test_weights_of_undirected_graphs_refuse_directed_ones_and_name_the_pair(name):
    with pytest.raises(
        ValueError,
        match=rf"{name}: the graph is directed .worker 2 sends to 1, which does not send back.; .*weights=topologies.uniform",
    ):
        topologies.WEIGHTS[name](adjacency(3, [(0, 1), (1, 0), (1, 2), (0, 2), (2, 0)]))


def test_weights_are_found_by_name():
    assert set(topologies.WEIGHTS) == {"metropolis", "max_degree", "lazy", "uniform"}
    assert all(weights is getattr(topologies, name) for name, weights in topologies.WEIGHTS.items())


@pytest.mark.parametrize(
    ("graph", "arguments"),
    [
        ("star", (5,)),
        ("torus", (3, 4)),
        ("erdos_renyi", (6, 0.9, 1)),
        ("random_regular", (6, 3, 2)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_names_tell_weights_that_are_not_the_usual_ones(graph, arguments):
    make = getattr(topologies, graph)
    shown = f"{graph}({', '.join(map(str, arguments))}"
    assert make(*arguments).name == f"{shown})"
    assert make(*arguments, weights=topologies.metropolis).name == f"{shown})"
    links = nx.Graph(make(*arguments).edges.tolist())
    for name in ("max_degree", "lazy", "uniform"):
        topology = make(*arguments, weights=topologies.WEIGHTS[name])
        assert topology.name == f"{shown}, {name})"
        by_edges = by_hand(name, topology.n, [tuple(sorted(edge)) for edge in links.edges])
        np.testing.assert_allclose(topology.W, by_edges, rtol=0, atol=1e-15)


def test_weights_of_ones_own():
    class Heavy:
        def __call__(self, adjacency):
            return (topologies.metropolis(adjacency) + 3 * topologies.lazy(adjacency)) / 4

    assert topologies.star(4, Heavy()).name == "star(4, own weights)"

    def heavy(adjacency):
        return Heavy()(adjacency)

    star = topologies.star(4, heavy)
    assert star.name == "star(4, heavy)"
    np.testing.assert_allclose(star.W[0, 1], (1 / 4 + 3 / 8) / 4, rtol=1e-14)


def test_weights_that_do_not_sum_to_1_are_refused_under_the_graphs_name():
    with pytest.raises(ValueError, match=r"ring\(5, <lambda>\): row 0 of W sums to 2 .*expected 1"):
        topologies.ring(5, lambda adjacency: adjacency)
