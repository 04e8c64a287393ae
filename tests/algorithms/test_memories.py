"""Methods with memories of compressed messages: sizes of their states and vectors, and steps with a
regularizer.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from algorithms.mechanisms import servers
from algorithms.mechanisms.memories import Down, Up
from dsgd import compressors, network, problems
from tests.algorithms import quadratics
from tests.methods.steps import PENALTY, soft_threshold
from theory_checks.machinery import trajectories
from theory_checks.machinery.trajectories import N

SGD = optax.sgd(0.1)
TOP, RANDOM, IDENTITY = compressors.top_k(0.2), compressors.random_k(0.2), compressors.identity
float64 = quadratics.float64


def test_sizes_are_those_of_the_vectors_that_are_compressed():
    """Layers have 7 and 15 elements, which six servers cut into parts of 2 and 3."""
    rows, whole = {"a": np.zeros((N, 7)), "b": np.zeros((N, 3, 5))}, compressors.whole_model(RANDOM)
    assert servers.OneServer(RANDOM, None, network.star).sizes(rows) == (7, 15)
    assert servers.OneServer(whole, None, network.star).sizes(rows) == (22,)
    for compressor, sizes in ((RANDOM, (2, 3)), (whole, (4,))):
        route = servers.NServers(compressor, compressor, network.multi_server)
        assert route.sizes(route.start({"a": jnp.zeros(7), "b": jnp.zeros((3, 5))}, N)[0]) == sizes


def test_states_have_only_the_memories_of_the_method():
    """N servers also have the workers' estimate of their shards, with its padding."""
    d = 4 * N
    for method, memories in (
        (algorithms.error_feedback(SGD, Up(RANDOM)), 0),
        (algorithms.error_feedback(SGD, Up(TOP, error=1.0)), N * d),
        (algorithms.error_feedback(SGD, Up(TOP, error=1.0), Down(TOP)), N * d + d),
        (algorithms.ef21(SGD, TOP, None, via=network.star), N * d + d),
        (algorithms.ef21(SGD, TOP, TOP, via=network.star), N * d + 2 * d),
        (algorithms.ef21(SGD, TOP, IDENTITY), N * d + 3 * d),
        (algorithms.econtrol(SGD, TOP, 0.5), 2 * N * d + d),
        (algorithms.ef21_sgdm(SGD, TOP, 0.5), 2 * N * d + d),
        (algorithms.diana(SGD, RANDOM), N * d + d),
    ):
        state = jax.eval_shape(lambda method=method: method.init(jnp.zeros(d), N))
        size = sum(leaf.size for leaf in jax.tree.leaves((state.server, state.workers)))
        assert size == d + memories, method.name


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (algorithms.ef21(SGD, TOP, TOP), "regularizer"),
        (
            algorithms.diana(optax.sgd(0.1, momentum=0.9), RANDOM),
            r"optimizer chain\(trace, scale\): it has moments.*such as optax.sgd\(0.1\)",
        ),
        (algorithms.dist_ef_sgd(SGD), "dist_ef_sgd: memories in units of the step"),
    ],
    ids=["shards", "momentum", "steps"],
)
def test_methods_without_proximal_steps_refuse_a_regularizer(method, words):
    problem = problems.regularized(problems.random_quadratic(N, 3), problems.l1(0.1))
    with pytest.raises(ValueError, match=words):
        dsgd.run(method, problem, steps=1, key=jax.random.key(0), mesh=1)


def test_proximal_steps_have_the_size_of_the_step_of_their_round():
    A, b, x = quadratics.arrays()
    found = trajectories.run(
        lambda of: algorithms.diana(optax.sgd(lambda t: 0.1 / (1 + t)), IDENTITY),
        quadratics.instance(0.0, x),
        regularizer=problems.l1(PENALTY),
    ).home
    for t, after in enumerate(found):
        gamma = 0.1 / (1 + t)
        x = soft_threshold(x - gamma * (A.mean(axis=0) @ x - b.mean(axis=0)), gamma)
        np.testing.assert_allclose(after, x, rtol=0, atol=1e-12)
