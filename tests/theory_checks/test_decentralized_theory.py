"""Theorems of methods on graphs: what their bounds are made of, beside plain sums."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms
import topologies
from dsgd import problems
from theory_checks import bounds, local_sgd
from theory_checks.machinery import moments, paths
from theory_checks.statements import (
    compressed_gossip,
    corrected_gossip,
    gradient_tracking,
    push_sum,
)

# --- The memory of products of mixing matrices.


@pytest.mark.parametrize(
    "topology", [topologies.ring(5), topologies.star(4), topologies.complete(3)], ids=repr
)
def test_the_memory_of_one_symmetric_matrix_is_in_closed_form(topology):
    memory, rho = local_sgd.memory(topology), topology.rho
    eigenvalues = np.linalg.eigvalsh(topology.W)[:-1]
    assert memory.drift == pytest.approx(np.array([[rho / (1 - rho)]]), rel=1e-9, abs=1e-12)
    assert memory.noise[0] ** 2 == pytest.approx(
        np.sum(eigenvalues**2 / (1 - eigenvalues**2)) / topology.n, rel=1e-7, abs=1e-12
    )
    assert memory.radius == memory.steady == pytest.approx(rho / (1 - rho), abs=1e-12)


def test_the_memory_of_local_steps_lasts_until_the_mean():
    memory = local_sgd.memory(topologies.complete(4), 3)
    assert memory.drift == pytest.approx(np.tril(np.ones((3, 3)), -1), abs=1e-12)
    assert memory.noise == pytest.approx(np.sqrt(np.arange(3) * 3 / 4), abs=1e-12)
    assert memory.radius == 0
    assert memory.steady == pytest.approx(2)


@pytest.mark.parametrize(
    ("period", "topology"), [*local_sgd.schedules(), *local_sgd.local()], ids=repr
)
def test_the_memory_is_at_least_the_sum_and_hardly_more(period, topology):
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


def test_a_matrix_without_rows_that_sum_to_1_has_no_memory():
    directed = topologies.from_matrix([[0.5, 0.0, 0.5], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
    assert local_sgd.memory(directed).steady > 0
    pushed = topologies.from_matrix([[0.5, 0.5, 0.5], [0.25, 0.5, 0.0], [0.25, 0.0, 0.5]])
    with pytest.raises(ValueError, match="expected a doubly stochastic W in all rounds"):
        local_sgd.memory(pushed)


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
    """Below the step that the module's docstring derives."""
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


def test_a_dobrushin_coefficient_is_0_where_rows_are_equal_and_1_where_they_have_nothing_in_common():
    assert push_sum.dobrushin(np.full((3, 3), 1 / 3)) == 0
    assert push_sum.dobrushin(np.eye(3)) == 1
    assert push_sum.dobrushin(np.array([[0.9, 0.1], [0.3, 0.7]])) == pytest.approx(0.6)


def test_hypotheses_of_linear_rates_are_named():
    problem, chain = (
        problems.random_quadratic(3, 2, smoothness=2.0, strong_convexity=0.5),
        topologies.chain(3),
    )
    with pytest.raises(ValueError, match="expected 0 < gamma < 2 / L"):
        corrected_gossip.check_linear(problem, chain, learning_rate=1.0, share=0.5)
    with pytest.raises(ValueError, match="expected P <= I"):
        corrected_gossip.check_linear(
            problem, topologies.from_matrix((1 - np.eye(3)) / 2), learning_rate=0.1, share=1.0
        )
    with pytest.raises(ValueError, match=r"expected 0 < gamma < 2 lambda_min\(W~\) / L"):
        corrected_gossip.check_extra(problem, chain, learning_rate=1.0)
    indefinite = problems.quadratic(np.array([[-0.1], [1.0], [1.0]]), np.zeros((3, 1)), start=[1.0])
    with pytest.raises(ValueError, match=r"has a curvature of -0\.1; expected convex f_n"):
        corrected_gossip.check_extra(indefinite, chain, learning_rate=0.1)


# --- Paths.


def test_a_path_is_that_of_the_method():
    """Decentralized SGD by hand, from models that differ; the noise is left out."""
    topology, gamma = topologies.chain(3), 0.2
    problem, X = (
        problems.random_quadratic(3, 2, noise=5.0, seed=1),
        np.random.default_rng(0).normal(size=(3, 2)),
    )
    path = paths.follow(
        moments.with_step(algorithms.decentralized_sgd, topology), problem, gamma, steps=5, models=X
    )
    assert path.workers.params.shape == (6, 3, 2)
    assert path.step.tolist() == list(range(6))
    for found in path.workers.params:
        assert found == pytest.approx(X, abs=1e-14)
        X = topology.W @ (X - gamma * paths.gradients(problem, X))


def test_gradients_by_hand_are_those_of_the_problem():
    for diagonal in (True, False):
        problem = problems.random_quadratic(3, 2, diagonal=diagonal, seed=1)
        X = np.random.default_rng(0).normal(size=(5, 3, 2))
        expected = jax.vmap(jax.vmap(jax.grad(problem.loss)), (0, None))(
            jnp.asarray(X), problem.data
        )
        assert paths.gradients(problem, X) == pytest.approx(np.asarray(expected), rel=1e-12)


def test_the_worst_of_arrays_is_found_with_its_place():
    (outcome,) = paths.worst(
        np.array([[1.0, 3.0], [1.0, 2.0]]), np.array([[2.0, 4.0], [1.0, 9.0]]), case="here"
    )
    assert (outcome.ratio, outcome.case, outcome.holds) == (1.0, "here, at (1, 0)", True)
    (outcome,) = paths.worst(
        np.array([1.0, 1.0]), np.array([0.5, 0.9]), case="", scale=np.array([1.0, 1e9])
    )
    assert (outcome.measured, outcome.bound, outcome.holds) == (1.0, 0.5, False)
