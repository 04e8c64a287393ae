"""Rotations, DRIVE and EDEN next to their equations, with the matrix of each drawn rotation."""

from __future__ import annotations

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg, optimize, stats

from dsgd import compressors
from dsgd.compressors import rotations
from dsgd.compressors.rotations import centroids, pieces, rotate, rotate_back
from dsgd.compressors.seeds import from_seed
from dsgd.wire import codecs
from tests.dsgd.compressors.shared import (
    EPS,
    UNOPTIMIZED,
    normal,
    packed_bytes,
    seen,
    sqnorm,
)

drive, eden = cache(compressors.drive), cache(compressors.eden)


@cache
def program(d: int, rounds: int):
    rows = jax.vmap(lambda key, x: rotate(key, x, rounds), (None, 0))
    return jax.jit(lambda key: rows(key, jnp.eye(d)), compiler_options=UNOPTIMIZED)


def matrix(key: jax.Array, d: int, rounds: int = 1) -> np.ndarray:
    """Returns R, float64 `[d, d]`."""
    return np.asarray(program(d, rounds)(key), np.float64).T


def vector(d: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(normal(d, seed))


def hadamard(d: int) -> np.ndarray:
    """Returns the normalised Hadamard matrices of the pieces as blocks."""
    return np.asarray(linalg.block_diag(*(linalg.hadamard(p) / math.sqrt(p) for p in pieces(d))))


@pytest.mark.parametrize("d", [1, 2, 11, 16])
def test_a_rotation_is_a_hadamard_matrix_with_random_signs_of_the_columns(key, d):
    H, products = hadamard(d), []
    for seed in range(20):
        R = matrix(jax.random.fold_in(key, seed), d)
        signs = np.sign((R * H).sum(axis=0))
        np.testing.assert_allclose(R, H * signs, atol=4 * EPS)
        products.append(signs)
    assert d == 1 or np.abs(np.mean(products, axis=0)).max() < 1
    assert len(np.unique(products, axis=0)) > (1 if d > 1 else 0)


@pytest.mark.parametrize("seed", [None, 3])
def test_rotated_compresses_the_rotated_vector(key, seed):
    """The receivers find the rotation from the message, unless all know its seed."""
    d, x = 11, vector(11)
    inner = compressors.top_k(0.3)
    compressor = compressors.rotated(inner, seed=seed)
    message = compressors.encode(compressor, key, x).message
    assert (message.seed is None) == (seed is not None)
    rotation = from_seed(message.seed) if seed is None else jax.random.key(seed)
    R = matrix(rotation, d)
    expected = R.T @ np.asarray(seen(inner)(key, jnp.asarray(R @ x, jnp.float32)))
    np.testing.assert_allclose(seen(compressor)(key, x), expected, atol=20 * EPS)
    extra = 64 if seed is None else 0
    assert compressors.mean_bits(compressor, d) == compressors.mean_bits(inner, d) + extra
    assert compressor.delta(d) == inner.delta(d)
    again = compressors.encode(compressor, jax.random.key(9), x).decoded
    assert np.allclose(again, expected, atol=20 * EPS) == (seed is not None)


def eden_in_numpy(message, x: np.ndarray, bits: int, unbiased: bool) -> np.ndarray:
    """Returns EDEN's C(x) with the message's rotation, `[d]`."""
    d, y = len(x), matrix(from_seed(message.seed), len(x)) @ x
    table, decoded, start = centroids(bits), [], 0
    for p in pieces(d):
        part = y[start : start + p]
        norm = np.linalg.norm(part)
        c = table[np.abs(part[:, None] * math.sqrt(p) / norm - table).argmin(axis=1)]
        S = norm**2 / (c @ part) if unbiased else (c @ part) / (c @ c)
        decoded.append(S * c)
        start += p
    return matrix(from_seed(message.seed), d).T @ np.concatenate(decoded)


@pytest.mark.parametrize("scale", ["least error", "unbiased"])
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_eden_is_its_equations(key, bits, scale):
    compressor = eden(bits, scale)
    for seed, d in enumerate((16, 11, 3, 1)):
        x = vector(d, seed)
        message, decoded = compressors.encode(compressor, jax.random.fold_in(key, seed), x)
        expected = eden_in_numpy(message, np.asarray(x, np.float64), bits, scale == "unbiased")
        np.testing.assert_allclose(decoded, expected, rtol=1e-4, atol=1e-5)
        if scale == "unbiased":
            assert decoded @ x == pytest.approx(float(x @ x), rel=1e-5)
        else:  # a projection
            assert decoded @ x == pytest.approx(float(decoded @ decoded), rel=1e-5)


def test_drive_is_eden_with_one_bit_and_its_error_is_known(key):
    """Of a single piece, |C(x) - x|^2 is |x|^2 - |Rx|_1^2 / d."""
    d, x = 16, vector(16)
    message, decoded = compressors.encode(drive(), key, x)
    y = matrix(from_seed(message.seed), d) @ np.asarray(x, np.float64)
    error = sqnorm(np.asarray(decoded - x))
    assert error == pytest.approx(y @ y - np.abs(y).sum() ** 2 / d, rel=1e-5)
    signs = codecs.unpack(message.codes[0], 1, d)
    np.testing.assert_array_equal(np.asarray(signs) == 1, y > 0)
    np.testing.assert_array_equal(decoded, compressors.encode(eden(1), key, x).decoded)
    assert compressors.mean_bits(drive(), 11) == 64 + 3 * 32 + 8 * 2


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_centroids_are_the_means_of_their_cells(bits):
    c = centroids(bits)
    edges = np.r_[-np.inf, (c[1:] + c[:-1]) / 2, np.inf]
    share = np.diff(stats.norm.cdf(edges))
    np.testing.assert_allclose(-np.diff(stats.norm.pdf(edges)) / share, c, atol=1e-12)
    np.testing.assert_array_equal(c, -c[::-1])
    distortion = 1 - share @ c**2
    assert distortion == pytest.approx([0.3634, 0.1175, 0.0345, 0.0095][bits - 1], abs=5e-5)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_the_largest_errors_follow_from_three_moments(bits):
    """A polynomial a - b|y| + l y^2 + m y^4 (b, m >= 0) that is at least the error everywhere
    bounds its mean by a - b / sqrt(2) + l + 3m. The best one solves a linear program on a grid; if
    m > 0 or l >= 1, it also bounds the error of larger numbers.
    """
    c = centroids(bits)[2 ** (bits - 1) :]

    def error(y):
        return np.min((y[:, None] - c) ** 2, axis=1)

    def powers(y):
        return np.stack([np.ones_like(y), -y, y**2, y**4], axis=1)

    grid = np.concatenate([np.linspace(0, 8, 1601), (c[1:] + c[:-1]) / 2, [20, 100]])
    scale = (1 + grid**2)[:, None]  # rows of similar size
    weights = np.array([1, -1 / math.sqrt(2), 1, 3])
    solved = optimize.linprog(
        weights,
        A_ub=-powers(grid) / scale,
        b_ub=-error(grid) / scale[:, 0],
        bounds=[(None, None), (0, None), (None, None), (0, None)],
    )
    finer = np.linspace(0, 100, 400_001)
    gap = (error(finer) - powers(finer) @ solved.x).max()
    assert gap < 1e-4
    assert solved.x[3] > 0 or solved.x[2] >= 1
    largest = rotations._LARGEST_ERRORS[bits - 1]
    assert weights @ solved.x + gap <= largest <= weights @ solved.x * 1.01


def test_fractions_of_bits_are_shares_of_the_elements(key):
    """Of each piece, the first elements have one bit more."""
    d, x = 11, vector(11)
    message, decoded = compressors.encode(eden(2.3), key, x)
    numbers = [3, 1, 1]  # of 8, 2 and 1 elements
    y = matrix(from_seed(message.seed), d) @ x
    more = np.asarray(codecs.unpack(message.codes[0], 3, 5))
    fewer = np.asarray(codecs.unpack(message.codes[1], 2, 6))
    c, start = np.zeros(d), 0
    for p, m in zip(pieces(d), numbers, strict=True):
        c[start : start + m], more = centroids(3)[more[:m]], more[m:]
        c[start + m : start + p], fewer = centroids(2)[fewer[: p - m]], fewer[p - m :]
        part = slice(start, start + p)
        c[part] *= (c[part] @ y[part]) / (c[part] @ c[part])
        start += p
    np.testing.assert_allclose(matrix(from_seed(message.seed), d) @ decoded, c, atol=1e-5)
    assert compressors.mean_bits(eden(2.3), 1024) == 96 + 8 * (packed_bytes(308, 3) + 179)
    assert eden(2).delta(9) < eden(2.3).delta(9) < eden(3).delta(9)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_rotation_is_orthogonal_and_is_undone(key, rounds):
    d = 23
    R = matrix(key, d, rounds)
    np.testing.assert_allclose(R @ R.T, np.eye(d), atol=20 * EPS)
    x = vector(d)
    y = rotate(key, x, rounds)
    np.testing.assert_allclose(y, R @ x, atol=20 * EPS)
    np.testing.assert_allclose(rotate_back(key, y, rounds), x, atol=20 * EPS)
