"""Robust regression: its constants compared with points, samples and batches in numpy; and invalid
arguments.
"""

from __future__ import annotations

from functools import partial
from itertools import combinations, product
from math import sqrt

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsgd import problems
from dsgd.problems.robust_regression import STEEPEST

N, D, M = 3, 4, 6
LARGEST_SLOPE_AT = 1 / sqrt(3)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


make = partial(problems.robust_regression, N, D, samples=M)


def phi(u):
    return u**2 / (2 * (1 + u**2))


def arrays(problem) -> tuple[np.ndarray, np.ndarray]:
    """Returns a `[N, M, d]` and y `[N, M]`."""
    return np.asarray(problem.data.inputs), np.asarray(problem.data.targets)


def sample_gradients(problem, x: np.ndarray) -> np.ndarray:
    """Returns the gradient of every sample, `[N, M, d]`."""
    a, y = arrays(problem)
    u = a @ x - y
    return (u / (1 + u**2) ** 2)[..., None] * a


def points(problem, count: int = 40) -> np.ndarray:
    """Returns points near and far, and points at which samples, or all first samples of a worker,
    have the largest slope.
    """
    rng = np.random.default_rng(1)
    a, y = arrays(problem)
    steep = [
        np.linalg.lstsq(a[n, :D], y[n, :D] + LARGEST_SLOPE_AT, rcond=None)[0] for n in range(N)
    ]
    return np.concatenate(
        [rng.normal(size=(count, D)) * 10 ** rng.uniform(-2, 2, (count, 1)), steep]
    )


def test_loss_is_geman_and_mcclure_s_and_attains_its_stated_slope():
    u = np.linspace(-10, 10, 200_001)
    slope, curvature = np.gradient(phi(u), u), np.gradient(np.gradient(phi(u), u), u)
    assert np.abs(slope).max() == pytest.approx(STEEPEST, rel=1e-6)
    assert abs(u[np.argmax(slope)]) == pytest.approx(LARGEST_SLOPE_AT, abs=1e-3)
    assert curvature.max() == pytest.approx(1, abs=1e-4)
    assert curvature.min() == pytest.approx(-1 / 4, abs=1e-4)
    problem = make()
    a, y = arrays(problem)
    both = jax.jit(jax.vmap(jax.value_and_grad(problem.loss), (None, 0)))
    for x in points(problem, 5):
        values, slopes = both(jnp.asarray(x), problem.data)
        np.testing.assert_allclose(values, phi(a @ x - y).mean(axis=1), rtol=1e-12)
        expected = sample_gradients(problem, x).mean(axis=1)
        np.testing.assert_allclose(slopes, expected, rtol=1e-9, atol=1e-15)


def test_smoothness_bounds_every_worker_s_hessian_and_is_reached():
    """If all residuals are 0, phi'' is 1, and the largest Hessian has this eigenvalue."""
    problem = make(residual=0.0, seed=1)
    hessian = jax.jit(jax.vmap(jax.hessian(problem.loss), (None, 0)))
    L, best = problem.constants.smoothness, problem.constants.minimizer
    largest = [
        np.abs(np.linalg.eigvalsh(hessian(jnp.asarray(x), problem.data))).max()
        for x in points(problem)
    ]
    assert max(largest) <= L * (1 + 1e-12)
    assert np.linalg.eigvalsh(hessian(jnp.asarray(best), problem.data)).max() == pytest.approx(
        L, rel=1e-9
    )


def test_heterogeneity_of_gradients_is_the_stated_one():
    problem = make(residual=1.0, seed=2)
    spreads = []
    for x in points(problem, 200):
        local = sample_gradients(problem, x).mean(axis=1)
        spreads.append(np.mean(np.sum((local - local.mean(axis=0)) ** 2, axis=1)))
    assert max(spreads) <= problem.constants.heterogeneity**2
    assert max(spreads) >= 0.01 * problem.constants.heterogeneity**2


@pytest.mark.parametrize(("batch_size", "replacement"), [(2, True), (2, False), (M, False)])
def test_noise_bounds_the_variance_of_every_possible_batch(batch_size, replacement):
    """All of them, with equal probabilities, at many points."""
    problem = make(batch_size=batch_size, replacement=replacement, residual=1.0)
    drawn = product(range(M), repeat=2) if replacement else combinations(range(M), batch_size)
    batches, largest = np.array(list(drawn)), 0.0
    for each in (sample_gradients(problem, x)[n] for x in points(problem) for n in range(N)):
        apart = each[batches].mean(axis=1) - each.mean(axis=0)
        largest = max(largest, np.mean(np.sum(apart**2, axis=1)))
    assert largest <= problem.constants.noise**2 * (1 + 1e-12) + 1e-30
    assert (problem.constants.noise == 0) == (batch_size == M)
    assert largest >= 0.1 * problem.constants.noise**2


def test_0_is_a_lower_bound_and_the_minimum_if_all_residuals_vanish():
    best, left = (make(residual=residual).constants for residual in (0.0, 2.0))
    a, y = arrays(make(residual=0.0))
    np.testing.assert_allclose(a @ best.minimizer, y, atol=1e-12)
    assert best.minimum == left.minimum == 0.0
    assert left.minimizer is None
