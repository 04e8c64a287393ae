"""Random linear regression, compared with least squares in numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsgd import problems

N, M, SPECTRUM = 3, 9, np.array([[0.2, 0.7, 3.0, 2.0], [0.5, 0.6, 4.0, 0.3], [0.4, 2.5, 0.9, 1.1]])


def rows(problem):
    return tuple(np.asarray(leaf, float) for leaf in (problem.data.inputs, problem.data.targets))


@pytest.mark.parametrize(("heterogeneity", "residual"), [(0.6, 0.4), (0.0, 0.0), (2.0, 0.0)])
def test_constants_are_those_of_least_squares(heterogeneity, residual):
    with jax.enable_x64(True):
        problem = problems.random_linear_regression(
            N, SPECTRUM, samples=M, heterogeneity=heterogeneity, residual=residual, seed=4
        )
        A, y = rows(problem)
        slope = jax.grad(problem.loss)(jnp.full(4, 0.5), jax.tree.map(lambda a: a[1], problem.data))
    np.testing.assert_allclose(slope, A[1].T @ (A[1] @ np.full(4, 0.5) - y[1]) / M, rtol=1e-12)
    known, hessians = problem.constants, np.swapaxes(A, 1, 2) @ A / M
    np.testing.assert_allclose(np.linalg.eigvalsh(hessians), np.sort(SPECTRUM), rtol=1e-10)
    x, errors = np.linalg.lstsq(A.reshape(-1, 4), y.ravel())[:2]
    np.testing.assert_allclose(known.minimizer, x, rtol=1e-10)
    np.testing.assert_allclose(known.minimum, np.sum(errors) / (2 * N * M), rtol=1e-10, atol=1e-25)
    slopes = np.einsum("nmd,nm->nd", A, A @ x - y) / M
    size = np.sqrt(np.mean(np.sum(slopes**2, axis=1)))
    assert size == pytest.approx(heterogeneity, abs=1e-12)
    assert known.heterogeneity == heterogeneity
    assert known.smoothness == pytest.approx(4.0)
    assert known.strong_convexity == pytest.approx(np.linalg.eigvalsh(hessians.mean(axis=0))[0])


def test_the_residual_does_not_move_the_minimizer():
    same, noisy = (
        problems.random_linear_regression(N, SPECTRUM[0], samples=500, residual=residual)
        for residual in (0.0, 0.7)
    )
    difference = rows(noisy)[1] - rows(same)[1]
    np.testing.assert_allclose(difference.std(), 0.7, rtol=0.1)
    np.testing.assert_array_equal(noisy.constants.minimizer, same.constants.minimizer)
    assert noisy.constants.minimum > same.constants.minimum
