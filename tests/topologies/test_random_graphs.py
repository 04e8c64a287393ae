"""Random shifts (EquiTopo) and random subgraphs (MATCHA)."""

from __future__ import annotations

import itertools
import math

import networkx as nx
import numpy as np
import pytest

import topologies
from topologies import random_subgraphs


def shift(n: int, u: int) -> np.ndarray:
    """Returns A^(u) of the paper: worker i receives from the worker u places before."""
    return (n - 1) / n * np.roll(np.eye(n), u, axis=0) + np.eye(n) / n


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_static_graph_is_a_mean_of_shifts(symmetric):
    graph = topologies.equi_static(7, 3, seed=2, symmetric=symmetric)
    shifts = np.random.default_rng(2).integers(1, 7, 3)
    W = sum(shift(7, u) for u in shifts) / 3
    np.testing.assert_allclose(graph.W, (W + W.T) / 2 if symmetric else W, atol=1e-15)
    assert graph.doubly_stochastic
    assert graph.symmetric == symmetric


def test_the_spectral_gap_of_a_static_graph_does_not_depend_on_its_size():
    """rho <= 0.9 with probability 1 - p, p = 0.5, if M >= 8 / (3 * 0.81) ln(2 n / p)."""
    within = [
        topologies.equi_static(n, math.ceil(8 / (3 * 0.81) * math.log(4 * n)), seed).rho <= 0.9
        for n in (16, 128)
        for seed in range(20)
    ]
    assert sum(within) >= 30  # of 40; 20 are guaranteed on average


def test_a_round_of_shifts_halves_the_squared_disagreement_on_average():
    """The mean of |W x - mean|^2 / |x - mean|^2 over all shifts is 1/2 - 1/(2 n)."""
    n = 9
    x = np.random.default_rng(0).normal(size=n)
    x -= x.mean()
    reduced = [np.sum(((x + shift(n, u) @ x) / 2) ** 2) for u in range(1, n)]
    assert np.mean(reduced) / np.sum(x**2) == pytest.approx(0.5 - 0.5 / n, rel=1e-12)
    rounds = {W.toarray().round(12).tobytes() for W in topologies.equi_dynamic(n, 200).matrices}
    expected = {((np.eye(n) + shift(n, u)) / 2).round(12).tobytes() for u in range(1, n)}
    assert rounds == expected


def test_symmetric_rounds_are_disjoint_pairs_at_one_distance():
    n, rounds = 10, 50
    graph, draw = (
        topologies.equi_dynamic(n, rounds, seed=1, symmetric=True),
        np.random.default_rng(1),
    )
    assert graph.symmetric
    for W in graph.matrices:
        dense = W.toarray()
        pairs = dict[int, int]()
        u, first = draw.integers(1, n), draw.integers(n)
        for i in np.roll(range(n), -first):
            if not {i, (i + u) % n} & {*pairs, *pairs.values()}:
                pairs[i] = (i + u) % n
        upper = (n - 1) / n * sum(np.outer(*np.eye(n)[[i, j]]) for i, j in pairs.items())
        np.testing.assert_allclose(dense, np.diag(np.diag(dense)) + (upper + upper.T) / 2)
        partner = np.argmax(dense - np.diag(np.diag(dense)) > 0, axis=1)
        paired = np.flatnonzero((dense > 0).sum(axis=1) == 2)
        np.testing.assert_array_equal(partner[partner[paired]], paired)
        distances = (partner[paired] - paired) % n
        assert len({min(u, n - u) for u in distances.tolist()}) == 1
        np.testing.assert_allclose(dense[paired, partner[paired]], 0.5 * (n - 1) / n)


@pytest.mark.parametrize("make", [topologies.equi_dynamic, lambda n: topologies.equi_static(n, 2)])
def test_a_single_worker_has_no_shift(make):
    with pytest.raises(ValueError, match="n = 1; expected at least 2 workers"):
        make(1)


# --- MATCHA.

BARBELL = topologies.from_graph(nx.barbell_graph(5, 0))
PARTS = random_subgraphs.matchings(BARBELL.edges)
LAPLACIANS = np.stack([random_subgraphs.laplacian(10, pairs) for pairs in PARTS])


def second(p: np.ndarray) -> float:
    """Returns the algebraic connectivity of the mean graph."""
    return np.linalg.eigvalsh(np.tensordot(p, LAPLACIANS, 1))[1]


def test_matchings_are_a_partition_of_the_edges_without_common_workers():
    assert sorted(map(tuple, np.concatenate(PARTS))) == sorted(map(tuple, BARBELL.edges))
    assert all(len(np.unique(pairs)) == pairs.size for pairs in PARTS)
    assert len(PARTS) <= BARBELL.degree + 1


def test_with_the_whole_budget_every_round_is_the_graph_with_its_best_weight():
    graph, L = topologies.matcha(BARBELL, 1.0), LAPLACIANS.sum(axis=0)
    values = np.linalg.eigvalsh(L)
    assert graph.period == 1
    np.testing.assert_allclose(graph.W, np.eye(10) - 2 / (values[1] + values[-1]) * L, atol=1e-5)


@pytest.mark.parametrize("budget", [0.2, 0.5])
def test_probabilities_use_the_budget_where_it_connects_most(budget):
    p = random_subgraphs.probabilities(LAPLACIANS, budget)
    assert p.mean() == pytest.approx(budget)
    assert 0 <= p.min() <= p.max() <= 1
    draw = np.random.default_rng(0)
    others = np.minimum(draw.dirichlet(np.ones(len(p)), 2_000) * budget * len(p), 1)
    near = np.clip(p + 0.02 * draw.normal(size=others.shape), 0, 1)
    near *= np.minimum(1, budget * len(p) / near.sum(axis=1, keepdims=True))
    assert max(map(second, [*others, *near])) <= second(p) * (1 + 1e-5)


def test_the_step_is_best_for_the_mean_squared_disagreement():
    p = random_subgraphs.probabilities(LAPLACIANS, 0.4)
    alpha = random_subgraphs.best_step(LAPLACIANS, p)

    def disagreement(alpha: float) -> float:
        """Returns the largest eigenvalue of E[W W] - J, over all subsets of matchings."""
        total = -np.full((10, 10), 0.1)
        for used in itertools.product((0, 1), repeat=len(p)):
            W = np.eye(10) - alpha * np.tensordot(used, LAPLACIANS, 1)
            total += np.prod(np.where(used, p, 1 - p)) * W @ W
        return np.linalg.eigvalsh(total)[-1]

    best = disagreement(alpha)
    assert best < min(disagreement(0.9 * alpha), disagreement(1.1 * alpha))


def test_rounds_are_unions_of_matchings_that_are_drawn_as_often_as_planned():
    rounds = 1_000
    graph = topologies.matcha(BARBELL, 0.5, rounds, seed=3)
    p = random_subgraphs.probabilities(LAPLACIANS, 0.5)
    alpha = random_subgraphs.best_step(LAPLACIANS, p)
    used = np.array([[bool(W[tuple(pairs[0])]) for pairs in PARTS] for W in graph.matrices])
    for W, chosen in zip(graph.matrices, used, strict=True):
        expected = np.eye(10) - alpha * np.tensordot(chosen.astype(float), LAPLACIANS, 1)
        np.testing.assert_allclose(W.toarray(), expected, atol=1e-12)
    errors = np.sqrt(p * (1 - p) / rounds)
    assert (np.abs(used.mean(axis=0) - p) <= 5 * errors + 1e-12).all()


@pytest.mark.parametrize(
    ("graph", "budget", "message"),
    [
        (topologies.exponential(6), 0.5, r"exponential\(6\) is directed; expected an undirected"),
        (topologies.random_matchings(6), 0.5, "is a schedule; expected an undirected graph"),
        (topologies.ring(6), 0.0, r"budget = 0\.0; expected a number in \(0, 1\]"),
    ],
)
def test_what_is_not_one_undirected_graph_or_no_budget_is_refused(graph, budget, message):
    with pytest.raises(ValueError, match=message):
        topologies.matcha(graph, budget)
