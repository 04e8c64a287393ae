"""Methods with variables of the edges, or accelerated gossip: rates, rounding, lost messages, and
single workers.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from dsgd import clusters, problems
from tests.algorithms import quadratics
from tests.methods.graphs import IRREGULAR
from theory_checks.machinery import trajectories
from theory_checks.machinery.trajectories import D

SGD = optax.sgd(0.1)


def test_opapc_needs_as_many_gradients_as_the_root_of_the_condition_number():
    """The distance falls by at least 1 - 1 / (4 sqrt(kappa)) in each round."""
    L, mu = 2.0, 0.5
    method = algorithms.opapc(IRREGULAR, L, mu)
    found = trajectories.run(lambda of: method, quadratics.instance(0.0, np.zeros(D)), length=60)
    X = trajectories.rows(found.states.workers.params)
    distances = np.linalg.norm(X - quadratics.minimizer(), axis=(1, 2))
    assert (distances[60] / distances[10]) ** (1 / 50) < 1 - 1 / (4 * np.sqrt(L / mu))
    with pytest.raises(ValueError, match=r"opapc: strong_convexity = 0.2, smooth"):
        algorithms.opapc(IRREGULAR, 0.1, 0.2)


PROBLEM = problems.random_quadratic(8, 4, heterogeneity=2.0, seed=1)
EIGHT = topologies.chain(8)


def run_on(method: dsgd.Algorithm, cluster: clusters.Cluster, steps: int) -> dsgd.Result:
    return dsgd.run(method, PROBLEM, steps=steps, key=jax.random.key(0), cluster=cluster, mesh=1)


def test_relayed_sums_of_bfloat16_models_are_rounded_once():
    """Without gradients, equal models stay equal to the start up to the rounding of messages. If
    each addition was rounded, they would move by 2^-7 on average.
    """
    start = jnp.asarray(np.random.default_rng(0).normal(size=64), jnp.bfloat16)
    still = dsgd.Problem(
        lambda key: start,
        lambda x, data: 0.0 * jnp.sum(x),
        data=jnp.zeros(12, jnp.bfloat16),
        sample=lambda key, data: data,
    )
    method = algorithms.relay_sgd(SGD, topologies.chain(12))
    found = dsgd.run(method, still, steps=50, key=jax.random.key(0), mesh=1).params
    assert found.dtype == jnp.bfloat16
    moved = np.asarray(found, float) / np.asarray(start, float) - 1
    assert np.abs(moved).mean() < 2**-8


def test_counts_recover_in_as_many_rounds_as_the_diameter():
    """Until second 9 no message arrives. A round takes a second."""
    lost = clusters.Quantity(
        lambda key, clock, link: jnp.where(clock < 9, 0.0, 1.0), "late", positive=False
    )
    cluster = clusters.Cluster(clusters.constant(1.0), delivered=lost)
    method, diameter = algorithms.relay_sgd(SGD, EIGHT), 7
    for rounds in (diameter - 1, diameter):
        counts = np.asarray(run_on(method, cluster, 9 + rounds).state.workers.counts)
        ends = np.minimum(np.arange(8), rounds) + np.minimum(np.arange(8)[::-1], rounds)
        np.testing.assert_array_equal(counts.sum(axis=1), ends)


def test_one_worker_sends_nothing():
    problem = problems.random_quadratic(1, 4, heterogeneity=0.0, seed=0)
    for method in (
        algorithms.dlm(SGD, topologies.ring(1)),
        algorithms.lt_admm(SGD, topologies.ring(1), 1),
        algorithms.relay_sgd(SGD, topologies.chain(1)),
        algorithms.opapc(topologies.ring(1), 1.0, 0.1),
        algorithms.decentralized_sgd(SGD, topologies.chebyshev(topologies.ring(1), 2)),
    ):
        history = dsgd.run(method, problem, steps=9, key=jax.random.key(0), mesh=1).history
        assert history["bits"][-1] == 0
        assert history["loss"][-1] < history["loss"][0]


@pytest.mark.long
@pytest.mark.parametrize("method", [algorithms.extra, algorithms.decentralized_sgd])
def test_accelerated_gossip_keeps_the_contract(method):
    """The bits of its exchanges are those that the compiled program sends between devices."""
    problem = problems.random_quadratic(8, 5, heterogeneity=1.0, seed=0)
    accelerated = method(SGD, topologies.chebyshev(topologies.ring(8), 2))
    dsgd.check(accelerated, problem, key=jax.random.key(0)).require()
