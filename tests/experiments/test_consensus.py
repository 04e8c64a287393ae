"""Consensus errors of the reproductions about graphs."""

from __future__ import annotations

import numpy as np
import pytest

import dsgd
import topologies
from experiments.published.consensus import errors, rounds_to


def test_errors_are_norms_of_differences_to_the_mean_of_the_start():
    """On two rounds in turn, against products of matrices."""
    W = np.array([[0.8, 0.2, 0.0], [0.2, 0.5, 0.3], [0.0, 0.3, 0.7]])
    V = np.array([[0.4, 0.0, 0.6], [0.0, 1.0, 0.0], [0.6, 0.0, 0.4]])
    found = errors(dsgd.Topology("two", [W, V]), 3, starts=(5, 8))
    expected = np.zeros(4)
    for seed in (5, 8):
        x = np.random.RandomState(seed).randn(3)
        for t, product in enumerate((np.eye(3), W, V @ W, W @ V @ W)):
            expected[t] += np.linalg.norm(product @ x - x.mean()) / 2
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_errors_of_a_ring_fall_by_its_second_eigenvalue():
    ring = topologies.ring(7)
    found = errors(ring, 60)
    assert found[60] / found[59] == pytest.approx(ring.rho, rel=1e-4)


@pytest.mark.parametrize(
    ("target", "expected"),
    [(9.0, 0.0), (8.0, 0.0), (4.0, 1.0), (2.0, 1.5), (1.0, 2.0), (0.5, np.inf)],
)
def test_rounds_to_a_target_are_interpolated_in_logarithms(target, expected):
    assert rounds_to(np.array([8.0, 4.0, 1.0]), target) == pytest.approx(expected)
