"""Proximal methods: limits, exact zeros, and step sizes of the workers.

All runs have six workers, in float64, with exact gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import jax
import numpy as np
import pytest
from budgets import sampled

import algorithms
import dsgd
from dsgd import problems
from tests.algorithms import quadratics
from tests.methods.graphs import BALANCED, IRREGULAR
from theory_checks.machinery import trajectories
from theory_checks.machinery.trajectories import N

T, LASSO = 2_000, 0.4
STEPS = np.linspace(0.1, 0.9, N)  # 1.8 / L for the last worker
METHODS: dict[str, Callable[[], dsgd.Algorithm]] = {
    "proximal gradient": lambda: algorithms.proximal_gradient(0.2),
    "NIDS": lambda: algorithms.nids(STEPS, IRREGULAR, 0.9),
    "PG-EXTRA": lambda: algorithms.pg_extra(0.2, IRREGULAR),
    "tracking": lambda: algorithms.proximal_tracking(0.1, IRREGULAR),
    "tracking, directed": lambda: algorithms.proximal_tracking(0.1, BALANCED),
}
REGULARIZERS = {
    "l1": problems.l1(0.3),
    "box": problems.box(-0.2, 0.1),
    "group lasso": problems.group_lasso(LASSO),
}
float64 = quadratics.float64


def run(name: str, regularizer: str | None) -> trajectories.Trajectory:
    return trajectories.run(
        lambda of: METHODS[name](),
        quadratics.instance(0.0, quadratics.arrays()[2]),
        length=T,
        regularizer=REGULARIZERS.get(str(regularizer)),
    )


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
@pytest.mark.parametrize("name", sampled(METHODS, "NIDS"))
def test_the_limit_is_the_minimizer_of_the_composite_objective(name, regularizer):
    found, expected = run(name, regularizer), minimizer(regularizer)
    if regularizer is not None:
        active = {"l1": expected == 0, "box": np.isin(expected, (-0.2, 0.1))}
        assert active.get(regularizer, expected == 0).any()
        assert np.abs(expected - quadratics.minimizer()).max() > 0.1
    workers = found.states.workers
    models = trajectories.rows(workers.params)[-1] if workers else found.home[-1:]
    np.testing.assert_allclose(models - expected, 0, rtol=0, atol=3e-12)


def test_the_models_of_nids_are_exactly_sparse():
    """Except where subgradients, which differ by worker, are at the end of their interval, where
    rounding decides.
    """
    x, zero = trajectories.rows(run("NIDS", "l1").states.workers.params)[-1], minimizer("l1") == 0
    assert (x[:, ~zero] != 0).all()
    np.testing.assert_allclose(x[:, zero], 0, rtol=0, atol=1e-16)
    assert (x[:, zero] == 0).mean() > 0.9


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
