"""Robust regression: its constants against points, samples and batches, in numpy; and what it
refuses.
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
def in_float64():
    with jax.enable_x64(True):
        yield


make = partial(problems.robust_regression, N, D, samples=M)


def phi(u):
    return u**2 / (2 * (1 + u**2))


def arrays(problem) -> tuple[np.ndarray, np.ndarray]:
    """a `[N, M, d]` and y `[N, M]`."""
    return np.asarray(problem.data.inputs), np.asarray(problem.data.targets)


def sample_gradients(problem, x: np.ndarray) -> np.ndarray:
    """Of every sample, `[N, M, d]`."""
    a, y = arrays(problem)
    u = a @ x - y
    return (u / (1 + u**2) ** 2)[..., None] * a


def points(problem, count: int = 40) -> np.ndarray:
    """Near and far; and where samples, or all of a worker's first ones, are steepest."""
    rng = np.random.default_rng(1)
    a, y = arrays(problem)
    steep = [
        np.linalg.lstsq(a[n, :D], y[n, :D] + LARGEST_SLOPE_AT, rcond=None)[0] for n in range(N)
    ]
    return np.concatenate(
        [rng.normal(size=(count, D)) * 10 ** rng.uniform(-2, 2, (count, 1)), steep]
    )


def worker(problem, n: int):
    return jax.tree.map(lambda leaf: leaf[n], problem.data)


def test_loss_is_geman_and_mcclure_s_and_its_slope_is_as_steep_as_is_said():
    u = np.linspace(-10, 10, 200_001)
    slope, curvature = np.gradient(phi(u), u), np.gradient(np.gradient(phi(u), u), u)
    assert np.abs(slope).max() == pytest.approx(STEEPEST, rel=1e-6)
    assert abs(u[np.argmax(slope)]) == pytest.approx(LARGEST_SLOPE_AT, abs=1e-3)
    assert curvature.max() == pytest.approx(1, abs=1e-4)
    assert curvature.min() == pytest.approx(-1 / 4, abs=1e-4)
    problem = make()
    a, y = arrays(problem)
    both = jax.jit(jax.value_and_grad(problem.loss))
    for x in points(problem, 5):
        for n in range(N):
            value, slope = both(jnp.asarray(x), worker(problem, n))
            assert float(value) == pytest.approx(np.mean(phi(a[n] @ x - y[n])), rel=1e-12)
            np.testing.assert_allclose(
                slope, sample_gradients(problem, x)[n].mean(axis=0), rtol=1e-9, atol=1e-15
            )


def test_smoothness_bounds_every_worker_s_hessian_and_is_reached():
    """Where all residuals are 0 phi'' is 1, and the steepest worker's Hessian has this
    eigenvalue.
    """
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


def test_gradients_of_workers_are_as_far_apart_as_is_said():
    problem = make(residual=1.0, seed=2)
    spreads = []
    for x in points(problem, 200):
        local = sample_gradients(problem, x).mean(axis=1)
        spreads.append(np.mean(np.sum((local - local.mean(axis=0)) ** 2, axis=1)))
    assert max(spreads) <= problem.constants.heterogeneity**2
    assert max(spreads) >= 0.01 * problem.constants.heterogeneity**2


@pytest.mark.parametrize(("batch_size", "replacement"), [(2, True), (2, False), (M, False)])
def test_noise_bounds_the_variance_of_every_batch_there_is(batch_size, replacement):
    """All of them, each as likely, at many points."""
    problem = make(batch_size=batch_size, replacement=replacement, residual=1.0)
    batches = np.array(
        list(
            product(range(M), repeat=batch_size)
            if replacement
            else combinations(range(M), batch_size)
        )
    )
    largest = 0.0
    for x in points(problem):
        each = sample_gradients(problem, x)
        for n in range(N):
            drawn = each[n][batches].mean(axis=1)
            variance = np.mean(np.sum((drawn - each[n].mean(axis=0)) ** 2, axis=1))
            largest = max(largest, variance)
    assert largest <= problem.constants.noise**2 * (1 + 1e-12) + 1e-30
    assert (problem.constants.noise == 0) == (batch_size == M)
    assert largest >= 0.1 * problem.constants.noise**2


def test_noise_is_that_of_one_sample_divided():
    a, _ = arrays(make())
    one = STEEPEST**2 * np.mean(np.sum(a**2, axis=2), axis=1).max()
    for batch_size, replacement, factor in [
        (1, True, 1),
        (3, True, 1 / 3),
        (1, False, 1),
        (4, False, (M - 4) / (M - 1) / 4),
        (M, False, 0),
        (M + 2, False, 0),
    ]:
        assert make(
            batch_size=batch_size, replacement=replacement
        ).constants.noise == pytest.approx(sqrt(one * factor))
    assert problems.robust_regression(N, D, samples=1, replacement=False).constants.noise > 0, (
        "one sample of one has none: it is a bound"
    )


def test_0_is_a_lower_bound_and_the_minimum_where_nothing_is_left_over():
    a, y = arrays(explained := make(residual=0.0))
    best = explained.constants.minimizer
    assert explained.constants.minimum == 0.0
    np.testing.assert_allclose(a @ best, y, atol=1e-12)
    losses = jax.vmap(explained.loss, (None, 0))(jnp.asarray(best), explained.data)
    np.testing.assert_allclose(losses, 0, atol=1e-24)
    left = make(residual=2.0)
    assert left.constants.minimum == 0.0
    assert left.constants.minimizer is None
    for x in points(left):
        assert float(np.mean(jax.vmap(left.loss, (None, 0))(jnp.asarray(x), left.data))) > 0


def test_constants_are_of_the_numbers_that_are_used():
    """Residuals change targets only; another seed changes all."""
    first, noisy, other = make(residual=0.0), make(residual=1.0), make(residual=0.0, seed=1)
    np.testing.assert_array_equal(first.data.inputs, noisy.data.inputs)
    assert np.abs(np.asarray(first.data.targets - noisy.data.targets)).std() > 0.1
    assert not np.allclose(first.data.inputs, other.data.inputs)
    assert first.constants.smoothness == noisy.constants.smoothness != other.constants.smoothness
    np.testing.assert_array_equal(first.data.targets, make(residual=0.0).data.targets)
    np.testing.assert_array_equal(first.init(jax.random.key(0)), np.zeros(D))


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0, D), {}, "workers"),
        ((N, 0), {}, "dimension"),
        ((N, D), {"batch_size": 0}, "batch_size"),
        ((N, D), {"residual": -0.1}, r"residual = -0\.1"),
        ((N, D), {"residual": float("inf")}, "residual = inf"),
    ],
)
def test_regression_that_cannot_be_is_refused(arguments, options, message):
    with pytest.raises(
        ValueError, match=f"robust_regression: .*{message}|robust_regression: {message}"
    ):
        problems.robust_regression(*arguments, **options)
