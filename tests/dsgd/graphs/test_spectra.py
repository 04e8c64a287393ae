"""Eigenvalues are the same by each of the three roads: Fourier, dense, Lanczos."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse

import topologies
from dsgd import Topology
from dsgd.graphs import spectra


def renamed(rounds: list[np.ndarray]) -> Topology:
    """With workers in another order: no circulant matrix any more."""
    order = np.random.default_rng(0).permutation(len(rounds[0]))
    return Topology("renamed", np.stack([W[order][:, order] for W in rounds]))


def dense(topology: Topology) -> list[np.ndarray]:
    return [W.toarray() for W in topology.matrices]


def pushed(n: int, seed: int) -> np.ndarray:
    """Random weights whose columns sum to 1, on a cycle and a few chords."""
    draw = np.random.default_rng(seed)
    W = np.eye(n) + np.roll(np.eye(n), 1, axis=0) + (draw.random((n, n)) < 2 / n)
    W *= draw.uniform(0.2, 1, (n, n))
    return W / W.sum(axis=0)


TOPOLOGIES = {
    "chain": topologies.chain(40),
    "lazy hypercube": topologies.hypercube(6, topologies.lazy),
    "negative end": renamed(
        [
            0.1 * np.eye(31)
            + 0.45 * (np.roll(np.eye(31), 1, axis=0) + np.roll(np.eye(31), -1, axis=0))
        ]
    ),
    "renamed exponential": renamed(dense(topologies.exponential(24))),
    "push-sum": topologies.from_matrix(pushed(30, 0)),
    "schedule": topologies.random_matchings(21, 8, seed=2),
    "renamed schedule": renamed(dense(topologies.one_peer_exponential(11))),
    "push-sum schedule": topologies.from_matrix(np.stack([pushed(15, seed) for seed in (1, 2, 3)])),
}


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_lanczos_finds_what_the_dense_matrix_has(name, monkeypatch):
    topology = TOPOLOGIES[name]
    by_numpy = np.sort(np.abs(np.linalg.eigvals(topology.W)))[-2]
    assert spectra.second_largest(topology.matrices) == pytest.approx(by_numpy, abs=1e-11)
    monkeypatch.setattr(spectra, "_DENSE", 4)
    assert spectra.second_largest(topology.matrices) == pytest.approx(by_numpy, abs=1e-11)
    assert spectra.second_largest(topology.matrices) == spectra.second_largest(topology.matrices)


@pytest.mark.parametrize("name", ["chain", "random"])
def test_lanczos_finds_the_smallest_eigenvalue(name, monkeypatch):
    topology = {
        "chain": topologies.chain(150),
        "random": topologies.random_regular(150, 3, seed=0),
    }[name]
    by_numpy = np.linalg.eigvals(topology.W).real.min()
    assert topology.smallest_eigenvalue == pytest.approx(by_numpy, abs=1e-12)
    monkeypatch.setattr(spectra, "_DENSE", 4)
    assert spectra.smallest(topology.matrices[0]) == pytest.approx(by_numpy, abs=1e-11)


@pytest.mark.parametrize(
    "topology",
    [
        *(topologies.ring(n) for n in (8, 33)),
        topologies.exponential(7),
        topologies.one_peer_exponential(6),
        topologies.from_matrix(
            0.6 * np.eye(9)
            + 0.41 * np.roll(np.eye(9), 2, axis=0)
            - 0.01 * np.roll(np.eye(9), -1, axis=0),
            "negative",
        ),
    ],
    ids=lambda topology: topology.name,
)
def test_fourier_finds_what_the_dense_matrix_has(topology):
    assert all(spectra.circulant(W) for W in topology.matrices)
    other = renamed(dense(topology))
    # a product of many rounds may be defective
    assert topology.rho == pytest.approx(other.rho, abs=1e-7)
    if topology.symmetric:
        assert topology.smallest_eigenvalue == pytest.approx(other.smallest_eigenvalue, abs=1e-13)


def test_only_a_matrix_whose_rows_are_shifts_of_one_is_circulant():
    """The same places with other weights, as many a row at other places, and rows of different
    lengths are not.
    """
    ring = topologies.ring(5).W
    weights, places = ring.copy(), ring.copy()
    weights[0, 0] += 0.1
    places[0] = np.roll(places[0], 1)
    assert spectra.circulant(scipy.sparse.csr_array(ring))
    for W in (weights, places, topologies.star(5).W):
        assert not spectra.circulant(scipy.sparse.csr_array(W))


def test_one_round_that_is_not_circulant_takes_a_schedule_off_fourier():
    rounds = [topologies.ring(6).W, topologies.star(6).W]
    for order in (rounds, rounds[::-1]):
        both = topologies.from_matrix(np.stack(order))
        assert both.rho == pytest.approx(np.sort(np.abs(np.linalg.eigvals(both.W)))[-2], abs=1e-12)


def test_rho_of_a_large_ring_is_the_closed_form():
    n = 50_001
    assert topologies.ring(n).rho == pytest.approx(
        (1 + 2 * math.cos(2 * math.pi / n)) / 3, abs=1e-15 + 1e-13 / n
    )


def test_rho_of_large_graphs_is_the_closed_form():
    """Beyond what is taken from the dense matrix."""
    n = 2500
    assert n > spectra._DENSE
    assert topologies.chain(n).rho == pytest.approx((1 + 2 * math.cos(math.pi / n)) / 3, abs=1e-13)


def test_second_largest_of_one_worker_is_nothing():
    assert spectra.second_largest([scipy.sparse.csr_array(np.ones((1, 1)))]) == 0


def test_product_size_symmetric():
    first, second = (scipy.sparse.csr_array(pushed(4, seed)) for seed in (0, 1))
    np.testing.assert_allclose(
        spectra.product([first, second]), second.toarray() @ first.toarray(), rtol=0, atol=1e-15
    )
    np.testing.assert_array_equal(spectra.product([first]), first.toarray())
    assert spectra.size(first) == 4
    assert not spectra.symmetric(first)
    assert spectra.symmetric(scipy.sparse.csr_array(topologies.star(4).W))
