"""Estimates of the gradient's noise from unequal batches, of gradients that are known."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.cannikin import NoiseScale, gradient_noise_scale, smoothed

DRAWS = 20_000
MEAN, VARIANCES = np.array([1.0, -0.5, 0.25]), np.array([0.5, 2.0, 4.0])  # of one sample's gradient
U, V = 4 * MEAN**2 @ VARIANCES, 2 * VARIANCES @ VARIANCES  # 4 G' Sigma G and 2 tr Sigma^2
BATCHES = np.array([1.0, 2.0, 5.0, 12.0])
WEIGHTS = ("best", "paper", "plain")


@cache
def norms() -> tuple[np.ndarray, np.ndarray]:
    """Of Gaussian gradients of the nodes and of all, `[draws, n]` and `[draws]`."""
    draw = np.random.default_rng(0)
    each = MEAN + np.sqrt(VARIANCES / BATCHES[:, None]) * draw.normal(
        size=(DRAWS, len(BATCHES), len(MEAN))
    )
    whole = np.einsum("i,tid->td", BATCHES / BATCHES.sum(), each)
    return (each**2).sum(axis=2), (whole**2).sum(axis=1)


def covariances(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the nodes' S_i and G_i, `[n, n]`, by the shared facts' formulas."""
    B, me = b.sum(), np.eye(len(b), dtype=bool)
    pairs = np.outer(B - b, B - b)
    of_noise = np.where(
        me, (U * B * b + V * (B + b)) / (B - b), -(U * B + V) * np.outer(b, b) / pairs
    )
    of_sqnorm = np.where(me, (U + 2 * V / B) / (B - b), (U + V / B) * (B - b[:, None] - b) / pairs)
    return of_noise, of_sqnorm


def weights(name: str, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of S and of G, read off: the estimates are linear in the norms, and S_i alone is in
    |g_i|^2.
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
    """Equation 11, entry by entry."""
    b, B, n = BATCHES, BATCHES.sum(), len(BATCHES)
    of_noise, of_sqnorm = np.zeros((n, n)), np.zeros((n, n))
    for i, j in np.ndindex(n, n):
        of_sqnorm[i, j] = (
            (B**2 - b[i] ** 2 - b[j] ** 2) / (B * (B - b[i]) * (B - b[j]))
            if i != j
            else (B + 2 * b[i]) / (B**2 - B * b[i])
        )
        of_noise[i, j] = (
            b[i] * b[j] * (B - b[i] - b[j]) / ((B - b[i]) * (B - b[j]))
            if i != j
            else B * b[i] / (B - b[i])
        )
    for found, matrix in zip(weights("paper", BATCHES), (of_noise, of_sqnorm), strict=True):
        solved = np.linalg.inv(matrix).sum(axis=0)
        np.testing.assert_allclose(found, solved / solved.sum(), rtol=1e-10)


def test_the_best_weights_vary_least_and_the_papers_are_negative_somewhere():
    """No others that add up to 1 are better: all S_i, and all G_i, are equally good to add
    more of.
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


def test_noise_is_what_the_nodes_gradients_differ_by():
    """S = sum b_i |g_i - g|^2 / (n - 1), whatever the gradients; G + S / B = |g|^2."""
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


@pytest.mark.parametrize(
    "before", [NoiseScale(0.0, 0.0, 0.0), NoiseScale(3.0, -2.0, 1.0), NoiseScale(3.0, 2.0, 2.19)]
)
@pytest.mark.parametrize("xp", [np, jnp])
def test_what_is_nan_changes_no_average(before, xp):
    """It does not change the weight of the averages against the next estimate either. S or G may be
    NaN.
    """
    given = NoiseScale(*map(xp.float32, before))
    for wrong in ((np.nan, 1.0), (1.0, np.nan), (np.nan, np.nan)):
        kept = smoothed(given, NoiseScale(*map(xp.float32, wrong)), 0.3)
        np.testing.assert_allclose(kept, before, rtol=1e-6)
        next_one = smoothed(
            kept, NoiseScale(xp.float32(5.0), xp.float32(7.0), xp.float32(2.0)), 0.3
        )
        left = 0.7 * before.seen
        noise, sqnorm = (
            (left * old + 2.0 * new) / (left + 2.0)
            for old, new in ((before.noise, 5.0), (before.sqnorm, 7.0))
        )
        np.testing.assert_allclose(next_one, (noise, sqnorm, left + 2.0), rtol=1e-6)


def test_averages_are_exponential_without_a_start_at_0():
    values, weight = np.random.default_rng(3).normal(size=(5, 2)), 0.3
    average = NoiseScale(0.0, 0.0, 0.0)
    for pair in values:
        average = smoothed(average, NoiseScale(*pair), weight)
    counts = (1 - weight) ** np.arange(5)[::-1]
    np.testing.assert_allclose(average[:2], counts @ values / counts.sum())


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"batches": [4, 0]}, r"batches = \[4, 0\]; expected at least two nodes with samples"),
    ({"batches": [4, -1]}, r"batches = \[4, -1\]; expected finite numbers >= 0"),
    (
        {"batches": [4, 1, 1]},
        r"local_sqnorms \[2\], global_sqnorm \[\], batches \[3\]; expected \[..., n\], \[...\] and "
        r"\[n\]",
    ),
    ({"local_sqnorms": [1.0, -2.0]}, "local_sqnorms contain -2; expected squares >= 0"),
    ({"global_sqnorm": -1.0}, "global_sqnorm contain -1; expected squares"),
    (
        {"global_sqnorm": [1.0]},
        r"local_sqnorms \[2\], global_sqnorm \[1\], batches \[2\]; expected",
    ),
]


def test_bad_norms_are_refused():
    for wrong, words in REFUSED:
        with pytest.raises(ValueError, match=words):
            gradient_noise_scale(
                **{"local_sqnorms": [1.0, 2.0], "global_sqnorm": 1.0, "batches": [4, 2], **wrong}
            )
    with pytest.raises(ValueError, match=r"smoothed: weight = 0\.0; expected a number in \(0, 1\]"):
        smoothed(NoiseScale(1.0, 1.0), NoiseScale(1.0, 1.0), 0.0)
