"""A mixing matrix knows its rho, its neighbours and its shifts, and a wrong one is refused with the entry that is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import topologies
from dsgd import Topology


def circulant(n: int, weights: dict[int, float]) -> np.ndarray:
    """The weights by shift, both ways; what is left of 1 stays on the diagonal."""
    W = np.zeros((n, n))
    for shift, weight in weights.items():
        for s in {shift % n, -shift % n}:
            W += weight * np.roll(np.eye(n), s, axis=0)
    return W + np.eye(n) * (1 - W[0].sum())


def metropolis(edges: list[tuple[int, int]], n: int) -> np.ndarray:
    degree = np.bincount(np.ravel(edges), minlength=n)
    W = np.zeros((n, n))
    for i, j in edges:
        W[i, j] = W[j, i] = 1 / (1 + max(degree[i], degree[j]))
    return W + np.diag(1 - W.sum(axis=1))


def star(n: int) -> np.ndarray:
    return metropolis([(0, i) for i in range(1, n)], n)


def second_largest(W: np.ndarray) -> float:
    """By numpy's general solver, which does not know that W is symmetric."""
    return np.sort(np.abs(np.linalg.eigvals(W)))[-2]


MATRICES = {
    "two": np.array([[0.7, 0.3], [0.3, 0.7]]),
    "circulant, odd": circulant(7, {1: 0.2, 2: 0.1}),
    "circulant, even": circulant(12, {1: 0.1, 3: 0.2, 6: 0.15}),
    "circulant, many shifts": circulant(16, {1: 0.1, 2: 0.05, 3: 0.1, 5: 0.05, 7: 0.1}),
    "circulant, negative weights": circulant(9, {1: 0.4, 2: -0.05}),
    "circulant, rho from the negative end": circulant(8, {1: 0.45}),
    "star": star(6),
    "path": metropolis([(i, i + 1) for i in range(6)], 7),
    "weighted": np.array([[0.5, 0.4, 0.1], [0.4, 0.35, 0.25], [0.1, 0.25, 0.65]]),
}
every_matrix = pytest.mark.parametrize("W", MATRICES.values(), ids=MATRICES)


@every_matrix
def test_rho_is_the_second_largest_absolute_eigenvalue(W):
    topology = Topology("W", W)
    assert topology.rho == pytest.approx(second_largest(W), abs=1e-12)
    assert topology.spectral_gap == pytest.approx(1 - second_largest(W), abs=1e-12)


@given(st.lists(st.permutations(range(8)), min_size=2, max_size=4))
def test_rho_of_random_doubly_stochastic_matrices(permutations):
    swaps = [np.eye(8)[list(permutation)] for permutation in permutations]
    W = (np.ones((8, 8)) / 8 + sum((swap + swap.T) / 2 for swap in swaps)) / (1 + len(swaps))
    assert Topology("W", W).rho == pytest.approx(second_largest(W), abs=1e-12)


@every_matrix
def test_rho_is_how_fast_disagreement_dies_at_worst(W):
    """After many rounds the worst direction is all that is left, and a round shrinks it by rho."""
    topology = Topology("W", W)
    x = np.random.default_rng(0).normal(size=topology.n)
    for _ in range(400):
        x = topology.W @ topology.W @ x
        x -= x.mean()
        x /= np.linalg.norm(x)
    assert np.linalg.norm(topology.W @ x) == pytest.approx(topology.rho, rel=1e-3)


@every_matrix
def test_rho_does_not_depend_on_who_is_who(W):
    """Renamed, a circulant matrix is none any more, and takes the other road."""
    order = np.random.default_rng(1).permutation(len(W))
    assert Topology("renamed", W[order][:, order]).rho == pytest.approx(Topology("W", W).rho, abs=1e-12)


@every_matrix
def test_neighbours_are_the_others_with_a_weight(W):
    topology = Topology("W", W)
    counted = [sum(W[i, j] != 0 for j in range(len(W)) if j != i) for i in range(len(W))]
    assert topology.n == len(W)
    assert topology.neighbours.tolist() == counted
    assert topology.degree == max(counted)


def test_a_worker_without_weight_for_itself_has_all_its_neighbours():
    triangle = Topology("triangle", (np.ones((3, 3)) - np.eye(3)) / 2)
    assert triangle.neighbours.tolist() == [2, 2, 2]


@pytest.mark.parametrize("name", [name for name in MATRICES if name.startswith("circulant") and "many" not in name] + ["two"])
def test_shifts_reproduce_a_circulant_matrix(name):
    topology = Topology(name, MATRICES[name])
    n = topology.n
    assert all(abs(s) <= n / 2 for s in topology.shifts)
    assert len(topology.shifts) == topology.neighbours[0] + 1
    rebuilt = np.zeros((n, n))
    for s, weight in topology.shifts.items():
        for i in range(n):
            rebuilt[i, (i - s) % n] += weight
    np.testing.assert_array_equal(rebuilt, topology.W)


@pytest.mark.parametrize("name", ["star", "path", "weighted", "circulant, many shifts"])
def test_no_shifts_where_a_product_is_needed(name):
    assert Topology(name, MATRICES[name]).shifts is None


def test_one_worker():
    alone = Topology("alone", np.ones((1, 1)))
    assert (alone.n, alone.rho, alone.degree, alone.shifts, alone.uniform) == (1, 0.0, 0, {0: 1.0}, True)


@every_matrix
def test_only_equal_weights_are_uniform(W):
    assert not Topology("W", W).uniform
    n = len(W)
    assert Topology("uniform", np.full((n, n), 1 / n)).uniform


def test_W_is_a_read_only_copy():
    mine = star(4)
    topology = Topology("star(4)", mine)
    before = mine.copy()
    with pytest.raises(ValueError, match="read-only"):
        topology.W[0, 0] = 2
    mine[:] = 0
    np.testing.assert_array_equal(topology.W, before)
    with pytest.raises(AttributeError):
        topology.W = mine


def test_W_is_kept_in_float64():
    assert Topology("quarters", np.full((4, 4), 0.25, np.float32)).W.dtype == np.float64


@pytest.mark.parametrize("W", [np.ones((2, 3)) / 3, np.ones(3) / 3, np.ones((2, 2, 2)) / 2, np.zeros((0, 0))], ids=lambda W: str(W.shape))
def test_refuses_what_is_not_square(W):
    with pytest.raises(ValueError, match=rf"mine: W has shape \({W.shape[0]},.*need a square matrix"):
        Topology("mine", W)


def test_refuses_asymmetry_and_names_both_entries():
    W = star(5)
    W[1, 3], W[1, 1] = 0.25, W[1, 1] - 0.25
    with pytest.raises(ValueError, match=r"mine: W\[1, 3\] = 0.25 but W\[3, 1\] = 0 \(off by 0.25\); need a symmetric W"):
        Topology("mine", W)


def test_refuses_a_row_that_does_not_sum_to_1_and_names_it():
    W = star(5)
    W[3, 3] -= 0.02
    with pytest.raises(ValueError, match=r"mine: row 3 of W sums to 0.98, not 1"):
        Topology("mine", W)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_refuses_what_is_not_finite_and_names_the_entry(value):
    W = star(5)
    W[2, 4] = value
    with pytest.raises(ValueError, match=rf"mine: W\[2, 4\] = {value}; need finite weights"):
        Topology("mine", W)


def test_refuses_a_disconnected_graph_and_names_a_component():
    W = np.zeros((5, 5))
    W[np.ix_([0, 2], [0, 2])] = 1 / 2
    W[np.ix_([1, 3, 4], [1, 3, 4])] = 1 / 3
    with pytest.raises(ValueError, match=r"mine: the graph falls into 2 components, one of them workers \{(0, 2|1, 3, 4)\}"):
        Topology("mine", W)


def test_a_large_component_is_named_by_its_first_workers():
    W = np.kron(np.eye(2), np.full((10, 10), 1 / 10))
    with pytest.raises(ValueError, match=r"\{0, 1, 2, 3, 4, 5, 6, 7, \.\.\.\}"):
        Topology("mine", W)


@pytest.mark.parametrize("W", [circulant(2, {1: 1.0}), circulant(6, {1: 0.5})], ids=["two workers", "ring of six"])
def test_refuses_a_connected_graph_that_swaps_two_halves(W):
    with pytest.raises(ValueError, match=r"mine: rho = 1, so gossip does not converge although the graph is connected"):
        Topology("mine", W)


def test_refuses_negative_weights_under_which_models_run_apart():
    with pytest.raises(ValueError, match=r"mine: rho = 1.4, so gossip does not converge"):
        Topology("mine", circulant(8, {1: -0.1}))


def test_a_matrix_in_float32_is_put_right():
    W = np.asarray(topologies.ring(7).W, np.float32)
    W[0, 1] += 3e-8
    fixed = topologies.from_matrix(W)
    np.testing.assert_array_equal(fixed.W, fixed.W.T)
    np.testing.assert_allclose(fixed.W.sum(axis=1), 1, rtol=0, atol=1e-15)
    assert fixed.rho == pytest.approx(topologies.ring(7).rho, abs=1e-6)
    with pytest.raises(ValueError, match=r"sums to .*, not 1 \(off by"):
        topologies.from_matrix(W * np.float32(1.001))


def test_a_ragged_matrix_is_refused():
    with pytest.raises(ValueError, match="W is no matrix of numbers"):
        topologies.from_matrix([[1.0], [0.5, 0.5]])
