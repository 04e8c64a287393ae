"""Shadowheart SGD: its budget, and what its recursion in `tests/methods` does not show: random
messages, and seconds.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dsgd
from algorithms import shadowheart_sgd
from algorithms.compressed.shadowheart_sgd import (
    equilibrium_time,
    make_plan,
    weighted_messages,
)
from dsgd import clusters, compressors, problems
from dsgd.base import Common
from tests.methods.shadowheart_sgd import equilibrium

D = 8
ONE = compressors.random_k(1 / D)


def test_the_budget_solves_the_equation_of_the_equilibrium_time():
    rng = np.random.default_rng(0)
    for _ in range(20):
        h, tau = np.exp(rng.normal(size=(2, 5)))
        omega, noise = np.exp(rng.normal(size=2))
        np.testing.assert_allclose(
            equilibrium_time(h, tau, omega, noise), equilibrium(h, tau, omega, noise), rtol=1e-8
        )
    assert equilibrium_time(np.array([3.0, 2.0]), np.array([1.0, 2.5]), 0.0, 0.0) == 2.5


def test_a_worker_that_cannot_send_within_the_budget_does_not_compute():
    plan = make_plan(np.array([0.5, 0.75, 2.0]), np.array([0.25, 9.0, 0.5]), 2.0, 0.75, 1.6)
    np.testing.assert_array_equal(plan.gradients, [3, 0, 0])
    np.testing.assert_array_equal(plan.messages, [6, 0, 0])
    np.testing.assert_allclose(plan.weights, [1 / (3 * 2.0 + 2.0 * 0.75 + 6 * 0.75), 0, 0])


def test_messages_of_one_vector_are_independent():
    """The mean of m messages has the variance omega / m, with omega = D - 1."""
    times, x = np.array([3, 12], np.int32), jnp.asarray(np.random.default_rng(1).normal(size=D))
    several = weighted_messages(ONE, times, 1 / times)

    def error(key):
        common = Common.of_exchange(key, jnp.int32(1), 2)
        message, decoded = several.compress(key, x, common)
        received = several.decompress(message, D)
        return jnp.sum((decoded - x) ** 2), jnp.max(jnp.abs(received - decoded))

    errors, deviations = jax.jit(jax.vmap(error))(jax.random.split(jax.random.key(0), 2000))
    ratio = np.mean(errors) / np.sum(x**2) / ((D - 1) / 12)
    assert 0.9 < ratio < 1.1
    assert np.max(deviations) < 1e-6


def test_a_round_takes_the_seconds_of_its_gradients_and_messages():
    """Three gradients of 0.5 s and six messages of 0.25 s fit into 1.6 s; the reply takes none."""
    problem = problems.random_quadratic(4, D, heterogeneity=0.0, noise=0.5)
    method = shadowheart_sgd(optax.sgd(0.1), ONE, 0.5, 0.25, 0.75, budget=1.6)

    def run(**up):
        cluster = clusters.Cluster(clusters.constant(0.5), **up)
        options = {"steps": 2, "key": jax.random.key(0), "cluster": cluster, "mesh": 1}
        return dsgd.run(method, problem, **options).history

    messages = run()["bits"][1] - 32 * D
    assert messages == 6 * compressors.mean_bits(ONE, D)
    ports = {"up": clusters.constant(messages / 1.5), "down": clusters.constant(1e12)}
    np.testing.assert_allclose(run(**ports)["clock"], [0, 3.0, 6.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"compute": [2.0, 3.0, 4.0], "send": 1.5, "budget": 1.75}, "expected at least 2.0"),
        ({"compute": [2.0, 3.0], "send": 1.5}, "compute: 2 numbers for 3 workers"),
    ],
)
def test_a_budget_in_which_nothing_fits_is_refused(options, words):
    problem = problems.random_quadratic(3, D, heterogeneity=0.0)
    method = shadowheart_sgd(optax.sgd(0.1), ONE, noise=0.75, **options)
    with pytest.raises(ValueError, match=words):
        dsgd.run(method, problem, steps=1, key=jax.random.key(0), mesh=1)
