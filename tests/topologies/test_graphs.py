"""Graphs have the edges of networkx, the weights of their formulas, edge by edge, and the rho of
the literature.
"""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
from scipy.sparse import eye_array

import topologies
from topologies import from_graph, from_matrix


def reference_weights(graph: nx.Graph, weights: str) -> np.ndarray:
    """Returns W of a graph whose nodes are numbers, from a loop over its edges."""
    links = nx.DiGraph(graph.to_directed())
    links.remove_edges_from(list(nx.selfloop_edges(links)))
    degree, n = dict(links.out_degree), len(links)
    W = np.zeros((n, n))
    for sender, receiver in links.edges:
        larger = max(degree[sender], degree[receiver])
        W[receiver, sender] = {
            "metropolis": 1 / (1 + larger),
            "lazy": 1 / (2 + 2 * larger),
            "max_degree": 1 / (1 + max(degree.values())),
            "uniform": 1 / (1 + degree[sender]),
        }[weights]
    return W + np.diag(1 - W.sum(axis=0))


def exponential(n: int) -> nx.DiGraph:
    hops = [2**k for k in range(n.bit_length()) if 2**k < n]
    graph = nx.empty_graph(n, create_using=nx.DiGraph)
    graph.add_edges_from((i, (i + hop) % n) for i in range(n) for hop in hops)
    return graph


def number_nodes(graph: nx.Graph) -> nx.Graph:
    return nx.convert_node_labels_to_integers(graph, ordering="sorted")


def waves(n: int) -> list[float]:
    """Returns 1 + 2 cos(2 pi k / n), k < n."""
    return [1 + 2 * math.cos(2 * math.pi * k / n) for k in range(n)]


def torus_rho(rows: int, columns: int) -> float | None:
    if min(rows, columns) < 3:
        return None
    return max(abs(a + b - 1) / 5 for a in waves(rows) for b in waves(columns) if a + b < 6)


# The graph of networkx, rho in closed form (None if there is none), and arguments.
FAMILIES = {
    topologies.ring: (
        nx.cycle_graph,
        lambda n: max(map(abs, waves(n)[1:])) / 3 if n > 3 else 0,
        [(n,) for n in (1, 2, 3, 4, 5, 16, 33)],
    ),
    topologies.complete: (nx.complete_graph, lambda n: 0, [(1,), (2,), (10,)]),
    topologies.star: (
        lambda n: nx.star_graph(n - 1),
        lambda n: 1 - 1 / n if n > 2 else 0,
        [(1,), (2,), (3,), (9,)],
    ),
    topologies.chain: (
        nx.path_graph,
        lambda n: (1 + 2 * math.cos(math.pi / n)) / 3 if n > 2 else 0,
        [(1,), (2,), (3,), (9,)],
    ),
    topologies.torus: (
        lambda *sides: number_nodes(nx.grid_2d_graph(*sides, periodic=True)),
        torus_rho,
        [(1, 1), (2, 2), (1, 5), (4, 2), (3, 5), (3, 4), (8, 8)],
    ),
    topologies.grid: (
        lambda *sides: number_nodes(nx.grid_2d_graph(*sides)),
        lambda *sides: None,
        [(1, 1), (2, 2), (1, 5), (3, 4)],
    ),
    topologies.hypercube: (
        lambda k: number_nodes(nx.hypercube_graph(k)),
        lambda k: (k - 1) / (k + 1),
        [(1,), (4,)],
    ),
    topologies.exponential: (
        exponential,
        lambda n: 1 - 2 / (1 + math.ceil(math.log2(n))) if n % 2 == 0 else None,
        [(n,) for n in (1, 2, 3, 4, 6, 17, 18, 64)],
    ),
    topologies.erdos_renyi: (
        nx.gnp_random_graph,
        lambda *draw: None,
        [(6, 0.75, 2), (20, 0.4, 0), (20, 0.4, 1)],
    ),
    topologies.geometric: (
        lambda n, radius, seed: nx.random_geometric_graph(n, radius, seed=seed),
        lambda *draw: None,
        [(7, 0.65, 3), (20, 0.5, 1)],
    ),
    topologies.random_regular: (
        lambda n, degree, seed: nx.random_regular_graph(degree, n, seed),
        lambda *draw: None,
        [(1, 0, 0), (2, 1, 0), (9, 4, 1), (9, 4, 2)],
    ),
}
GRAPHS = [(make, given) for make, (*_, several) in FAMILIES.items() for given in several]
NOT_WEIGHTED = (topologies.complete, topologies.exponential)


@pytest.mark.parametrize(
    ("make", "arguments"), GRAPHS, ids=[f"{make.__name__}{given}" for make, given in GRAPHS]
)
def test_a_graph_has_its_edges_its_weights_and_its_rho(make, arguments):
    """With each kind of weights, which the name contains unless they are the default."""
    graph, rho = (function(*arguments) for function in FAMILIES[make][:2])
    usual = "uniform" if graph.is_directed() else "metropolis"
    shown = f"{make.__name__}({', '.join(map(str, arguments))}"
    topology = make(*arguments)
    assert topology.name == f"{shown})"
    np.testing.assert_allclose(topology.W, reference_weights(graph, usual), rtol=0, atol=1e-15)
    if rho is not None:
        assert topology.rho == pytest.approx(rho, abs=1e-12)
    for weights in () if make in NOT_WEIGHTED else topologies.WEIGHTS:
        other = make(*arguments, weights=topologies.WEIGHTS[weights])
        assert other.name == f"{shown})" if weights == usual else f"{shown}, {weights})"
        np.testing.assert_allclose(other.W, reference_weights(graph, weights), rtol=0, atol=1e-15)
        assert weights != "lazy" or np.linalg.eigvalsh(other.W).min() > -1e-14
        same = from_graph(graph, topologies.WEIGHTS[weights])
        np.testing.assert_array_equal(same.W, other.W)


def test_spectral_gap_of_a_large_ring_is_not_what_the_survey_prints():
    n = 1000
    gap = topologies.ring(n).spectral_gap
    assert gap == pytest.approx(4 * math.pi**2 / (3 * n**2), rel=1e-4)
    assert gap < 0.3 * 16 * math.pi**2 / (3 * n**2)


def test_a_large_random_regular_graph_is_an_expander():
    """Friedman: rho is slightly above the bound of Alon and Boppana."""
    bound = (1 + 2 * math.sqrt(4 - 1)) / (4 + 1)
    assert topologies.random_regular(300, 4).rho == pytest.approx(bound, abs=0.02)


def test_custom_weights_are_named_and_are_on_edges():
    class Heavy:
        def __call__(self, adjacency):
            return (topologies.metropolis(adjacency) + 3 * topologies.lazy(adjacency)) / 4

    assert topologies.star(4, Heavy()).name == "star(4, own weights)"

    def heavy(adjacency):
        return Heavy()(adjacency)

    star = topologies.star(4, heavy)
    assert star.name == "star(4, heavy)"
    np.testing.assert_allclose(star.W[0, 1], (1 / 4 + 3 / 8) / 4, rtol=1e-14)
    assert from_graph(nx.path_graph(4), topologies.lazy, "mine").name == "mine, lazy"


# --- Graphs of networkx: nodes as workers, and weights of edges.


class Site:
    def __repr__(self):
        return "a site"


SITES = [Site(), Site(), Site()]


@pytest.mark.parametrize(
    ("graph", "names"),
    [
        (nx.Graph([(1, 0), (2, 0), (3, 0)]), None),
        (nx.Graph([(np.int64(2), np.int64(0)), (np.int64(1), np.int64(0))]), None),
        (nx.Graph([("b", "a"), ("a", "c")]), ("b", "a", "c")),
        (nx.Graph([(2, "x"), ("x", ("a", 1))]), (2, "x", ("a", 1))),
        (nx.Graph([(np.str_("q"), "p"), ("p", "o")]), ("q", "p", "o")),
        (nx.path_graph(SITES), tuple(SITES)),
    ],
    ids=str,
)
def test_integer_nodes_are_worker_numbers_and_other_nodes_are_names(graph, names):
    topology = from_graph(graph)
    assert topology.names == names
    worker = {node: i for i, node in enumerate(names or range(len(graph)))}
    expected = sorted(sorted((worker[i], worker[j])) for i, j in graph.edges)
    assert topology.edges.tolist() == expected


def test_a_subgraph_and_a_data_frame_name_the_workers():
    part = nx.complete_graph(6).subgraph([5, 2, 3])
    assert from_graph(part).names == tuple(part)
    pandas = pytest.importorskip("pandas")
    W, names = topologies.ring(3).W, ["a", "b", "c"]
    assert from_matrix(pandas.DataFrame(W, index=names, columns=names)).names == ("a", "b", "c")
    assert from_matrix(pandas.DataFrame(W)).names is None
    with pytest.raises(ValueError, match="expected the same order"):
        from_matrix(pandas.DataFrame(W, index=names, columns=["b", "a", "c"]))


KINDS = (nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph)
LAZY = 0.8 * np.eye(8) + 0.1 * (np.roll(np.eye(8), 1, axis=0) + np.roll(np.eye(8), -1, axis=0))


def lazy_ring(kind: type = nx.Graph) -> nx.Graph:
    """Eight nodes: 0.1 on edges, 0.8 on loops."""
    ring = nx.cycle_graph(8)
    graph = kind(ring.to_directed() if kind().is_directed() else ring)
    nx.set_edge_attributes(graph, 0.1, "weight")
    graph.add_edges_from(((i, i) for i in range(8)), weight=0.8)
    return graph


@pytest.mark.parametrize("kind", KINDS)
def test_an_edge_attribute_is_W_on_request_and_otherwise_a_warning(kind):
    """Also without loops: nodes keep the remainder."""
    graph = lazy_ring(kind)
    topology = from_graph(graph, weights="weight")
    assert topology.name == "from_graph, weight"
    np.testing.assert_allclose(topology.W, LAZY, rtol=0, atol=1e-15)
    with pytest.warns(UserWarning, match="pass weights='weight'"):
        plain = from_graph(graph)
    np.testing.assert_allclose(plain.W, topologies.ring(8).W, rtol=0, atol=1e-15)
    assert from_graph(graph, topologies.metropolis).name == "from_graph" + (
        ", metropolis" if graph.is_directed() else ""
    )
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    np.testing.assert_allclose(from_graph(graph, weights="weight").W, LAZY, rtol=0, atol=1e-15)
    assert from_graph(nx.Graph(np.ones((3, 3)))).uniform  # networkx gives these edges the weight 1


@pytest.mark.parametrize(
    ("edges", "W"),
    [
        ([(0, 1, 0.1), (1, 0, 0.2), (1, 2, 0.4)], [[0.7, 0.3, 0], [0.3, 0.3, 0.4], [0, 0.4, 0.6]]),
        ([(0, 1, 0.3), (1, 2, 0.3), (0, 2, 0)], [[0.7, 0.3, 0], [0.3, 0.4, 0.3], [0, 0.3, 0.7]]),
    ],
    ids=["multiple edges add up", "an edge of weight 0 is none"],
)
def test_weights_of_edges_are_entries_of_W(edges, W):
    graph = nx.MultiGraph()
    graph.add_weighted_edges_from(edges, weight="share")
    found = from_graph(graph, weights="share")
    np.testing.assert_allclose(found.W, W, atol=1e-15)
    assert found.edges.tolist() == [[0, 1], [1, 2]]
    ones = nx.Graph()
    ones.add_weighted_edges_from([(0, 1, 1), (1, 2, 1)])
    np.testing.assert_array_equal(from_graph(ones).W, topologies.chain(3).W)


ROW = np.array([[0.5, 0.5, 0], [0, 0.6, 0.4], [0.3, 0.3, 0.4]])  # rows sum to 1, columns do not


def test_a_directed_edge_goes_from_sender_to_receiver():
    """Multiple edges and loops have no effect; a graph with all edges in both directions is
    undirected.
    """
    graph = nx.from_numpy_array(ROW, create_using=nx.DiGraph)
    np.testing.assert_allclose(from_graph(graph, weights="weight").W, ROW.T, atol=1e-15)
    pairs = [(0, 1), (1, 2), (2, 0), (0, 2)]
    for given in (nx.DiGraph(pairs), nx.MultiDiGraph([*pairs, (0, 2), (1, 1)])):
        found = from_graph(given)
        np.testing.assert_array_equal(found.W, reference_weights(nx.DiGraph(pairs), "uniform"))
        assert found.edges.tolist() == sorted(map(list, pairs))
    both = nx.path_graph(4).to_directed()
    for topology in (from_graph(both), from_graph(both, topologies.metropolis)):
        np.testing.assert_allclose(topology.W, topologies.chain(4).W, atol=1e-15)


@pytest.mark.parametrize("n", [3, 9])
def test_a_random_directed_graph_is_a_cycle_and_some_more_edges(n):
    cycle = topologies.random_directed(n, 1, seed=2)
    assert cycle.name == f"random_directed({n}, 1, 2)"
    assert nx.is_isomorphic(nx.DiGraph(cycle.edges.tolist()), nx.cycle_graph(n, nx.DiGraph))
    graph = topologies.random_directed(n, n - 1)
    assert graph.uniform
    if n > 3:
        unbalanced = topologies.random_directed(n, 3, seed=1)
        assert (unbalanced.out_degrees == 3).all()
        assert np.ptp(unbalanced.in_degrees) > 0
        assert topologies.random_directed(n, 3, seed=1).edges.tolist() == unbalanced.edges.tolist()
        assert topologies.random_directed(n, 3, seed=2).edges.tolist() != unbalanced.edges.tolist()


def test_weights_for_pull_weigh_equally_what_a_worker_receives():
    """On any graph of one root; for push, senders share equally on a graph of one end."""
    tree = nx.DiGraph([("root", "a"), ("root", "b"), ("b", "c")])
    down = from_graph(tree, topologies.pull)
    assert (down.name, down.role) == ("from_graph, pull", "pull")
    assert (down.names, down.roots.tolist()) == (("root", "a", "b", "c"), [0])
    expected = [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0], [0, 0, 0.5, 0.5]]
    np.testing.assert_array_equal(down.W, expected)
    up = from_graph(tree.reverse(), topologies.push, "up")
    assert (up.name, up.role, up.roots.tolist()) == ("up, push", "push", [0])
    np.testing.assert_array_equal(up.W, np.array(expected).T)
    assert from_matrix(down.W, role="pull").role == "pull"
    star = topologies.star(5, topologies.pull)
    assert star.name == "star(5, pull)"
    np.testing.assert_allclose(star.W, topologies.star(5, topologies.uniform).W.T)


def weighted_ring(value) -> nx.Graph:
    """One edge of the lazy ring has this weight, and its first end's loop has the remainder."""
    graph = lazy_ring()
    graph[0][1]["weight"] = value
    if value in (0.05, 0.3):
        graph[0][0]["weight"] += 0.1 - value
    return graph


def heavy() -> nx.Graph:
    graph = nx.Graph()
    graph.add_weighted_edges_from([("a", "b", 0.7), ("b", "c", 5)])
    return graph


def halves() -> tuple:
    """Arguments of a draw with two components of more than eight workers."""
    for seed in range(100):
        parts = list(nx.connected_components(nx.random_regular_graph(2, 30, seed=seed)))
        if len(parts) == 2 and min(map(len, parts)) > 8:
            return 30, 2, seed
    raise AssertionError


ONE_WAY = nx.DiGraph([(0, 1), (1, 0), (1, 2), (2, 1), (2, 0)])
REFUSED = [
    *((topologies.random_regular, given, "an even n") for given in ((5, 3), (4, 4))),
    (topologies.erdos_renyi, (30, 0.02), r"0.02, 0\).* \d+ components, .* \[\d+\].* seed"),
    (topologies.random_regular, (8, 1), r"4 components, .* \[\d, \d\]"),
    (topologies.random_regular, halves(), r"2 components, .* \[\d+(, \d+){7}\];"),
    *(
        (from_graph, (ONE_WAY, topologies.WEIGHTS[name]), f"{name}.*2 sends to 0.*uniform")
        for name in ("metropolis", "max_degree", "lazy")
    ),
    (topologies.ring, (5, lambda adjacency: adjacency), r"ring\(5, <lambda>\): .* 2 "),
    (from_graph, (nx.Graph(),), "nodes"),
    (from_graph, (nx.Graph([("a", "b"), ("c", "c")]),), r"workers \{2\} \('c'\)"),
    (from_graph, (nx.DiGraph([(0, 1), (1, 2)]),), "3 components.*strongly"),
    (
        from_graph,
        (nx.DiGraph([("a", "b"), ("c", "b")]), topologies.pull),
        r"3 components, .* \('a'\); expected a worker that reaches all others",
    ),
    *(
        (topologies.random_directed, given, r"degree = \d; expected an integer from 1 to n - 1")
        for given in ((4, 4), (4, 0), (1, 1))
    ),
    (from_graph, (np.eye(3),), "from_numpy_array"),
    (from_graph, (eye_array(3),), "from_scipy_sparse_array"),
    (from_graph, ([(0, 1), (1, 2)],), r"networkx.Graph\(edges\)"),
    (from_matrix, (nx.path_graph(3),), "from_graph"),
    (from_graph, (weighted_ring(math.nan), "weight"), r"\(0, 1\) has weight = nan"),
    (from_graph, (weighted_ring("0.1"), "weight"), r"\(0, 1\) has weight = '0.1'"),
    (from_graph, (weighted_ring(None), "weight"), r"\(0, 1\) has no attribute 'weight'"),
    (from_graph, (weighted_ring(0.3), "weight"), "node 1 with its loop sum to 1.2, 0.2 more"),
    (from_graph, (weighted_ring(0.05), "weight"), "node 1 with its loop sum to 0.95, 0.05 less"),
    (from_graph, (heavy(), "weight"), "node 'b' sum to 5.7.*divide all weights by 5.7"),
    (
        from_graph,
        (nx.from_numpy_array(ROW.T, create_using=nx.DiGraph), "weight"),
        r"edges out of node 1 with its loop sum to 1.4.*graph.reverse\(\)",
    ),
]


@pytest.mark.parametrize(("make", "given", "message"), REFUSED)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_graphs_that_are_invalid_for_gossip_are_refused(make, given, message):
    """Under pytest annotations are checked first; here only the checks that users have."""
    with pytest.raises(ValueError, match=f"(?s){message}"):
        getattr(make, "__wrapped__", make)(*given)


def test_weights_are_found_by_name():
    assert set(topologies.WEIGHTS) == {"metropolis", "max_degree", "lazy", "uniform"}
    assert all(weights is getattr(topologies, name) for name, weights in topologies.WEIGHTS.items())


@pytest.mark.parametrize("root", [0, 5])
def test_a_spanning_tree_has_the_distances_to_its_root(root):
    of = topologies.from_graph(nx.circulant_graph(11, [1, 3]), name="circulant")
    found = topologies.spanning_tree(of, root)
    tree, whole = (nx.Graph(each.edges.tolist()) for each in (found, of))
    assert nx.is_tree(tree)
    assert {*map(tuple, found.edges.tolist())} <= {*map(tuple, of.edges.tolist())}
    assert nx.single_source_shortest_path_length(
        tree, root
    ) == nx.single_source_shortest_path_length(whole, root)
    assert found.name == f"spanning_tree(circulant{', 5' if root else ''})"


def test_a_spanning_tree_of_a_schedule_has_edges_of_all_rounds_and_keeps_names():
    schedule = topologies.random_matchings(6)
    assert len(topologies.spanning_tree(schedule, weights=topologies.lazy).edges) == 5
    square = from_graph(nx.cycle_graph(["a", "b", "c", "d"]))
    assert topologies.spanning_tree(square).names == ("a", "b", "c", "d")
    assert topologies.spanning_tree(topologies.ring(1)).n == 1


def test_spanning_trees_of_directed_graphs_or_from_unknown_roots_are_refused():
    with pytest.raises(ValueError, match=r"W of exponential\(8\) is not symmetric; expected an un"):
        topologies.spanning_tree(topologies.exponential(8))
    with pytest.raises(ValueError, match="root = 8; expected a worker below 8"):
        topologies.spanning_tree(topologies.ring(8), 8)
