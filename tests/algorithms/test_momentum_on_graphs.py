"""DGD, and methods with momentum on graphs: their fixed points, and methods that are the same.

All runs have six workers, in float64, with exact gradients. Each method has one program; its
arguments are the method's hyperparameters (`theory_checks.machinery.trajectories`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import pytest
from budgets import sampled
from scipy.linalg import block_diag

import algorithms
import dsgd
import topologies
from dsgd import clusters, problems
from tests.algorithms import quadratics
from tests.methods import graphs
from theory_checks.machinery import trajectories
from theory_checks.machinery.trajectories import D, N

GAMMA, BETA, T = 0.05, 0.6, 1_500
LAZY = graphs.topology("lazy", N)
W: np.ndarray = np.asarray(LAZY.W)
EYE = np.eye(N)


class Numbers(NamedTuple):
    """Arguments of the methods below; each method uses some of them."""

    gamma: float = GAMMA
    momentum: float = 0.0
    decay: float = 0.0


DEFAULT, WITH_MOMENTUM = Numbers(), Numbers(momentum=BETA, decay=0.8)
METHODS: dict[str, Callable[[Any], dsgd.Algorithm]] = {
    "DGD": lambda of: algorithms.dgd(optax.sgd(of.gamma), LAZY),
    "DmSGD": lambda of: algorithms.decentralized_sgd(heavy_ball(of), LAZY),
    "averaged momenta": lambda of: algorithms.decentralized_sgd(
        heavy_ball(of), LAZY, average_momentum=True
    ),
    "QG-DSGDm": lambda of: algorithms.quasi_global_momentum(
        optax.sgd(of.gamma), LAZY, of.momentum, of.decay
    ),
    "QG-DSGDm-N": lambda of: algorithms.quasi_global_momentum(
        optax.sgd(of.gamma), LAZY, of.momentum, of.decay, nesterov=True
    ),
    "DecentLaM": lambda of: algorithms.decentlam(optax.sgd(of.gamma), LAZY, of.momentum),
}


def heavy_ball(of: Any) -> optax.GradientTransformation:
    return optax.sgd(of.gamma, momentum=of.momentum)


build = quadratics.builders(METHODS)
in_float64 = quadratics.in_float64


@cache
def models(name: str, numbers: Numbers) -> np.ndarray:
    """Returns the workers' models before the first round and after each, `[T + 1, N, d]`."""
    return trajectories.rows(quadratics.run(build(name), numbers, T).states.workers.params)


def fixed_point(P: np.ndarray) -> np.ndarray:
    """Returns the X `[N, d]` with (I - W) X + P G(X) = 0, where P `[N, N]` is a step size times a
    polynomial in W.
    """
    A, b, _ = quadratics.arrays()
    hessians = np.asarray(block_diag(*A))
    apart, steps = (np.kron(matrix, np.eye(D)) for matrix in (EYE - W, P))
    return np.linalg.solve(apart + steps @ hessians, steps @ b.ravel()).reshape(N, D)


def of_dsgd(gamma: float) -> np.ndarray:
    """Returns the fixed point of X <- W (X - gamma G(X))."""
    return fixed_point(gamma * W)


def with_averaged_momenta(gamma: float) -> np.ndarray:
    """Returns the fixed point of X <- W (X - gamma M), M = beta W M + G(X)."""
    return fixed_point(gamma * W @ np.linalg.inv(EYE - BETA * W))


def off(X: np.ndarray) -> float:
    """Returns the distance of models `[N, d]` to the minimizer."""
    return float(np.linalg.norm(X - quadratics.minimizer()))


def spread(X: np.ndarray) -> float:
    """Returns the distance of models `[N, d]` to their mean."""
    return float(np.linalg.norm(X - X.mean(axis=0)))


# What the limit is, with WITH_MOMENTUM.
LIMITS: dict[str, Callable[[], np.ndarray]] = {
    "DGD": lambda: fixed_point(GAMMA * EYE),
    "DmSGD": lambda: of_dsgd(GAMMA / (1 - BETA)),
    "averaged momenta": lambda: with_averaged_momenta(GAMMA),
    "QG-DSGDm": lambda: of_dsgd(GAMMA),
    "QG-DSGDm-N": lambda: of_dsgd((1 + BETA) * GAMMA),
    "DecentLaM": lambda: of_dsgd(GAMMA),
}


@pytest.mark.parametrize("name", sampled(LIMITS))
def test_the_limit_is_the_fixed_point(name):
    np.testing.assert_allclose(models(name, WITH_MOMENTUM)[-1], LIMITS[name](), rtol=0, atol=1e-11)


def test_momentum_enlarges_the_bias_of_decentralized_sgd():
    """To first order in gamma, by 1 / (1 - beta)."""
    gamma = 1e-5
    ratio = off(of_dsgd(gamma / (1 - BETA))) / off(of_dsgd(gamma))
    assert ratio == pytest.approx(1 / (1 - BETA), rel=1e-3)


def test_the_models_of_dgd_differ_more_than_those_of_decentralized_sgd():
    assert spread(LIMITS["DGD"]()) > 1.05 * spread(of_dsgd(GAMMA))


def test_averaged_momenta_enlarge_the_differences_less():
    """To first order in gamma, by a factor for each eigenvector of W."""
    gamma = 1e-7
    eigenvalues, vectors = np.linalg.eigh(W)
    along: np.ndarray = vectors.T[:-1]
    before, after = (along @ X for X in (of_dsgd(gamma), with_averaged_momenta(gamma)))
    factors = 1 / (1 - BETA * eigenvalues[:-1, None])
    np.testing.assert_allclose(after, factors * before, rtol=0, atol=1e-4 * np.abs(before).max())


@pytest.mark.parametrize("name", ["averaged momenta", "QG-DSGDm", "QG-DSGDm-N", "DecentLaM"])
def test_without_momentum_a_method_is_decentralized_sgd(name):
    """Also if the quasi-global momentum, which then has no effect, has a memory."""
    found = models(name, Numbers(decay=0.8))
    np.testing.assert_allclose(found, models("DmSGD", DEFAULT), rtol=0, atol=1e-12)


def test_decentlam_is_decentralized_sgd_with_heavy_ball_momentum():
    A, b, _ = quadratics.arrays()
    X = models("DecentLaM", WITH_MOMENTUM)[:60]
    slopes = np.einsum("nij,tnj->tni", A, X) - b
    inertia = np.concatenate([np.zeros((1, N, D)), BETA * np.diff(X[:-1], axis=0)])
    expected = W @ (X - GAMMA * slopes)[:-1] + inertia
    np.testing.assert_allclose(X[1:], expected, rtol=0, atol=1e-13)


def test_momenta_can_be_averaged_only_if_there_are_any():
    method = algorithms.decentralized_sgd(optax.sgd(0.1), LAZY, average_momentum=True)
    with pytest.raises(ValueError, match=r"average_momentum = True, but .* no field mu or trace"):
        method.init(np.zeros(3), N)


@pytest.mark.parametrize("method", [algorithms.quasi_global_momentum, algorithms.decentlam])
def test_a_momentum_outside_of_its_range_is_refused(method):
    with pytest.raises(ValueError, match=f"^{method.__name__}: momentum = 1.0; expected"):
        method(optax.sgd(0.1), LAZY, 1.0)


@pytest.mark.parametrize(("bandwidth", "seconds"), [(1e6, 1.0), (32.0, 6.0)])
def test_the_messages_of_dgd_can_overlap_with_the_gradient(bandwidth, seconds):
    """A gradient takes a second. A worker of a ring sends two models of three elements."""
    always = clusters.Overlap(clusters.constant(1.0), clusters.constant(0.0), first=0.0, last=0.0)
    cluster = clusters.Cluster(
        clusters.constant(1.0), up=clusters.constant(bandwidth), overlap=always
    )
    method = algorithms.dgd(optax.sgd(0.1), topologies.ring(8))
    options: Any = {"steps": 3, "key": jax.random.key(0), "cluster": cluster, "mesh": 1}
    with jax.enable_x64(False):
        found = dsgd.run(method, problems.random_quadratic(8, 3), **options).history["clock"]
    np.testing.assert_allclose(np.diff(found), seconds, rtol=1e-3)
