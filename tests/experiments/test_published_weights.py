"""The fastest weights of a graph, with the closed forms of rings and stars."""

from __future__ import annotations

import numpy as np
import pytest

import topologies
from experiments.published.weights import fastest, spectral_norm

COSINE = np.cos(2 * np.pi / 10)


@pytest.mark.parametrize(
    ("graph", "norm", "weight"),
    [
        (topologies.ring(10), (1 + COSINE) / (3 - COSINE), 1 / (3 - COSINE)),
        (topologies.star(7), 1 - 2 / 8, 2 / 8),
    ],
)
def test_fastest_weights_of_rings_and_stars(graph, norm, weight):
    W = fastest(graph)
    assert spectral_norm(W) == pytest.approx(norm, rel=1e-4)
    assert norm < 0.999 * spectral_norm(graph)
    np.testing.assert_allclose(W.W[graph.W * (1 - np.eye(graph.n)) > 0], weight, rtol=1e-2)
    assert not W.W[graph.W == 0].any()
