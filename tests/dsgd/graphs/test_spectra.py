"""Eigenvalues are the same by all three algorithms: Fourier, dense, Lanczos."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse

import topologies
from dsgd import Topology
from dsgd.graphs import spectra


def rename(topology: Topology) -> Topology:
    """Returns the topology with permuted workers, which is not circulant any more."""
    order = np.random.default_rng(0).permutation(topology.n)
    rounds = [W.toarray()[order][:, order] for W in topology.matrices]
    return Topology("renamed", np.stack(rounds))


def push_matrix(n: int, seed: int) -> np.ndarray:
    """Returns random weights whose columns sum to 1, on a cycle and a few chords."""
    draw = np.random.default_rng(seed)
    W = np.eye(n) + np.roll(np.eye(n), 1, axis=0) + (draw.random((n, n)) < 2 / n)
    W *= draw.uniform(0.2, 1, (n, n))
    return W / W.sum(axis=0)


TOPOLOGIES = {
    "chain": topologies.chain(150),
    "lazy hypercube": topologies.hypercube(6, topologies.lazy),
    "random": topologies.random_regular(150, 3, seed=0),
    "renamed exponential": rename(topologies.exponential(24)),
    "push-sum": topologies.from_matrix(push_matrix(30, 0)),
    "schedule": topologies.random_matchings(21, 8, seed=2),
    "renamed schedule": rename(topologies.one_peer_exponential(11)),
    "push-sum schedule": topologies.from_matrix(
        np.stack([push_matrix(15, seed) for seed in (1, 2, 3)])
    ),
}


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_lanczos_finds_the_eigenvalues_of_the_dense_matrix(name, monkeypatch):
    topology = TOPOLOGIES[name]
    by_numpy = np.linalg.eigvals(topology.W)
    for dense in (spectra._DENSE, 4):
        monkeypatch.setattr(spectra, "_DENSE", dense)
        found = [spectra.second_largest(topology.matrices) for _ in range(2)]
        assert found[0] == found[1] == pytest.approx(np.sort(np.abs(by_numpy))[-2], abs=1e-11)
        if topology.symmetric and topology.period == 1:
            smallest = spectra.smallest(topology.matrices[0])
            assert smallest == pytest.approx(by_numpy.real.min(), abs=1e-11)


def test_only_a_matrix_whose_rows_are_shifts_of_one_is_circulant():
    """Equal positions with other weights, equal numbers of entries at other positions, and rows of
    different lengths are not circulant; a schedule with one such round does not use Fourier.
    """
    ring, star = topologies.ring(5).W, topologies.star(5).W
    weights, places = ring.copy(), ring.copy()
    weights[0, 0] += 0.1
    places[0] = np.roll(places[0], 1)
    assert spectra.circulant(scipy.sparse.csr_array(ring))
    for W in (weights, places, star):
        assert not spectra.circulant(scipy.sparse.csr_array(W))
    for order in ([ring, star], [star, ring]):
        both = topologies.from_matrix(np.stack(order))
        assert both.rho == pytest.approx(np.sort(np.abs(np.linalg.eigvals(both.W)))[-2], abs=1e-12)


def test_rho_of_large_graphs_is_the_closed_form():
    """For sizes that are not computed from the dense matrix, and by Fourier."""
    n = 2500
    assert n > spectra._DENSE
    assert topologies.chain(n).rho == pytest.approx((1 + 2 * math.cos(math.pi / n)) / 3, abs=1e-13)
    n = 50_001
    expected = (1 + 2 * math.cos(2 * math.pi / n)) / 3
    assert topologies.ring(n).rho == pytest.approx(expected, abs=1e-15 + 1e-13 / n)
