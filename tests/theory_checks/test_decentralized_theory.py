"""Theorems of decentralized methods: the terms of their bounds, compared with plain sums."""

from __future__ import annotations

import math

import numpy as np
import pytest

import topologies
from dsgd import problems
from theory_checks import bounds, local_sgd
from theory_checks.machinery import paths
from theory_checks.statements import (
    compressed_gossip,
    corrected_gossip,
    gradient_tracking,
    push_sum,
)

# --- The memory of products of mixing matrices.


@pytest.mark.parametrize(
    ("period", "topology"), [*local_sgd.schedules(), *local_sgd.local()], ids=repr
)
def test_the_memory_is_at_least_the_sum_and_nearly_equal(period, topology):
    memory = local_sgd.memory(topology, period)
    matrices = [
        W
        for last in topology.matrices
        for W in [*[np.eye(topology.n)] * (period - 1), last.toarray()]
    ]
    P, N = len(matrices), topology.n
    drift, squares = np.zeros((P, P)), np.zeros(P)
    for end in range(P):
        product = np.eye(N) - 1 / N
        for lag in range(1, 60 * P):
            product = product @ matrices[(end - lag) % P]
            drift[end, (end - lag) % P] += np.linalg.norm(product, 2)
            squares[end] += np.sum(product**2) / N
    for found, plain in ((memory.drift, drift), (memory.noise, np.sqrt(squares))):
        assert (found >= plain - 1e-9).all()
        assert (found <= plain * (1 + 1e-3) + 1e-9).all()


def test_one_symmetric_matrix_has_the_bound_of_decentralized_sgd_without_noise():
    ring = topologies.ring(5)
    of = {
        "gap": 1.0,
        "smoothness": 2.0,
        "noise": 0.0,
        "heterogeneity": 3.0,
        "workers": 5,
        "steps": 40,
        "learning_rate": 0.1,
    }
    found = bounds.local_sgd(**of, memory=local_sgd.memory(ring))
    assert found == pytest.approx(bounds.decentralized_sgd(**of, rho=ring.rho), rel=1e-9)


# --- Linear rates: their numbers.


def test_the_largest_step_of_gradient_tracking_is_where_the_spectral_radius_is_1():
    for topology in gradient_tracking.graphs():
        of = {"smoothness": 2.0, "strong_convexity": 0.3, "topology": topology}
        largest = gradient_tracking.largest_step(**of)
        radii = [
            np.abs(
                np.linalg.eigvals(
                    gradient_tracking.contraction(**of, learning_rate=share * largest)
                )
            ).max()
            for share in (0.5, 0.999, 1.0, 1.001)
        ]
        assert radii[0] < radii[1] < 1 < radii[3]
        assert radii[2] == pytest.approx(1, abs=1e-9)


def test_compressed_gossip_converges_at_larger_steps_than_its_paper_has():
    """Below the step size derived in the module's docstring."""
    for topology in compressed_gossip.graphs():
        delta, beta, omega = 1 - topology.rho, 1 - topology.smallest_eigenvalue, 1 / 4
        s = math.sqrt(1 - omega)
        largest = delta * (1 - s) / (s * beta * (delta + beta))
        assert (
            0
            < compressed_gossip.recommended_consensus_step(delta=delta, beta=beta, omega=omega)
            < largest
            < 1
        )
        below, above = (
            np.abs(np.linalg.eigvals(compressed_gossip.choco_matrix(topology, eta, 4))).max()
            for eta in (largest, 2 * largest)
        )
        assert below <= 1 + 1e-9
        assert above > 1


def test_the_rate_of_exact_diffusion_is_that_of_its_slowest_part():
    problem = problems.random_quadratic(
        4, 2, smoothness=2.0, strong_convexity=0.5, equal_hessians=True
    )
    dense, sparse = topologies.complete(4), topologies.ring(4)
    assert corrected_gossip.linear_rate(problem, dense, 0.1, 0.5) == pytest.approx(0.95**2)
    assert corrected_gossip.linear_rate(problem, dense, 0.9, 0.5) == pytest.approx(0.8**2)
    assert corrected_gossip.linear_rate(problem, sparse, 0.5, 0.5) == pytest.approx(
        1 - (1 - 1 / 3) / 2
    )


def test_a_dobrushin_coefficient_is_0_for_equal_rows_and_1_for_disjoint_rows():
    assert push_sum.dobrushin(np.full((3, 3), 1 / 3)) == 0
    assert push_sum.dobrushin(np.eye(3)) == 1
    assert push_sum.dobrushin(np.array([[0.9, 0.1], [0.3, 0.7]])) == pytest.approx(0.6)


def test_hypotheses_of_linear_rates_are_named():
    problem, chain = (
        problems.random_quadratic(3, 2, smoothness=2.0, strong_convexity=0.5),
        topologies.chain(3),
    )
    with pytest.raises(ValueError, match="0 < gamma < 2 / L"):
        corrected_gossip.check_linear(problem, chain, learning_rate=1.0, share=0.5)
    with pytest.raises(ValueError, match="P <= I"):
        corrected_gossip.check_linear(
            problem, topologies.from_matrix((1 - np.eye(3)) / 2), learning_rate=0.1, share=1.0
        )
    with pytest.raises(ValueError, match=r"0 < gamma < 2 lambda_min\(W~\) / L"):
        corrected_gossip.check_extra(problem, chain, learning_rate=1.0)
    indefinite = problems.quadratic(np.array([[-0.1], [1.0], [1.0]]), np.zeros((3, 1)), start=[1.0])
    with pytest.raises(ValueError, match=r"curvature.*-0\.1.*convex f_n"):
        corrected_gossip.check_extra(indefinite, chain, learning_rate=0.1)


# --- Paths.


def test_the_worst_entry_of_arrays_is_found_with_its_index():
    (outcome,) = paths.worst(
        np.array([[1.0, 3.0], [1.0, 2.0]]), np.array([[2.0, 4.0], [1.0, 9.0]]), case="here"
    )
    assert (outcome.ratio, outcome.case, outcome.holds) == (1.0, "here, at (1, 0)", True)
    (outcome,) = paths.worst(
        np.array([1.0, 1.0]), np.array([0.5, 0.9]), case="", scale=np.array([1.0, 1e9])
    )
    assert (outcome.measured, outcome.bound, outcome.holds) == (1.0, 0.5, False)
