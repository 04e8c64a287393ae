"""Accelerated gossip: its matrices in closed form, and arguments that are refused."""

from __future__ import annotations

from collections.abc import Callable

import networkx as nx
import numpy as np
import optax
import pytest

import algorithms
import topologies
from dsgd import network
from dsgd.graphs.topology import Topology

GRAPHS: dict[str, Topology] = {
    "ring": topologies.ring(8),
    "star": topologies.star(7),
    "lazy chain": topologies.chain(6, topologies.lazy),
    "torus": topologies.torus(3, 4),
    "random": topologies.from_graph(nx.erdos_renyi_graph(9, 0.4, seed=1)),
    "two workers": topologies.ring(2),
    "complete": topologies.complete(5),
}


def gaps(topology: Topology) -> tuple[float, float]:
    """Returns the smallest and the largest eigenvalue of I - W but 0."""
    found = np.linalg.eigvalsh(np.eye(topology.n) - topology.W)
    return float(found[1]), float(found[-1])


def polynomial(topology: Topology, p: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Returns p(I - W)."""
    values, vectors = np.linalg.eigh(np.eye(topology.n) - topology.W)
    return (vectors * p(values)) @ vectors.T


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("K", [1, 2, 5])
def test_chebyshev_gossip_is_the_scaled_polynomial(name, K):
    """It reduces disagreement by exactly the smallest factor that a polynomial of this degree has
    between the extreme eigenvalues.
    """
    topology = GRAPHS[name]
    found, (low, high), J = (
        topologies.chebyshev(topology, K),
        gaps(topology),
        np.full((topology.n,) * 2, 1 / topology.n),
    )
    root = np.sqrt(high / low)
    c = (root - 1) / (root + 1)
    reduction = 2 * c**K / (1 + c ** (2 * K))
    assert np.linalg.norm(found.W - J, 2) == pytest.approx(reduction, abs=1e-13)
    assert found.rho == pytest.approx(reduction, abs=1e-13)
    if high - low > 1e-12:
        middle, half = (high + low) / 2, (high - low) / 2
        T = np.polynomial.Chebyshev.basis(K)
        expected = polynomial(topology, lambda gap: T((middle - gap) / half) / T(middle / half))
        np.testing.assert_allclose(found.W, expected, rtol=0, atol=1e-13)
    assert found.symmetric
    assert found.doubly_stochastic


@pytest.mark.parametrize("K", [2, 3, 6])
def test_with_a_symmetric_spectrum_the_reduction_is_a_function_of_rho(K):
    """2 c^K / (1 + c^2K) with c = (1 - sqrt(1 - rho^2)) / rho."""
    one = topologies.from_matrix(topologies.chebyshev(GRAPHS["ring"], 1).W, "centred")
    assert one.second_eigenvalue == pytest.approx(-one.smallest_eigenvalue, abs=1e-14)
    c = (1 - np.sqrt(1 - one.rho**2)) / one.rho
    reduction = 2 * c**K / (1 + c ** (2 * K))
    assert topologies.chebyshev(one, K).rho == pytest.approx(reduction, abs=1e-14)


@pytest.mark.parametrize("name", GRAPHS)
def test_fast_mix_is_its_recursion_and_slower_than_chebyshev(name):
    topology = GRAPHS[name]
    root = np.sqrt(1 - topology.rho**2)
    eta = (1 - root) / (1 + root)
    before = now = np.eye(topology.n)
    for K in range(1, 7):
        before, now = now, (1 + eta) * topology.W @ now - eta * before
        found = topologies.fast_mix(topology, K)
        np.testing.assert_allclose(found.W, now, rtol=0, atol=1e-13)
        assert found.rho >= topologies.chebyshev(topology, K).rho - 1e-13


def test_an_accelerated_topology_has_the_edges_of_one_exchange():
    ring, found = topologies.ring(9), topologies.chebyshev(topologies.ring(9), 4)
    np.testing.assert_array_equal(found.edges, ring.edges)
    np.testing.assert_array_equal(found.out_degrees, ring.out_degrees)
    assert (found.name, found.degree) == ("chebyshev(ring(9), 4)", 4 * ring.degree)


REFUSED = {
    "no rounds": (lambda: topologies.chebyshev(GRAPHS["ring"], 0), "chebyshev: rounds = 0"),
    "a schedule": (
        lambda: topologies.chebyshev(topologies.random_matchings(4), 2),
        r"chebyshev: random_matchings\(4, 32, 0\) is a schedule of 32 rounds; expected one symm",
    ),
    "directed": (
        lambda: topologies.fast_mix(topologies.exponential(6), 2),
        r"fast_mix: exponential\(6\) has a W that is not symmetric; expected one symmetric W",
    ),
    "twice": (
        lambda: topologies.chebyshev(topologies.fast_mix(GRAPHS["ring"], 2), 2),
        r"chebyshev on fast_mix\(ring\(8\), 2\): a round has 2 exchanges; expected",
    ),
    "push-sum": (
        lambda: algorithms.push_diging(optax.sgd(0.1), topologies.chebyshev(GRAPHS["ring"], 2)),
        r"push_diging on chebyshev\(ring\(8\), 2\): a round has 2 exchanges; expected",
    ),
    "no contraction": (
        lambda: topologies.fast_mix(topologies.from_matrix(0.9 * np.eye(2)[::-1] + 0.05, "two"), 1),
        r"fast_mix\(two, 1\): rho = 1.64.*, so gossip does not converge; expected rho < 1: pass",
    ),
    "a pattern": (
        lambda: network.gossip(topologies.chebyshev(GRAPHS["ring"], 2)),
        r"network.gossip on chebyshev\(ring\(8\), 2\): a round has 2 exchanges; expected",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_topologies_that_do_not_fit_are_refused(name):
    make, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        make()
