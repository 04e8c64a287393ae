"""Estimates of the gradient noise from unequal batches, for known gradients."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.cannikin import NoiseScale, gradient_noise_scale, smooth

DRAWS = 20_000
# mean and variances of one sample's gradient
MEAN, VARIANCES = np.array([1.0, -0.5, 0.25]), np.array([0.5, 2.0, 4.0])
U, V = 4 * MEAN**2 @ VARIANCES, 2 * VARIANCES @ VARIANCES  # 4 G' Sigma G and 2 tr Sigma^2
BATCHES = np.array([1.0, 2.0, 5.0, 12.0])
WEIGHTS = ("best", "paper", "plain")


@cache
def norms() -> tuple[np.ndarray, np.ndarray]:
    """Returns squared norms of Gaussian gradients of the nodes and of their mean, `[draws, n]` and
    `[draws]`.
    """
    draw = np.random.default_rng(0)
    each = MEAN + np.sqrt(VARIANCES / BATCHES[:, None]) * draw.normal(
        size=(DRAWS, len(BATCHES), len(MEAN))
    )
    whole = np.einsum("i,tid->td", BATCHES / BATCHES.sum(), each)
    return (each**2).sum(axis=2), (whole**2).sum(axis=1)


def covariances(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the covariances of the nodes' S_i and G_i, `[n, n]`, by the formulas of the paper."""
    B, me = b.sum(), np.eye(len(b), dtype=bool)
    pairs = np.outer(B - b, B - b)
    of_noise = np.where(
        me, (U * B * b + V * (B + b)) / (B - b), -(U * B + V) * np.outer(b, b) / pairs
    )
    of_sqnorm = np.where(me, (U + 2 * V / B) / (B - b), (U + V / B) * (B - b[:, None] - b) / pairs)
    return of_noise, of_sqnorm


def weights(name: str, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the weights of S and of G, which follow from linearity in the norms; only S_i depends
    on |g_i|^2 with the given sign.
    """
    n, B = len(b), b.sum()
    found = gradient_noise_scale(np.eye(n), np.zeros(n), b, name)  # type: ignore[arg-type]
    return found.noise * (B - b) / (b * B), -found.sqnorm * (B - b) / b


@pytest.mark.parametrize("name", WEIGHTS)
def test_estimates_are_unbiased_and_vary_as_the_formulas_say(name):
    found = gradient_noise_scale(*norms(), BATCHES, name)
    for values, true, w, covariance in zip(
        found[:2],
        (VARIANCES.sum(), MEAN @ MEAN),
        weights(name, BATCHES),
        covariances(BATCHES),
        strict=True,
    ):
        variance = w @ covariance @ w
        assert w.sum() == pytest.approx(1)
        assert abs(values.mean() - true) < 4 * np.sqrt(variance / DRAWS)
        fourth = np.mean((values - values.mean()) ** 4)
        assert abs(values.var() - variance) < 4 * np.sqrt((fourth - variance**2) / DRAWS)


def test_the_paper_s_weights_are_those_of_its_matrices():
    """Equation 11: the diagonal and off-diagonal entries of both matrices."""
    b, B, i, j = BATCHES, BATCHES.sum(), BATCHES[:, None], BATCHES[None]
    beside = (
        i * j * (B - i - j) / ((B - i) * (B - j)),
        (B**2 - i**2 - j**2) / (B * (B - i) * (B - j)),
    )
    diagonals = B * b / (B - b), (B + 2 * b) / (B**2 - B * b)
    for found, matrix, diagonal in zip(weights("paper", b), beside, diagonals, strict=True):
        np.fill_diagonal(matrix, diagonal)
        solved = np.linalg.inv(matrix).sum(axis=0)
        np.testing.assert_allclose(found, solved / solved.sum(), rtol=1e-10)


def test_the_best_weights_vary_least_and_the_papers_are_negative_somewhere():
    """No other weights with sum 1 have a smaller variance: the covariances of the estimate with all
    S_i, and with all G_i, are equal.
    """
    draw, negative, draws = np.random.default_rng(1), 0, 20
    for _ in range(draws):
        b = draw.integers(1, 65, draw.integers(2, 9)).astype(float)
        for i, covariance in enumerate(covariances(b)):
            best, paper, plain = (weights(name, b)[i] for name in WEIGHTS)
            negative += paper.min() < -1e-12
            np.testing.assert_allclose(
                covariance @ best, np.full(len(b), (covariance @ best).mean()), rtol=1e-8
            )
            for other in (paper, plain):
                assert best @ covariance @ best <= other @ covariance @ other * (1 + 1e-9)
    assert negative > draws / 2


def test_noise_is_estimated_from_the_differences_of_the_nodes_gradients():
    """S = sum b_i |g_i - g|^2 / (n - 1) and G + S / B = |g|^2 hold for any gradients."""
    draw = np.random.default_rng(2)
    each = draw.normal(size=(7, 4, 6))
    whole = np.einsum("i,tid->td", BATCHES / BATCHES.sum(), each)
    noise, sqnorm, _ = found = gradient_noise_scale(
        (each**2).sum(axis=2), (whole**2).sum(axis=1), BATCHES
    )
    np.testing.assert_allclose(noise, ((each - whole[:, None]) ** 2).sum(axis=2) @ BATCHES / 3)
    np.testing.assert_allclose(sqnorm + noise / BATCHES.sum(), (whole**2).sum(axis=1))
    np.testing.assert_array_equal(found.scale, noise / sqnorm)


@pytest.mark.parametrize("name", WEIGHTS)
def test_nodes_without_samples_are_left_out_and_traced_arrays_pass(name):
    local, whole = norms()
    few = gradient_noise_scale(local[:5, [0, 2, 3]], whole[:5], BATCHES[[0, 2, 3]], name)
    gone = np.where(np.arange(4) == 1, np.nan, local[:5])
    more = gradient_noise_scale(gone, whole[:5], BATCHES * [1, 0, 1, 1], name)
    np.testing.assert_allclose(more[:2], few[:2], rtol=1e-12)
    traced = jax.jit(lambda *arrays: gradient_noise_scale(*arrays, name)[:2])(
        gone, whole[:5], jnp.array([1, 0, 5, 12])
    )
    np.testing.assert_allclose(traced, few[:2], rtol=1e-4)


@pytest.mark.parametrize("xp", [np, jnp])
def test_averages_are_exponential_without_a_start_at_0_and_leave_out_what_is_nan(xp):
    """If S or G is NaN, the weight of the averages relative to the next estimate does not
    change.
    """
    values, weight, seen = np.random.default_rng(3).normal(size=(5, 2)), 0.3, (1, 1, 2, 1, 1)
    average = NoiseScale(*map(xp.float32, (0.0, 0.0, 0.0)))
    for pair, number in zip(values, seen, strict=True):
        for wrong in ((np.nan, 1.0), (1.0, np.nan), (np.nan, np.nan)):
            average = smooth(average, NoiseScale(*map(xp.float32, wrong)), weight)
        average = smooth(average, NoiseScale(*map(xp.float32, (*pair, number))), weight)
    counts = (1 - weight) ** np.arange(5)[::-1] * seen
    expected = *(counts @ values / counts.sum()), counts.sum()
    np.testing.assert_allclose(average, expected, rtol=1e-5)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"batches": [4, 0]}, "batches .* two nodes with samples"),
    ({"batches": [4, -1]}, "batches"),
    ({"batches": [4, 1, 1]}, r"local_sqnorms \[2\], global_sqnorm \[\], batches \[3\]"),
    ({"local_sqnorms": [1.0, -2.0]}, "local_sqnorms"),
    ({"global_sqnorm": -1.0}, "global_sqnorm"),
    ({"global_sqnorm": [1.0]}, r"local_sqnorms \[2\], global_sqnorm \[1\], batches \[2\]"),
]


def test_invalid_norms_are_refused():
    good = {"local_sqnorms": [1.0, 2.0], "global_sqnorm": 1.0, "batches": [4, 2]}
    for wrong, words in REFUSED:
        with pytest.raises(ValueError, match=words):
            gradient_noise_scale(**good | wrong)
    with pytest.raises(ValueError, match="smooth: weight"):
        smooth(NoiseScale(1.0, 1.0), NoiseScale(1.0, 1.0), 0.0)
