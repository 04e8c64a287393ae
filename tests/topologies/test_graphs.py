"""The survey's graphs have the weights, the degree and the rho that it should have printed."""

from __future__ import annotations

import math

import numpy as np
import pytest

import topologies


def ring_rho(n: int) -> float:
    return max((abs(1 + 2 * math.cos(2 * math.pi * k / n)) / 3 for k in range(1, n)), default=0.0)


@pytest.mark.parametrize("n", [4, 5, 6, 7, 16, 33, 64])
def test_ring_is_a_third_each_for_oneself_and_two_neighbours(n):
    ring = topologies.ring(n)
    expected = np.array([[1 / 3 if (i - j) % n in (0, 1, n - 1) else 0 for j in range(n)] for i in range(n)])
    np.testing.assert_array_equal(ring.W, expected)
    assert (ring.n, ring.degree, ring.neighbours.tolist(), ring.name) == (n, 2, [2] * n, f"ring({n})")
    assert ring.shifts == {0: 1 / 3, 1: 1 / 3, -1: 1 / 3}


@pytest.mark.parametrize("n", range(3, 65))
def test_rho_of_a_ring_is_the_closed_form(n):
    assert topologies.ring(n).rho == pytest.approx(ring_rho(n), abs=1e-12)


def test_spectral_gap_of_a_large_ring_is_not_what_the_survey_prints():
    n = 1000
    gap = topologies.ring(n).spectral_gap
    assert gap == pytest.approx(4 * math.pi**2 / (3 * n**2), rel=1e-4)
    assert gap < 0.3 * 16 * math.pi**2 / (3 * n**2)


@pytest.mark.parametrize(("n", "W"), [(1, [[1]]), (2, [[1 / 2] * 2] * 2), (3, [[1 / 3] * 3] * 3)])
def test_small_rings_average_everybody_at_once(n, W):
    ring = topologies.ring(n)
    np.testing.assert_array_equal(ring.W, W)
    assert ring.rho == pytest.approx(0, abs=1e-15)
    assert ring.degree == n - 1
    assert ring.uniform


@pytest.mark.parametrize("n", [1, 2, 3, 10, 50])
def test_complete_averages_everybody_at_once(n):
    complete = topologies.complete(n)
    x = np.random.default_rng(n).normal(size=n)
    np.testing.assert_allclose(complete.W @ x, np.full(n, x.mean()), atol=1e-14)
    assert complete.rho == pytest.approx(0, abs=1e-14)
    assert (complete.n, complete.degree, complete.uniform, complete.name) == (n, n - 1, True, f"complete({n})")


def test_from_matrix_takes_lists_and_integers():
    assert topologies.from_matrix([[1]]).W.dtype == np.float64
    topology = topologies.from_matrix([[0.75, 0.25], [0.25, 0.75]], "pair")
    assert topology.name == "pair"
    assert topology.rho == pytest.approx(0.5)


def test_from_matrix_refuses_under_the_name_given():
    with pytest.raises(ValueError, match=r"pair: row 1 of W sums to 1.25, not 1"):
        topologies.from_matrix([[0.5, 0.5], [0.5, 0.75]], "pair")


@pytest.mark.parametrize("n", [0, -1])
@pytest.mark.parametrize("graph", ["ring", "complete"])
def test_a_graph_needs_a_worker(graph, n):
    with pytest.raises(ValueError, match=rf"{graph}\({n}\): need at least 1 worker"):
        getattr(topologies, graph)(n)
