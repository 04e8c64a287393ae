"""The largest frequencies of chunks: those of scipy's transform, in one dimension and in two."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import fft

from dsgd import compressors
from dsgd.compressors.members import constant_at
from tests.dsgd.compressors.shared import normal, seen, sqnorm


def keep_largest(blocks: np.ndarray, k: int) -> np.ndarray:
    """The k largest coefficients of each chunk `[..., c_1, c_2]`, transformed back."""
    coefficients = np.asarray(fft.dctn(blocks, axes=(-2, -1), norm="ortho"))
    rows = coefficients.reshape(-1, blocks.shape[-2] * blocks.shape[-1])
    smaller = np.argsort(-np.abs(rows), axis=1)[:, k:]
    np.put_along_axis(rows, smaller, 0, axis=1)
    return np.asarray(fft.idctn(rows.reshape(blocks.shape), axes=(-2, -1), norm="ortho"))


@pytest.mark.parametrize(
    ("k", "chunk", "columns", "blocks"),
    [
        (3, 16, None, (1, 1, 4, 15)),  # 16 does not divide 60
        (5, 64, None, (1, 1, 1, 60)),
        (4, 5, 10, (2, 3, 2, 5)),  # six rows in twos of three
        (2, 4, 15, (1, 4, 5, 3)),
        (1, 1, 10, (6, 1, 10, 1)),  # chunks of one element: all of them
    ],
)
def test_it_keeps_the_largest_coefficients_of_each_chunk(k, chunk, columns, blocks, key):
    x, (_, first, _, second) = normal(60), blocks
    compressor = compressors.dct_top_k(k, chunk, columns)
    expected = keep_largest(x.reshape(blocks).swapaxes(1, 2), k).swapaxes(1, 2).ravel()
    got = np.asarray(seen(compressor)(key, x))
    np.testing.assert_allclose(got, expected, atol=1e-5)
    delta = constant_at(compressor.delta, 60)
    assert delta == min(1, k / (first * second))
    assert sqnorm(got - x) <= (1 - delta) * sqnorm(x) + 1e-9


def test_all_coefficients_of_float64_are_the_vector(key):
    x = np.random.default_rng(0).normal(size=60)
    with jax.enable_x64(True):
        whole = np.asarray(seen(compressors.dct_top_k(60, 64, 10))(key, jnp.asarray(x)))
    np.testing.assert_allclose(whole, x, rtol=0, atol=1e-14)


def test_columns_divide_the_vector():
    with pytest.raises(
        ValueError, match=r"dct_top_k\(3, 8, 7\): the vector has 60 elements; expected"
    ):
        jax.eval_shape(compressors.dct_top_k(3, 8, 7).compress, jax.random.key(0), jnp.zeros(60))
