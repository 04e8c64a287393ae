"""Graphs and mixing matrices that people have: which worker a node is, which weight an edge has,
and which errors are corrected.
"""

from __future__ import annotations

import inspect
from fractions import Fraction

import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
import scipy.sparse

import topologies
from topologies import from_graph, from_matrix

ROW = np.array([[0.5, 0.5, 0], [0, 0.6, 0.4], [0.3, 0.3, 0.4]])  # rows sum to 1, columns do not


def lazy_ring(kind: type = nx.Graph) -> nx.Graph:
    """Eight nodes: 0.1 on edges, 0.8 on loops."""
    graph = kind()
    for i in range(8):
        graph.add_edge(i, i, weight=0.8)
        graph.add_edge(i, (i + 1) % 8, weight=0.1)
        if graph.is_directed():
            graph.add_edge((i + 1) % 8, i, weight=0.1)
    return graph


def lazy_matrix() -> np.ndarray:
    return 0.8 * np.eye(8) + 0.1 * (np.roll(np.eye(8), 1, axis=0) + np.roll(np.eye(8), -1, axis=0))


def test_nodes_that_are_numbers_keep_them():
    hub = from_graph(nx.Graph([(1, 0), (2, 0), (3, 0), (4, 0)]))
    assert hub.sends.tolist() == [[4, 1, 1, 1, 1]]
    assert hub.names is None
    numpy = from_graph(nx.Graph([(np.int64(2), np.int64(0)), (np.int64(1), np.int64(0))]))
    assert (numpy.sends.tolist(), numpy.names) == ([[2, 1, 1]], None)
    directed = from_graph(nx.DiGraph([(2, 0), (0, 1), (1, 2), (2, 1)]))
    assert directed.edges.tolist() == [[0, 1], [1, 2], [2, 0], [2, 1]]


@pytest.mark.parametrize(
    "nodes", [("b", "a", "c"), (3, 1, 2), (2, "x", ("a", 1)), (np.str_("q"), "p", "o")], ids=str
)
def test_other_nodes_keep_their_names_in_the_order_of_the_graph(nodes):
    path = from_graph(nx.path_graph(3) if nodes is None else nx.Graph([nodes[:2], nodes[1:]]))
    assert path.names == nodes
    np.testing.assert_allclose(path.W, topologies.chain(3).W, atol=1e-15)


def test_what_is_no_number_is_refused_with_the_remedy():
    with pytest.raises(
        ValueError,
        match=r"from_matrix: W: got an array of Python objects; expected numbers; pass .astype\(float\)",
    ):
        from_matrix([[Fraction(1, 2), Fraction(1, 2)]] * 2)


def test_nodes_of_any_type_are_names():
    class Site:
        def __repr__(self):
            return "a site"

    graph = nx.path_graph([Site(), Site(), Site()])
    assert from_graph(graph).names == tuple(graph)


def test_a_subgraph_keeps_names():
    part = nx.complete_graph(6).subgraph([5, 2, 3])
    assert from_graph(part).names == tuple(part)


def test_errors_name_nodes():
    graph = nx.Graph([("Paris", "Rome"), ("Rome", "Oslo"), ("Bonn", "Bonn")])
    with pytest.raises(ValueError, match=r"workers \{3\} \('Bonn'\)"):
        from_graph(graph)
    with pytest.raises(ValueError, match=r"W\['b', 'a'\] = 0.5"):
        topologies.from_graph(nx.Graph([("a", "b")])).__class__(
            "mine", [[1.0, 0.25], [0.5, 0.5]], ["a", "b"]
        )
    with pytest.raises(ValueError, match=r"expected 2 different names"):
        topologies.ring(2).__class__("mine", np.full((2, 2), 0.5), ["a", "a"])


def test_pictures_show_names():
    (axes,) = topologies.draw(from_graph(nx.star_graph(["hub", "x", "y", "z"]))).axes
    assert {text.get_text() for text in axes.texts} == {"hub", "x", "y", "z"}


@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph])
def test_an_attribute_of_edges_is_W_if_asked_for(kind):
    topology = from_graph(lazy_ring(kind), weights="weight")
    np.testing.assert_allclose(topology.W, lazy_matrix(), rtol=0, atol=1e-15)
    assert topology.rho == pytest.approx(0.8 + 0.2 * np.cos(np.pi / 4))
    assert topology.name == "from_graph, weight"


def test_weights_that_are_not_used_are_warned_of():
    with pytest.warns(
        UserWarning, match=r"attribute 'weight', which is not used; pass weights='weight'"
    ):
        assert from_graph(lazy_ring()).rho == pytest.approx(topologies.ring(8).rho)
    assert from_graph(lazy_ring(), topologies.metropolis).rho == pytest.approx(
        topologies.ring(8).rho
    )
    assert from_graph(nx.Graph(np.ones((3, 3)))).uniform  # networkx gives such edges a weight of 1


def test_nodes_without_a_loop_keep_what_is_left():
    graph = lazy_ring()
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    np.testing.assert_allclose(
        from_graph(graph, weights="weight").W, lazy_matrix(), rtol=0, atol=1e-15
    )


def test_multiple_edges_add_up():
    graph = nx.MultiGraph()
    graph.add_weighted_edges_from([(0, 1, 0.1), (1, 0, 0.2), (1, 2, 0.4)])
    np.testing.assert_allclose(
        from_graph(graph, weights="weight").W,
        [[0.7, 0.3, 0], [0.3, 0.3, 0.4], [0, 0.4, 0.6]],
        atol=1e-15,
    )


def test_an_edge_of_weight_0_is_no_edge():
    graph = nx.Graph()
    graph.add_weighted_edges_from([(0, 1, 0.3), (1, 2, 0.3), (0, 2, 0)], weight="share")
    assert from_graph(graph, weights="share").edges.tolist() == [[0, 1], [1, 2]]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), r"the edge \(0, 1\) has weight = nan; expected a finite number"),
        ("0.1", r"the edge \(0, 1\) has weight = '0.1'; expected a finite number"),
        (None, r"the edge \(0, 1\) has no attribute 'weight'"),
        (0.3, r"node 1 with its loop sum to 1.2, 0.2 more than 1"),
        (
            0.05,
            r"node 1 with its loop sum to 0.95, 0.05 less than 1; expected a sum of 1: a node without",
        ),
    ],
)
def test_weights_that_make_no_mixing_matrix_are_refused(value, message):
    graph = lazy_ring()
    graph[0][1]["weight"] = value
    if value == 0.05 or value == 0.3:
        graph[0][0]["weight"] += 0.1 - value
    with pytest.raises(ValueError, match=message):
        from_graph(graph, weights="weight")


def test_weights_above_1_leave_nothing():
    graph = nx.Graph()
    graph.add_weighted_edges_from([("a", "b", 0.7), ("b", "c", 5)])
    with pytest.raises(
        ValueError,
        match=r"node 'b' sum to 5.7, 4.7 more than 1; expected at most 1.*: divide all weights by 5.7",
    ):
        from_graph(graph, weights="weight")


def test_a_directed_edge_goes_from_sender_to_receiver():
    graph = nx.from_numpy_array(ROW, create_using=nx.DiGraph)
    np.testing.assert_allclose(from_graph(graph, weights="weight").W, ROW.T, atol=1e-15)
    with pytest.raises(
        ValueError, match=r"edges out of node 1 with its loop sum to 1.4, .* pass graph.reverse\(\)"
    ):
        from_graph(graph.reverse(), weights="weight")


def test_a_directed_graph_with_all_edges_both_ways_is_undirected():
    graph = nx.path_graph(4).to_directed()
    for topology in (from_graph(graph), from_graph(graph, topologies.metropolis)):
        assert topology.symmetric
        np.testing.assert_allclose(topology.W, topologies.chain(4).W, atol=1e-15)


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (np.eye(3), "networkx.from_numpy_array"),
        (scipy.sparse.eye_array(3), "networkx.from_scipy_sparse_array"),
        ([(0, 1), (1, 2)], r"networkx.Graph\(edges\)"),
    ],
    ids=["array", "sparse", "edges"],
)
def test_what_is_no_graph_is_refused_with_the_way_to_make_one(given, remedy):
    with pytest.raises(ValueError, match=f"expected a networkx graph: {remedy}"):
        inspect.unwrap(from_graph)(given)


COARSE = {
    "float16": lambda W: W.astype(np.float16),
    "float32": lambda W: W.astype(np.float32),
    "jax": lambda W: jnp.asarray(W, jnp.float32),
    "bfloat16": lambda W: jnp.asarray(W, jnp.bfloat16),
    "csc": lambda W: scipy.sparse.csc_matrix(W.astype(np.float32)),
    "lil": lambda W: scipy.sparse.lil_array(W.astype(np.float32)),
    "list": lambda W: W.astype(np.float32).tolist(),
    "upcast": lambda W: W.astype(np.float32).astype(np.float64),
    "seven digits": lambda W: np.round(W, 7),
}


@pytest.mark.parametrize(
    "graph",
    [topologies.ring(7), topologies.star(6), topologies.erdos_renyi(9, 0.5, 1)],
    ids=lambda graph: graph.name,
)
@pytest.mark.parametrize("coarse", COARSE.values(), ids=COARSE)
def test_rounding_errors_of_a_symmetric_matrix_are_corrected(graph, coarse):
    fixed = from_matrix(coarse(graph.W))
    np.testing.assert_array_equal(fixed.W, fixed.W.T)
    np.testing.assert_allclose(fixed.W.sum(axis=0), 1, rtol=0, atol=4e-16)
    assert fixed.edges.tolist() == graph.edges.tolist()


def test_rounding_errors_of_directed_matrices_are_corrected():
    around = np.roll(np.eye(6), 1, axis=0)
    doubly = 0.2 * np.eye(6) + 0.3 * around + 0.5 * np.eye(6)[[1, 0, 2, 4, 3, 5]]
    noisy = doubly + 2e-7 * np.random.default_rng(0).uniform(-1, 1, doubly.shape) * (doubly > 0)
    fixed = from_matrix(noisy)
    assert fixed.doubly_stochastic
    for sums in (fixed.W.sum(axis=0), fixed.W.sum(axis=1)):
        np.testing.assert_allclose(sums, 1, rtol=0, atol=1e-14)
    np.testing.assert_allclose(fixed.W, doubly, rtol=0, atol=1e-6)
    np.testing.assert_allclose(
        from_matrix(ROW.T.astype(np.float32)).W.sum(axis=0), 1, rtol=0, atol=4e-16
    )


def test_a_tiny_negative_entry_is_a_rounding_error():
    W = ROW.T.copy()
    W[0, 1] = -1e-9
    assert from_matrix(W).edges.tolist() == [[0, 1], [1, 2], [2, 0], [2, 1]]


def test_a_slow_directed_ring_is_no_rounding_error():
    W = (1 - 1e-7) * np.eye(5) + 1e-7 * np.roll(np.eye(5), 1, axis=0)
    slow = from_matrix(W)
    np.testing.assert_array_equal(slow.W, W)
    assert not slow.symmetric


def test_what_is_exact_stays_as_it_is():
    for topology in (
        topologies.torus(3, 5),
        topologies.exponential(7),
        topologies.star(5, topologies.uniform),
    ):
        np.testing.assert_array_equal(from_matrix(topology.W).W, topology.W)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            np.diag([5e-6, 0, 0]),
            r"row 0 of W sums to 1.000005 \(off by 5e-06\); expected 1; errors up to 1e-06 are "
            r"corrected; pass W \+ np.diag",
        ),
        (
            np.eye(3, k=1) * 5e-6,
            r"W\[0, 1\] = 0.33333833 but W\[1, 0\] = 0.33333333 \(off by 5e-06\), and column 1 "
            r"sums to 1.000005;",
        ),
    ],
    ids=["diagonal", "asymmetric"],
)
def test_larger_errors_are_shown_with_enough_digits(change, message):
    with pytest.raises(ValueError, match=message):
        from_matrix(np.full((3, 3), 1 / 3) + change)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (nx.path_graph(3), r"W is a Graph; .*from_graph"),
        (topologies.ring(3), r"W is a Topology; .*W itself"),
        (np.ma.masked_equal(topologies.ring(5).W, 0), r"masked entries"),
        (
            np.ones((3, 3), int),
            r"sums to 3 \(off by 2\); expected 1; for an adjacency matrix pass topologies.from_graph",
        ),
    ],
    ids=["graph", "topology", "masked", "adjacency"],
)
def test_what_is_no_mixing_matrix_is_refused_with_the_remedy(given, message):
    with pytest.raises(ValueError, match=message):
        from_matrix(given)


def test_a_data_frame_names_the_workers():
    pandas = pytest.importorskip("pandas")
    W, names = topologies.ring(3).W, ["a", "b", "c"]
    assert from_matrix(pandas.DataFrame(W, index=names, columns=names)).names == ("a", "b", "c")
    assert from_matrix(pandas.DataFrame(W)).names is None
    with pytest.raises(ValueError, match="expected the same order"):
        from_matrix(pandas.DataFrame(W, index=names, columns=["b", "a", "c"]))
