"""Proximal methods: methods that equal others, their limits, and their invariants.

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

import algorithms
import dsgd
import topologies
from dsgd import problems
from tests.algorithms import quadratics
from tests.methods import graphs
from theory_checks.machinery import trajectories
from theory_checks.machinery.trajectories import N

GAMMA, T, LASSO = 0.2, 2_000, 0.4
STEPS = np.linspace(0.1, 0.9, N)  # 1.8 / L for the last worker
GRAPH = graphs.topology("irregular", N)
CHORDS = topologies.exponential(N)  # doubly stochastic, not symmetric


class Numbers(NamedTuple):
    """Arguments of the methods below; each method uses some of them."""

    gamma: float = GAMMA
    steps: Any = STEPS
    coupling: float = 0.9


DEFAULT, EQUAL = Numbers(), Numbers(steps=np.full(N, GAMMA), coupling=1 / (2 * GAMMA))
METHODS: dict[str, Callable[[Any], dsgd.Algorithm]] = {
    "gradient descent": lambda of: algorithms.gradient_descent(optax.sgd(of.gamma)),
    "exact diffusion": lambda of: algorithms.exact_diffusion(optax.sgd(of.gamma), GRAPH),
    "EXTRA": lambda of: algorithms.extra(optax.sgd(of.gamma), GRAPH),
    "ATC tracking": lambda of: algorithms.atc_tracking(optax.sgd(of.gamma), GRAPH),
    "proximal gradient": lambda of: algorithms.proximal_gradient(of.gamma),
    "NIDS": lambda of: algorithms.nids(of.steps, GRAPH, of.coupling),
    "PG-EXTRA": lambda of: algorithms.pg_extra(of.gamma, GRAPH),
    "prox-ATC tracking": lambda of: algorithms.proximal_tracking(of.gamma, GRAPH),
    "prox-ATC tracking, directed": lambda of: algorithms.proximal_tracking(of.gamma, CHORDS),
}
PROXIMAL = tuple(METHODS)[4:]
LIMITS = {name: Numbers(gamma=0.1 if "tracking" in name else GAMMA) for name in PROXIMAL}
REGULARIZERS = {
    "l1": problems.l1(0.3),
    "box": problems.box(-0.2, 0.1),
    "group lasso": problems.group_lasso(LASSO),
}


build = quadratics.builders(METHODS)
in_float64 = quadratics.in_float64


def run(
    name: str, numbers: Numbers = DEFAULT, regularizer: str | None = None
) -> trajectories.Trajectory:
    r = None if regularizer is None else REGULARIZERS[regularizer]
    return quadratics.run(build(name), numbers, T, regularizer=r)


def models(found: trajectories.Trajectory) -> np.ndarray:
    """Returns the workers' models before the first round and after each, `[T + 1, N, d]`; those of
    a method with one model are equal.
    """
    if found.states.workers:
        return trajectories.rows(found.states.workers.params)
    return np.repeat(trajectories.rows(found.states.server.params, 1)[:, None], N, axis=1)


# --- Methods that equal others without a regularizer.


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("proximal gradient", "gradient descent"),
        ("PG-EXTRA", "EXTRA"),
        ("prox-ATC tracking", "ATC tracking"),
    ],
)
def test_without_a_regularizer_a_method_is_another_one(name, other):
    found, expected = (models(run(each))[:60] for each in (name, other))
    assert np.abs(expected[0] - expected[-1]).max() > 0.1
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


def test_nids_with_equal_steps_is_exact_diffusion_after_a_first_step_without_combination():
    """Exact diffusion starts at the models of NIDS after its first round, which differ."""
    found = models(run("NIDS", EQUAL))
    A, b, x = quadratics.arrays()
    X = x - GAMMA * (A @ x - b)
    np.testing.assert_allclose(found[1], X, rtol=0, atol=1e-14)
    before, mixing = X, (np.eye(N) + GRAPH.W) / 2

    def step(X):
        return X - GAMMA * (np.einsum("nij,nj->ni", A, X) - b)

    X = mixing @ step(X)
    for t in range(2, 60):
        np.testing.assert_allclose(found[t], X, rtol=0, atol=1e-13)
        before, X = X, mixing @ (X + step(X) - step(before))


# --- Limits.


@cache
def minimizer(regularizer: str | None) -> np.ndarray:
    """Returns the minimizer of f + r, by proximal gradient steps in numpy, `[d]`."""
    A, b, x = quadratics.arrays()
    A, b = A.mean(axis=0), b.mean(axis=0)
    if regularizer is None:
        return quadratics.minimizer()

    def shrunk(x, amount):
        return np.sign(x) * np.maximum(np.abs(x) - amount, 0)

    def rows(x):
        """The second leaf is 3 x 5; the elements of the first one are groups."""
        norms = np.linalg.norm(matrix := x[7:].reshape(3, 5), axis=1, keepdims=True)
        matrix = matrix * np.maximum(1 - 0.5 * LASSO * 5**0.5 / np.maximum(norms, 1e-300), 0)
        return np.concatenate([shrunk(x[:7], 0.5 * LASSO), matrix.ravel()])

    prox = {
        "l1": lambda x: shrunk(x, 0.5 * 0.3),
        "box": lambda x: np.clip(x, -0.2, 0.1),
        "group lasso": rows,
    }[regularizer]
    for _ in range(2_000):
        x = prox(x - 0.5 * (A @ x - b))
    return x


@pytest.mark.parametrize("regularizer", [None, *REGULARIZERS])
@pytest.mark.parametrize("name", sampled(PROXIMAL))
def test_the_limit_is_the_minimizer_of_the_composite_objective(name, regularizer):
    found, expected = run(name, LIMITS[name], regularizer), minimizer(regularizer)
    if regularizer is not None:
        active = {"l1": expected == 0, "box": np.isin(expected, (-0.2, 0.1))}
        assert active.get(regularizer, expected == 0).any()
        assert np.abs(expected - quadratics.minimizer()).max() > 0.1
    np.testing.assert_allclose(models(found)[-1], np.tile(expected, (N, 1)), rtol=0, atol=3e-12)


# --- Invariants.


def test_the_corrections_of_nids_have_mean_zero_and_its_models_are_exactly_sparse():
    found = run("NIDS", LIMITS["NIDS"], "l1")
    correction = trajectories.rows(found.states.workers.correction)
    assert np.abs(correction[-1]).max() > 0.1
    np.testing.assert_allclose(correction.mean(axis=1), 0, rtol=0, atol=1e-13)
    x, zero = models(found)[-1], minimizer("l1") == 0
    assert (x[:, ~zero] != 0).all()
    # Subgradients differ by worker, and some are at the end of their interval, where rounding
    # decides.
    np.testing.assert_allclose(x[:, zero], 0, rtol=0, atol=1e-16)
    assert (x[:, zero] == 0).mean() > 0.9


def test_trackers_have_the_mean_of_the_gradients_and_subgradients_their_negative_limit():
    A, b, _ = quadratics.arrays()
    name = "prox-ATC tracking, directed"
    found = run(name, LIMITS[name], "l1")
    states = jax.tree.map(lambda leaf: leaf[1:], found.states.workers)
    means = trajectories.rows(states.tracker).mean(axis=1) / LIMITS[name].gamma
    np.testing.assert_allclose(means, found.gradients.mean(axis=1), rtol=0, atol=1e-12)
    slope = A.mean(axis=0) @ minimizer("l1") - b.mean(axis=0)
    v = trajectories.rows(states.shift)[-1] / LIMITS[name].gamma
    np.testing.assert_allclose(v, np.tile(-slope, (N, 1)), rtol=0, atol=1e-10)


# --- Runs.


def test_workers_may_have_their_own_step_sizes_on_several_devices(mesh):
    A, b, _ = quadratics.arrays()
    problem = problems.regularized(problems.quadratic(A, b), problems.l1(0.3))
    options = {"steps": 40, "key": jax.random.key(0)}
    one, several = (
        dsgd.run(algorithms.nids(STEPS, GRAPH), problem, mesh=devices, **options)
        for devices in (1, 2)
    )
    np.testing.assert_allclose(several.params, one.params, rtol=0, atol=1e-13)


def test_proximal_sgd_makes_no_step_if_no_gradient_arrives():
    A, b, _ = quadratics.arrays()
    problem = problems.regularized(
        problems.quadratic(A, b, start=np.tile(1.0, b.shape[1])), problems.l1(0.3)
    )
    cluster = dsgd.clusters.Cluster(
        dsgd.clusters.constant(1.0), delivered=dsgd.clusters.constant(0.0)
    )
    for method in (algorithms.proximal_sgd(0.1), algorithms.proximal_gradient(0.1)):
        options = {"steps": 2, "key": jax.random.key(0), "mesh": 1}
        kept = dsgd.run(method, problem, cluster=cluster, **options).params
        np.testing.assert_array_equal(kept, 1.0)


# --- Invalid arguments.


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: algorithms.proximal_sgd(0.0), r"proximal_sgd: step_size = 0.0; .* \(0, inf\)"),
        (lambda: algorithms.pg_extra(-1.0, GRAPH), r"pg_extra: step_size = -1.0; .* \(0, inf\)"),
        (lambda: algorithms.proximal_tracking(0.0, GRAPH), r"proximal_tracking: step_size = 0.0"),
        (
            lambda: algorithms.nids([0.1, 0.2], GRAPH),
            r"nids: step_sizes = \[0.1, 0.2\]; .* 6 nodes",
        ),
        (lambda: algorithms.nids(0.0, GRAPH), "nids: step_sizes = 0.0; expected a positive"),
        (lambda: algorithms.nids(0.1, GRAPH, 20.0), r"nids: coupling = 20.0; .* \(0, 8\.71"),
    ],
)
def test_invalid_arguments_are_refused(call, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        call()
