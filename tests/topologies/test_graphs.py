"""Graphs have the edges, the weights, the degree and the rho that the literature gives them."""

from __future__ import annotations

import inspect
import math

import networkx as nx
import numpy as np
import pytest
from matrices import second_largest

import topologies


def edges(topology) -> set[tuple[int, int]]:
    return set(map(tuple, topology.edges.tolist()))


def ordered(pairs) -> set[tuple[int, int]]:
    return {(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]}


@pytest.mark.parametrize("n", [4, 5, 16, 33])
def test_ring_is_a_third_each_for_oneself_and_two_neighbours(n):
    ring = topologies.ring(n)
    expected = np.array(
        [[1 / 3 if (i - j) % n in (0, 1, n - 1) else 0 for j in range(n)] for i in range(n)]
    )
    np.testing.assert_allclose(ring.W, expected, rtol=0, atol=1e-15)
    assert (ring.n, ring.degree, ring.sends.tolist(), ring.receives.tolist(), ring.name) == (
        n,
        2,
        [[2] * n],
        [[2] * n],
        f"ring({n})",
    )
    assert ring.rho == pytest.approx(
        max(abs(1 + 2 * math.cos(2 * math.pi * k / n)) / 3 for k in range(1, n)), abs=1e-12
    )


def test_spectral_gap_of_a_large_ring_is_not_what_the_survey_prints():
    n = 1000
    gap = topologies.ring(n).spectral_gap
    assert gap == pytest.approx(4 * math.pi**2 / (3 * n**2), rel=1e-4)
    assert gap < 0.3 * 16 * math.pi**2 / (3 * n**2)


@pytest.mark.parametrize(("n", "W"), [(1, [[1]]), (2, [[1 / 2] * 2] * 2), (3, [[1 / 3] * 3] * 3)])
def test_small_rings_average_everybody_at_once(n, W):
    ring = topologies.ring(n)
    np.testing.assert_allclose(ring.W, W, rtol=0, atol=1e-15)
    assert ring.rho == pytest.approx(0, abs=1e-15)
    assert ring.degree == n - 1
    assert ring.uniform


@pytest.mark.parametrize("n", [1, 2, 10])
def test_complete_averages_everybody_at_once(n):
    complete = topologies.complete(n)
    x = np.random.default_rng(n).normal(size=n)
    np.testing.assert_allclose(complete.W @ x, np.full(n, x.mean()), atol=1e-14)
    assert complete.rho == pytest.approx(0, abs=1e-14)
    assert (complete.n, complete.degree, complete.uniform, complete.name) == (
        n,
        n - 1,
        True,
        f"complete({n})",
    )


@pytest.mark.parametrize("n", [1, 2, 3, 9])
def test_star_has_a_hub(n):
    star = topologies.star(n)
    assert edges(star) == {(0, i) for i in range(1, n)}
    assert star.sends.tolist() == [[n - 1, *[1] * (n - 1)]]
    np.testing.assert_allclose(star.W[0, 1:], 1 / n, rtol=0, atol=1e-15)
    assert star.rho == pytest.approx(1 - 1 / n if n >= 3 else 0, abs=1e-13)
    assert star.name == f"star({n})"


@pytest.mark.parametrize("n", [1, 2, 3, 9])
def test_chain_is_a_line(n):
    chain = topologies.chain(n)
    assert edges(chain) == {(i, i + 1) for i in range(n - 1)}
    assert chain.degree == min(2, n - 1)
    assert chain.rho == pytest.approx(
        (1 + 2 * math.cos(math.pi / n)) / 3 if n >= 3 else 0, abs=1e-13
    )
    assert chain.name == f"chain({n})"


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 2), (1, 5), (4, 2), (3, 5)])
def test_torus_is_closed_both_ways(rows, columns):
    torus = topologies.torus(rows, columns)
    where = {
        (row, column): row * columns + column for row in range(rows) for column in range(columns)
    }
    down = {(i, where[(row + 1) % rows, column]) for (row, column), i in where.items()}
    right = {(i, where[row, (column + 1) % columns]) for (row, column), i in where.items()}
    assert edges(torus) == ordered(down | right)
    assert torus.degree == sum(min(2, side - 1) for side in (rows, columns))
    assert torus.rho == pytest.approx(second_largest(torus.W) if torus.n > 1 else 0, abs=1e-12)
    assert torus.name == f"torus({rows}, {columns})"


@pytest.mark.parametrize(("rows", "columns"), [(3, 4), (8, 8)])
def test_rho_of_a_torus_is_the_closed_form(rows, columns):
    angles = [
        (2 * math.pi * k / rows, 2 * math.pi * l / columns)
        for k in range(rows)
        for l in range(columns)
        if (k, l) != (0, 0)
    ]
    assert topologies.torus(rows, columns).rho == pytest.approx(
        max(abs(1 + 2 * math.cos(a) + 2 * math.cos(b)) / 5 for a, b in angles), abs=1e-12
    )
    W = topologies.torus(rows, columns).W
    np.testing.assert_allclose(W, (W > 0) / 5, rtol=0, atol=1e-15)


@pytest.mark.parametrize("dimension", [0, 1, 4])
def test_hypercube_has_neighbours_that_differ_in_one_bit(dimension):
    cube = topologies.hypercube(dimension)
    n = 2**dimension
    assert (cube.n, cube.degree, cube.name) == (n, dimension, f"hypercube({dimension})")
    assert edges(cube) == {(i, j) for j in range(n) for i in range(j) if bin(i ^ j).count("1") == 1}
    assert cube.rho == pytest.approx(
        (dimension - 1) / (dimension + 1) if dimension else 0, abs=1e-13
    )


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 17])
def test_exponential_sends_to_powers_of_two(n):
    exponential = topologies.exponential(n)
    hops = [hop for hop in (1, 2, 4, 8, 16, 32, 64) if hop < n]
    assert edges(exponential) == (
        ordered({(i, (i + hop) % n) for i in range(n) for hop in hops})
        if exponential.symmetric
        else {(i, (i + hop) % n) for i in range(n) for hop in hops}
    )
    assert exponential.symmetric == (n in (1, 2, 3))
    assert exponential.doubly_stochastic
    assert exponential.sends.tolist() == exponential.receives.tolist() == [[len(hops)] * n]
    assert len(hops) == math.ceil(math.log2(n))
    np.testing.assert_allclose(
        np.unique(exponential.W[exponential.W > 0]), 1 / (1 + len(hops)), rtol=1e-14
    )
    assert exponential.name == f"exponential({n})"


@pytest.mark.parametrize("n", [2, 4, 6, 18, 64])
def test_rho_of_an_exponential_graph_is_the_closed_form(n):
    assert topologies.exponential(n).rho == pytest.approx(
        1 - 2 / (1 + math.ceil(math.log2(n))), abs=1e-13
    )


def test_exponential_sends_forward():
    """Worker 0 sends to 1, 2 and 4, and what arrives at 4 has its weight in row 4."""
    W = topologies.exponential(8).W
    assert np.flatnonzero(W[:, 0]).tolist() == [0, 1, 2, 4]
    assert np.flatnonzero(W[0]).tolist() == [0, 4, 6, 7]


def test_erdos_renyi_draws_every_pair_with_the_same_probability():
    """Of 60 graphs: within five standard deviations of the mean number of edges."""
    n, probability, draws = 20, 0.4, 60
    graphs = [topologies.erdos_renyi(n, probability, seed) for seed in range(draws)]
    pairs = draws * n * (n - 1) // 2
    found = sum(len(graph.edges) for graph in graphs)
    assert abs(found - pairs * probability) < 5 * math.sqrt(pairs * probability * (1 - probability))
    assert len({tuple(sorted(edges(graph))) for graph in graphs}) == draws


def test_draws_are_the_same_for_the_same_seed():
    for draw in (
        lambda seed: topologies.erdos_renyi(12, 0.5, seed),
        lambda seed: topologies.random_regular(12, 3, seed),
    ):
        np.testing.assert_array_equal(draw(3).W, draw(3).W)
        assert edges(draw(3)) != edges(draw(4))
    np.testing.assert_array_equal(
        topologies.erdos_renyi(12, 0.5).W, topologies.erdos_renyi(12, 0.5, 0).W
    )
    np.testing.assert_array_equal(
        topologies.random_regular(12, 3).W, topologies.random_regular(12, 3, 0).W
    )


def test_names_of_draws_tell_the_draw():
    assert topologies.erdos_renyi(6, 0.75, 2).name == "erdos_renyi(6, 0.75, 2)"
    assert topologies.random_regular(6, 3, 1).name == "random_regular(6, 3, 1)"


@pytest.mark.parametrize(("n", "degree"), [(1, 0), (2, 1), (9, 4)])
def test_everybody_in_a_regular_graph_has_as_many_neighbours(n, degree):
    regular = topologies.random_regular(n, degree, seed=1)
    assert regular.sends.tolist() == regular.receives.tolist() == [[degree] * n]
    assert (regular.n, regular.degree, regular.symmetric) == (n, degree, True)


def test_a_large_random_regular_graph_is_an_expander():
    """Friedman: within a little of the bound of Alon and Boppana."""
    degree = 4
    assert topologies.random_regular(300, degree).rho == pytest.approx(
        (1 + 2 * math.sqrt(degree - 1)) / (degree + 1), abs=0.02
    )


def _halves(graph: nx.Graph) -> bool:
    """Two components of more than eight workers."""
    sizes = [len(part) for part in nx.connected_components(graph)]
    return len(sizes) == 2 and min(sizes) > 8


def test_from_graph_takes_nodes_in_their_order():
    graph = nx.Graph()
    graph.add_nodes_from(["b", "c", ("a", 1)])
    graph.add_edges_from([("c", "b"), (("a", 1), "c")])
    topology = topologies.from_graph(graph)
    assert edges(topology) == {(0, 1), (1, 2)}
    assert (topology.name, topology.n) == ("from_graph", 3)
    np.testing.assert_allclose(topology.W, topologies.chain(3).W, rtol=0, atol=1e-15)


def test_from_graph_takes_edges_only():
    """Not loops, multiples, attributes, nor edges of weight 0; it warns of attributes that look
    like weights.
    """
    graph = nx.MultiGraph([(0, 1), (0, 1), (1, 1), (1, 2)])
    for _, _, attributes in graph.edges(data=True):
        attributes["weight"] = 7.5
    graph[1][2][0]["weight"] = 0
    with pytest.warns(
        UserWarning, match="mine: the edges have an attribute 'weight', which is not used"
    ):
        np.testing.assert_allclose(
            topologies.from_graph(graph, name="mine").W, topologies.chain(3).W, rtol=0, atol=1e-15
        )
    weighted = nx.Graph()
    weighted.add_weighted_edges_from([(0, 1, 5.0), (1, 2, 0.0), (2, 3, math.nan)])
    with pytest.warns(UserWarning, match="pass weights='weight'"):
        np.testing.assert_allclose(
            topologies.from_graph(weighted).W, topologies.chain(4).W, rtol=0, atol=1e-15
        )


def test_an_edge_of_a_directed_graph_is_from_sender_to_receiver():
    pairs = [(0, 1), (1, 2), (2, 0), (0, 2)]
    topology = topologies.from_graph(nx.DiGraph(pairs))
    assert edges(topology) == set(pairs)
    np.testing.assert_allclose(
        topology.W,
        [[1 / 3, 0, 1 / 2], [1 / 3, 1 / 2, 0], [1 / 3, 1 / 2, 1 / 2]],
        rtol=0,
        atol=1e-15,
    )
    assert topology.sends.tolist() == [[2, 1, 1]]
    assert topology.receives.tolist() == [[1, 1, 2]]
    twice = topologies.from_graph(nx.MultiDiGraph([*pairs, (0, 2), (1, 1)]))
    np.testing.assert_array_equal(twice.W, topology.W)


def test_from_graph_takes_other_weights_and_names_them():
    path = nx.path_graph(4)
    for weights in (topologies.max_degree, topologies.lazy, topologies.uniform):
        topology = topologies.from_graph(path, weights, "mine")
        np.testing.assert_array_equal(topology.W, topologies.chain(4, weights).W)
        assert topology.name == f"mine, {weights.__name__}"
    assert topologies.from_graph(path, topologies.metropolis, "mine").name == "mine"
    assert (
        topologies.from_graph(nx.DiGraph([(0, 1), (1, 0)]), topologies.uniform, "mine").name
        == "mine"
    )


@pytest.mark.parametrize("graph", [np.eye(3), None, [(0, 1)]], ids=["matrix", "nothing", "edges"])
def test_what_is_no_graph_is_refused(graph):
    """By the types under pytest, by itself elsewhere."""
    with pytest.raises((ValueError, TypeError, AssertionError)):
        topologies.from_graph(graph)
    with pytest.raises(ValueError, match=r"(?s)from_graph: graph = .*; expected a networkx graph"):
        inspect.unwrap(topologies.from_graph)(graph)


def test_from_matrix_takes_lists_and_integers():
    assert topologies.from_matrix([[1]]).W.dtype == np.float64
    topology = topologies.from_matrix([[0.75, 0.25], [0.25, 0.75]], "pair")
    assert topology.name == "pair"
    assert topology.rho == pytest.approx(0.5)
    assert topologies.from_matrix([[[0.75, 0.25], [0.25, 0.75]]] * 3).rho == pytest.approx(0.5**3)


ONE_WAY = nx.DiGraph([(0, 1), (1, 0), (1, 2), (2, 1), (2, 0)])
REFUSED = [
    *(
        (lambda make=make: make(0), f"{make.__name__}: n = 0; expected an integer, at least 1")
        for make in (
            topologies.ring,
            topologies.complete,
            topologies.star,
            topologies.chain,
            topologies.exponential,
        )
    ),
    (lambda: topologies.torus(0, 3), r"torus\(0, 3\): rows = 0; expected an integer, at least 1"),
    (
        lambda: topologies.torus(3, -2),
        r"torus\(3, -2\): columns = -2; expected an integer, at least 1",
    ),
    (
        lambda: topologies.hypercube(-1),
        "hypercube: dimension = -1; expected an integer, at least 0",
    ),
    (lambda: topologies.erdos_renyi(0, 0.5), "erdos_renyi: n = 0; expected an integer, at least 1"),
    *(
        (
            lambda wrong=wrong: topologies.erdos_renyi(5, wrong),
            rf"erdos_renyi\(5, {wrong:g}, 0\): probability = {wrong}; expected a number in \(0, 1\]",
        )
        for wrong in (0, 1.5, math.nan)
    ),
    (
        lambda: topologies.random_regular(0, 0),
        "random_regular: n = 0; expected an integer, at least 1",
    ),
    (
        lambda: topologies.random_regular(4, -1),
        r"random_regular\(4, -1, 0\): degree = -1; expected an integer, at least 0",
    ),
    *(
        (
            lambda n=n, d=d: topologies.random_regular(n, d),
            rf"random_regular\({n}, {d}, 0\): n = {n}, degree = {d}; expected 0 <= degree < n and an even n",
        )
        for n, d in ((5, 3), (4, 4))
    ),
    (
        lambda: topologies.erdos_renyi(30, 0.02),
        r"erdos_renyi\(30, 0.02, 0\): the drawn graph has \d+ components, the smallest with workers "
        r"\[\d+\]; expected .*: pass a higher prob.* seed",
    ),
    (
        lambda: topologies.random_regular(8, 1),
        r"random_regular\(8, 1, 0\): the drawn graph has 4 components, .* \[\d, \d\]; expected .*: pass a "
        r"degree of at least 3, or",
    ),
    (
        lambda: next(
            topologies.random_regular(30, 2, seed)
            for seed in range(100)
            if _halves(nx.random_regular_graph(2, 30, seed=seed))
        ),
        r"has 2 components, the smallest with workers \[\d+(, \d+){7}\]; expected",
    ),
    (
        lambda: topologies.from_graph(ONE_WAY, topologies.metropolis),
        r"metropolis: the graph is directed \(worker 2 sends to 0, which does not",
    ),
    (
        lambda: topologies.from_graph(nx.Graph()),
        "from_graph: the graph has no nodes; expected at least one",
    ),
    (
        lambda: topologies.from_graph(nx.Graph([("a", "b"), ("c", "d")]), name="mine"),
        r"mine: the graph has 2 components, one of them workers \{0, 1\}",
    ),
    (
        lambda: topologies.from_graph(nx.DiGraph([(0, 1), (1, 2)]), name="mine"),
        r"mine: the graph has 3 components, .* expected a strongly connected graph",
    ),
    (
        lambda: topologies.from_matrix([[0.5, 0.5], [0.5, 0.75]], "pair"),
        "pair: row 1 of W sums to 1.25 .*expected 1",
    ),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_is_no_graph_for_gossip_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
