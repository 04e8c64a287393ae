"""Gossip of compressed differences: methods that equal others, sums that are kept, and limits.

All runs have six workers on a ring, in float64. Each method has one program; its arguments are
the method's hyperparameters (`theory_checks.machinery.trajectories`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from budgets import sampled
from scipy.linalg import block_diag

import algorithms
import dsgd
import topologies
from dsgd import compressors, problems
from tests.algorithms import quadratics
from theory_checks.machinery import trajectories
from theory_checks.machinery.trajectories import D, N, Trajectory

GAMMA, T = 0.05, 2_000
RING = topologies.ring(N)
IDENTITY = compressors.identity
TOP, TERNARY = map(compressors.whole_model, (compressors.top_k(0.2), compressors.qsgd(1, "linf")))
FINE, COARSE = map(
    compressors.whole_model, (compressors.random_quantization(3), compressors.random_k(0.1))
)


class Numbers(NamedTuple):
    """Arguments of the methods below; each method uses some of them."""

    gamma: float = GAMMA
    momentum: float = 0.0
    consensus: float = 0.4
    memory: float = 0.5
    average: float = 0.3


def sgd(of: Any) -> optax.GradientTransformation:
    return optax.sgd(of.gamma, momentum=of.momentum)


METHODS: dict[str, Callable[[Any], dsgd.Algorithm]] = {
    "exact diffusion": lambda of: algorithms.exact_diffusion(sgd(of), RING),
    "gradient tracking": lambda of: algorithms.gradient_tracking(sgd(of), RING),
    "LEAD, uncompressed": lambda of: algorithms.lead(
        sgd(of), RING, IDENTITY, of.consensus, of.memory
    ),
    "LEAD": lambda of: algorithms.lead(sgd(of), RING, TERNARY, of.consensus, of.memory),
    "BEER, uncompressed": lambda of: algorithms.beer(sgd(of), RING, IDENTITY, of.consensus),
    "BEER": lambda of: algorithms.beer(sgd(of), RING, TOP, of.consensus),
    "MoTEF": lambda of: algorithms.motef(sgd(of), RING, TOP, of.consensus, of.average),
    "C-GT": lambda of: algorithms.c_gt(sgd(of), RING, TOP, of.consensus, of.memory),
    "C-GT, unbiased": lambda of: algorithms.c_gt(sgd(of), RING, TERNARY, of.consensus, of.memory),
    "DCD, uncompressed": lambda of: algorithms.dcd_sgd(sgd(of), RING, IDENTITY),
    "ECD, uncompressed": lambda of: algorithms.ecd_sgd(sgd(of), RING, IDENTITY),
    "DCD": lambda of: algorithms.dcd_sgd(sgd(of), RING, FINE),
    "DCD, coarse": lambda of: algorithms.dcd_sgd(sgd(of), RING, COARSE),
    "ECD": lambda of: algorithms.ecd_sgd(sgd(of), RING, FINE),
}


build = quadratics.builders(METHODS)
in_float64 = quadratics.in_float64


@cache
def run(name: str, numbers: Numbers, noise: float = 0.0) -> Trajectory:
    return quadratics.run(build(name), numbers, T, noise=noise)


def models(found: Trajectory) -> np.ndarray:
    """Returns the workers' models after each round, `[T, N, d]`."""
    return trajectories.rows(found.states.workers.params)[1:]


# --- Identities.

EQUAL: dict[str, tuple[str, str, Numbers]] = {
    "LEAD": ("LEAD, uncompressed", "exact diffusion", Numbers(consensus=1.0)),
    "LEAD with momentum": (
        "LEAD, uncompressed",
        "exact diffusion",
        Numbers(consensus=1.0, momentum=0.5),
    ),
    "BEER": ("BEER, uncompressed", "gradient tracking", Numbers(consensus=1.0)),
    "MoTEF": ("MoTEF", "BEER", Numbers(average=1.0)),
    "C-GT": ("C-GT", "BEER", Numbers(memory=1.0)),
}


@pytest.mark.parametrize("name", sampled(EQUAL))
def test_two_methods_are_the_same(name):
    """With noisy gradients, which are the same for both methods. Later, the rounding errors of
    gradient tracking have accumulated.
    """
    left, right, numbers = EQUAL[name]
    one, other = (models(run(method, numbers, noise=0.5))[:200] for method in (left, right))
    assert np.ptp(one) > 0.1
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["DCD, uncompressed", "ECD, uncompressed"])
def test_without_compression_a_method_is_decentralized_gradient_descent(name):
    found = run(name, Numbers(), noise=0.5)
    A, b, start = quadratics.arrays()
    X = np.tile(start, (N, 1))
    for after, noise in zip(models(found), found.noise, strict=True):
        X = RING.W @ X - GAMMA * (np.einsum("nij,nj->ni", A, X) - b + noise)
        np.testing.assert_allclose(after, X, rtol=0, atol=1e-12)


# --- Sums over the workers.


@pytest.mark.parametrize("name", ["LEAD", "BEER", "MoTEF", "C-GT, unbiased"])
def test_the_mean_of_the_corrections_is_zero(name):
    """The mean of the trackers is the mean of the gradients, or of their averages."""
    states = run(name, Numbers(), noise=0.5).states.workers
    corrections = trajectories.rows(states.correction)
    assert np.abs(corrections).max() > 0.1
    np.testing.assert_allclose(corrections.mean(axis=1), 0, atol=1e-12)


def test_the_neighbours_of_dcd_know_the_models():
    """Each worker has the weighted sum of the neighbours' models, although it has received
    compressed differences only.
    """
    states = run("DCD", Numbers(), noise=0.5).states.workers
    X, laplacian = map(trajectories.rows, (states.params, states.laplacian))
    np.testing.assert_allclose(laplacian, (RING.W - np.eye(N)) @ X, rtol=0, atol=1e-12)


# --- Limits with exact gradients.


@pytest.mark.parametrize("name", sampled(["LEAD", "BEER", "MoTEF", "C-GT", "C-GT, unbiased"]))
def test_a_limit_is_the_optimum_although_messages_are_compressed(name):
    X = models(run(name, Numbers()))[-1]
    np.testing.assert_allclose(X, np.tile(quadratics.minimizer(), (N, 1)), rtol=0, atol=1e-9)


def biased_limit() -> np.ndarray:
    """Returns the fixed point of decentralized gradient descent, `[N, D]`."""
    A, b, _ = quadratics.arrays()
    pull = np.kron(np.eye(N) - RING.W, np.eye(D))
    return np.linalg.solve(pull + GAMMA * block_diag(*A), GAMMA * b.ravel()).reshape(N, D)


def test_the_limit_of_dcd_is_that_of_decentralized_gradient_descent():
    X = models(run("DCD", Numbers()))[-1]
    np.testing.assert_allclose(X, biased_limit(), rtol=0, atol=1e-9)
    assert np.linalg.norm(X.mean(axis=0) - quadratics.minimizer()) > 1e-3


def test_ecd_approaches_that_limit_as_the_root_of_the_number_of_rounds():
    """Its variance is a constant divided by the number of rounds."""
    X = models(run("ECD", Numbers()))
    errors = np.mean((X - biased_limit()) ** 2, axis=(1, 2))
    early, late = errors[T // 8 : T // 4].mean(), errors[T // 2 :].mean()
    assert 2.5 < early / late < 6.5
    assert late < 1e-2


def test_dcd_diverges_if_the_compression_is_coarse():
    X = models(run("DCD, coarse", Numbers()))
    assert not np.abs(X[-1]).max() < 1e9


def test_gossip_by_dcd_contracts_at_the_stated_rate():
    r"""One round without gradients from random models: the mean square of the disagreement over
    many draws is at most $\rho^2 + \omega \mu^2$ times that before it. The error of `random_k` has
    exactly the variance omega.
    """
    compressor = compressors.random_k(0.8)
    method = algorithms.dcd_sgd(optax.sgd(1e-20), RING, compressor)
    omega, rho, mu = compressor.omega(D), RING.rho, 4 / 3
    assert omega * mu**2 < 1 - rho**2
    X = np.random.default_rng(0).normal(size=(N, D))
    first = method.init(jnp.zeros(D), N)
    known = first.workers._replace(
        params=jnp.asarray(X), laplacian=jnp.asarray((RING.W - np.eye(N)) @ X)
    )

    def disagreement(X):
        return jnp.sum((X - X.mean(axis=0, keepdims=True)) ** 2)

    start = jax.tree.map(
        lambda leaf: np.broadcast_to(leaf, (500, *np.shape(leaf))), first._replace(workers=known)
    )
    problem = problems.quadratic(np.tile(np.eye(D), (N, 1, 1)), np.zeros((N, D)))
    after = dsgd.run(
        method,
        problem,
        steps=1,
        key=jax.random.key(0),
        seeds=500,
        mesh=1,
        start=start,
    ).state.workers.params
    ratios = jax.vmap(disagreement)(after) / disagreement(X)
    assert rho**2 / 2 < ratios.mean() < rho**2 + omega * mu**2


# --- Rounding.


@pytest.mark.parametrize("name", ["LEAD", "BEER", "C-GT, unbiased"])
def test_in_float32_rounding_errors_do_not_accumulate(name):
    """The workers compute with equal copies, so that the mean of the corrections stays 0."""
    with jax.enable_x64(False):
        method = METHODS[name](Numbers())
        problem = problems.random_quadratic(N, 6, heterogeneity=2.0, seed=1)
        result = dsgd.run(
            method, problem, steps=20_000, key=jax.random.key(0), record_every=10_000, mesh=1
        )
    x = np.asarray(problem.constants.minimizer)
    np.testing.assert_allclose(result.params, x, rtol=0, atol=1e-4 * np.abs(x).max())
