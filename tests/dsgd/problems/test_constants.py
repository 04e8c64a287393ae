"""Constants of problems against numpy, in float64 from the same samples."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import expit

import dsgd
from dsgd import problems
from dsgd.problems.quadratic import FromZero

SIZES = (5, 9, 6, 23)
WEIGHTS = np.array([0.4, 1.8, 1.1, 0.7])
L2, D = 0.3, 3


def samples(seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs of different sizes per worker, and classes."""
    rng = np.random.default_rng(seed)
    scale = np.repeat([0.5, 2.0, 1.0, 1.5], SIZES)[:, None]
    inputs = (scale * rng.normal(size=(sum(SIZES), D))).astype(np.float32)
    return inputs, (inputs[:, 0] + rng.normal(size=len(inputs)) > 0.2).astype(np.int32)


def parts() -> list[np.ndarray]:
    return np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])


def product(x, inputs):
    return inputs @ x


def logistic(**options) -> dsgd.Problem:
    return problems.finite_sum(
        problems.Model(FromZero(D), product),
        options.pop("loss", optax.sigmoid_binary_cross_entropy),
        samples(),
        len(SIZES),
        parts(),
        **{"weights": WEIGHTS, "l2": L2} | options,
    )


def local_matrices() -> list[np.ndarray]:
    return [samples()[0][part].astype(float) for part in parts()]


def sample_gradients(x: np.ndarray) -> list[np.ndarray]:
    """Returns the gradients of each worker's samples, `[m, d]`."""
    inputs, classes = samples()
    slopes = (expit(inputs @ x) - classes)[:, None] * inputs + L2 * x
    return [slopes[part] for part in parts()]


def test_constants_of_weighted_logistic_regression_with_unequal_workers():
    found = problems.constants(logistic(batch_size=6, replacement=False))
    grams = [A.T @ A / len(A) for A in local_matrices()]
    local = np.array([np.linalg.eigvalsh(gram)[-1] / 4 + L2 for gram in grams])
    np.testing.assert_allclose(found.local_smoothness, WEIGHTS * local, rtol=1e-12)
    assert found.rms_smoothness == pytest.approx(np.sqrt(np.mean((WEIGHTS * local) ** 2)))
    assert found.smoothness == pytest.approx(np.max(np.maximum(1, WEIGHTS) * local), rel=1e-12)
    mean = np.tensordot(WEIGHTS / 4, grams, 1)
    assert found.mean_smoothness == pytest.approx(np.linalg.eigvalsh(mean)[-1] / 4 + L2, rel=1e-12)
    assert found.mean_smoothness < found.rms_smoothness < found.smoothness
    assert found.strong_convexity == L2

    slopes = sample_gradients(found.minimizer)
    means = WEIGHTS[:, None] * [each.mean(axis=0) for each in slopes]
    np.testing.assert_allclose(means.mean(axis=0), 0, atol=1e-11)
    spread = np.sqrt(np.mean(np.sum(means**2, axis=1)))
    assert found.heterogeneity == pytest.approx(spread, rel=1e-9)
    variances = [
        w**2 * np.sum((each - each.mean(axis=0)) ** 2) / m / b * (m - b) / (m - 1)
        for w, m, each, b in zip(WEIGHTS, SIZES, slopes, np.minimum(SIZES, 6), strict=True)
    ]
    assert found.noise == pytest.approx(np.sqrt(np.mean(variances)), rel=1e-9)
    inputs, classes = samples()
    losses = np.logaddexp(0, inputs @ found.minimizer) - classes * (inputs @ found.minimizer)
    value = np.mean([w * losses[p].mean() for w, p in zip(WEIGHTS, parts(), strict=True)])
    norm = L2 / 2 * np.sum(found.minimizer**2)
    assert found.minimum == pytest.approx(value + norm, rel=1e-12)
    assert found.gap == pytest.approx(np.log(2) - value - norm, rel=1e-9)  # from x = 0


def test_ready_and_custom_problems_have_equal_constants():
    options = {"l2": L2, "batch_size": 2, "weights": WEIGHTS}
    ready = problems.sparse_logistic_regression(samples(), 4, penalty=0.0, **options)
    dataset = problems.load(samples())
    custom = problems.finite_sum(
        problems.Model(FromZero(D), product),
        optax.sigmoid_binary_cross_entropy,
        (dataset.train_inputs, dataset.train_targets.astype(np.int32)),
        4,
        **options,
    )
    first, second = problems.constants(ready), problems.constants(custom)
    for name in ("smoothness", "mean_smoothness", "rms_smoothness", "strong_convexity"):
        assert getattr(first, name) == pytest.approx(getattr(second, name), rel=1e-12)
    for name in ("minimum", "noise", "heterogeneity"):
        assert getattr(first, name) == pytest.approx(getattr(second, name), rel=1e-6)
    np.testing.assert_allclose(first.local_smoothness, second.local_smoothness, rtol=1e-12)


def test_the_noise_of_batches_with_replacement_is_that_of_samples_divided_by_their_number():
    one, many = (problems.constants(logistic(batch_size=b)).noise for b in (1, 7))
    assert one == pytest.approx(many * np.sqrt(7), rel=1e-12)
    assert problems.constants(logistic(batch_size=None)).noise == 0


def test_least_squares_have_exact_constants():
    """Also if the loss is the user's: that it is quadratic is found in its program."""
    inputs, _ = samples()
    targets = (inputs @ [1.0, -2.0, 0.5] + 0.3).astype(np.float32)
    problem = problems.finite_sum(
        problems.Model(FromZero(D), product),
        lambda outputs, targets: 0.7 * (outputs - targets) ** 2,
        (inputs, targets),
        len(SIZES),
        parts(),
    )
    found = problems.constants(problem)
    grams = [1.4 * A.T @ A / len(A) for A in local_matrices()]
    largest = [np.linalg.eigvalsh(gram)[-1] for gram in grams]
    np.testing.assert_allclose(found.local_smoothness, largest, rtol=1e-12)
    eigenvalues = np.linalg.eigvalsh(np.mean(grams, axis=0))
    assert found.mean_smoothness == pytest.approx(eigenvalues[-1], rel=1e-12)
    assert found.strong_convexity == pytest.approx(eigenvalues[0], rel=1e-10)


def test_constants_of_quadratics_are_the_given_ones():
    problem = problems.random_quadratic(5, 4, noise=0.7, heterogeneity=2.5)
    found, known = problems.constants(problem), problem.constants
    assert found.smoothness == known.smoothness == found.local_smoothness.max()
    eigenvalues = np.linalg.eigvalsh(np.mean(np.asarray(problem.data.A, float), axis=0))
    assert found.mean_smoothness == pytest.approx(eigenvalues[-1], rel=1e-6)
    assert found.noise == known.noise
    assert found.heterogeneity == pytest.approx(2.5, rel=1e-5)
    # A hand-written problem of the same functions and data
    plain = dsgd.Problem(problem.init, problem.loss.value, problem.data, problem.sample)
    again = problems.constants(plain)
    np.testing.assert_allclose(again.local_smoothness, found.local_smoothness, rtol=1e-6)
    assert again.strong_convexity == pytest.approx(eigenvalues[0], rel=1e-5)
    with pytest.raises(ValueError, match="not drawn by problems"):
        _ = again.noise


def test_heterogeneity_at_the_minimum_of_a_composite_objective_is_around_the_mean():
    problem = problems.regularized(logistic(weights="equal"), problems.l1(0.2))
    found = problems.constants(problem)
    means = np.array([each.mean(axis=0) for each in sample_gradients(found.minimizer)])
    assert np.linalg.norm(means.mean(axis=0)) > 0.1
    spread = np.mean(np.sum((means - means.mean(axis=0)) ** 2, axis=1))
    assert found.heterogeneity**2 == pytest.approx(spread, rel=1e-9)


def test_a_smooth_regularizer_adds_its_curvature():
    found, without = (
        problems.constants(logistic(regularizer=r)) for r in (problems.nonconvex(0.4), None)
    )
    np.testing.assert_allclose(
        found.local_smoothness, without.local_smoothness + WEIGHTS * 0.8, rtol=1e-12
    )
    assert found.mean_smoothness == pytest.approx(without.mean_smoothness + 0.8, rel=1e-12)
    assert found.strong_convexity == pytest.approx(L2 - 0.2)
    concave = problems.constants(logistic(regularizer=problems.nonconvex(0.7)))
    with pytest.raises(ValueError, match="not known to be convex"):
        _ = concave.strong_convexity


def test_what_cannot_be_computed_says_what_to_do():
    def squared_sigmoid(outputs, targets):
        return (jax.nn.sigmoid(outputs) - targets) ** 2

    problem = logistic(loss=squared_sigmoid)
    with pytest.raises(ValueError, match=r"depends on x.*pass curvature="):
        _ = problems.constants(problem).local_smoothness
    found = problems.constants(problem, curvature=0.5)
    expected = problems.constants(logistic()).local_smoothness
    np.testing.assert_allclose(
        found.local_smoothness - WEIGHTS * L2, 2 * (expected - WEIGHTS * L2), rtol=1e-12
    )
    with pytest.raises(ValueError, match=r"not known to be convex; if it is, pass problems.solved"):
        _ = found.minimizer
    curved = problems.finite_sum(
        problems.Model(FromZero(D), lambda x, inputs: jnp.sin(inputs @ x)),
        optax.sigmoid_binary_cross_entropy,
        samples(),
        4,
    )
    with pytest.raises(ValueError, match="depends on x"):
        _ = problems.constants(curved, curvature=0.25).smoothness
