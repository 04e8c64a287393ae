"""Low rank is an orthogonal projection: exact if the rank suffices, a contraction in expectation,
and better with each warm start.
"""

from __future__ import annotations

import math
from functools import cache
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from dsgd import compressors
from tests.dsgd.compressors.shared import LARGEST, normal, seen, sqnorm, vectors

low_rank = cache(compressors.low_rank)


def matrix_of(x: np.ndarray, columns: int) -> np.ndarray:
    """Returns the matrix, filled row by row and padded with zeros."""
    return np.pad(x.astype(np.float64), (0, -x.size % columns)).reshape(-1, columns)


def best_error(matrix: np.ndarray, rank: int) -> float:
    return float((np.linalg.svd(matrix, compute_uv=False)[rank:] ** 2).sum())


@pytest.mark.parametrize(("rank", "columns", "d"), [(3, None, 33), (2, 5, 33), (1, 40, 33)])
def test_it_is_the_projection_onto_the_range_of_the_matrix_times_the_start(rank, columns, d):
    x = normal(d)
    width = columns or math.ceil(math.sqrt(d))
    matrix = matrix_of(x, width)
    start = np.random.default_rng(1).normal(size=(width, rank)).astype(np.float32)
    compressor = compressors.low_rank(rank, columns)
    with mock.patch(
        "jax.random.normal", lambda key, shape, dtype: jnp.asarray(start).reshape(shape)
    ):
        message = jax.jit(compressor.compress)(jax.random.key(0), x)
    basis = np.linalg.qr(matrix @ start)[0]
    projected = basis @ basis.T @ matrix
    draw = np.asarray(compressor.decompress(message, d), np.float64)
    np.testing.assert_allclose(draw, projected.ravel()[:d], atol=1e-5)
    np.testing.assert_allclose(message.left.T @ message.left, np.eye(rank), atol=1e-6)
    assert message.left.shape == (len(matrix), rank)
    assert message.right.shape == (width, rank)
    error = sqnorm((message.left @ message.right.T - matrix).ravel())
    assert error == pytest.approx(sqnorm(x) - sqnorm((basis.T @ matrix).ravel()), abs=1e-4)
    assert best_error(matrix, rank) - 1e-4 <= error
    assert compressor.delta(d) == rank / min(matrix.shape)


@given(vectors(33))
def test_errors_never_exceed_the_vector(x):
    """A projection never increases the norm, for any mixture of scales; denormals are flushed."""
    draw = np.asarray(seen(low_rank(2))(jax.random.key(0), x), np.float64)
    exact = x.astype(np.float64)
    assert sqnorm(draw - exact) <= sqnorm(exact) * (1 + 1e-4) + 1e-74
    assert sqnorm(draw) <= sqnorm(exact) * (1 + 1e-4) + 1e-74


def test_a_warm_start_is_the_last_right_factor(key):
    """Subspace iteration: P = orth(M M^T P), at any scale."""
    compressor, x = low_rank(2), normal(36)
    first, matrix = compressor.compress(key, x), matrix_of(x, 6)
    basis = np.linalg.qr(matrix @ matrix.T @ np.asarray(first.left, np.float64))[0]
    for scale in (1.0, 1e30, 1e-30):
        scaled = first._replace(right=first.right * scale)
        second = compressor.compress(jax.random.key(1), x, scaled)
        np.testing.assert_allclose(
            compressor.decompress(second, 36), (basis @ basis.T @ matrix).ravel(), atol=1e-5
        )


def test_a_warm_start_of_large_factors_does_not_overflow(key):
    """The right factor is 16 times the elements, and its product with the matrix 256 times."""
    compressor, x = low_rank(1), np.full(256, 4e36, np.float32)
    message = jax.jit(compressor.compress)(key, x, jax.jit(compressor.compress)(key, x))
    np.testing.assert_allclose(compressor.decompress(message, 256), x, rtol=1e-5)


def test_after_a_message_of_zeros_it_starts_cold(key):
    compressor, x = low_rank(2), normal(36)
    nothing = jax.jit(compressor.compress)(key, np.zeros(36, np.float32))
    np.testing.assert_array_equal(compressor.decompress(nothing, 36), 0)
    for last in (nothing, jax.tree.map(jnp.zeros_like, nothing)):
        resumed = compressor.decompress(jax.jit(compressor.compress)(key, x, last), 36)
        np.testing.assert_allclose(resumed, seen(compressor)(key, x), atol=1e-5)
    again = compressor.compress(key, np.zeros(36, np.float32), compressor.compress(key, x))
    np.testing.assert_array_equal(compressor.decompress(again, 36), 0)


def test_one_element_and_the_largest_finite_numbers_are_decoded(key):
    """The reciprocals of these numbers are out of range."""
    for value in (2.5, -1e30, 1e-30, 0.0, 0.5 * LARGEST, 0.9 * LARGEST):
        for d in (1, 33):
            x = np.eye(1, d, d // 8, dtype=np.float32)[0] * np.float32(value)
            np.testing.assert_allclose(seen(low_rank(1))(key, x), x, rtol=1e-5)
