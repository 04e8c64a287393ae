"""The largest coefficients of the discrete cosine transform of chunks."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import checks
from dsgd.base import Compressor, Encoded
from dsgd.compressors.chunks import chunked_top_k
from dsgd.compressors.members import constant_at, encode
from dsgd.compressors.sizes import fixed_size, wide


@checks.arguments
def dct_top_k(k: int, chunk: int = 64, columns: int | None = None) -> Compressor:
    r"""Top-k sparsification of the discrete cosine transform of chunks: keeps the k coefficients of
    largest magnitude in each chunk; biased.

    $$ C(x) = T^\top \mathrm{TopK}(T x), \qquad X_m = \alpha_m \sum_{j=0}^{c-1} x_j \cos \frac{\pi
    (2j + 1) m}{2c}, \quad \alpha_0 = \sqrt{1/c}, \quad \alpha_{m > 0} = \sqrt{2/c} $$
    $$ |C(x) - x|^2 \le \Big(1 - \frac k{c'}\Big) |x|^2 $$

    T is the orthonormal DCT-II of every chunk of c elements; c is the largest divisor of d that is
    at most `chunk`. With `columns`, the vector is a matrix and its chunks are blocks of
    $c_1 \times c_2$ elements, with the largest divisors of the numbers of its rows and columns; T
    transforms both dimensions. c' is the number of elements of a chunk, c or $c_1 c_2$. If
    $k \ge c'$, all coefficients are sent, and C is the identity up to rounding.

    The transforms are products with matrices. An element needs c multiplications ($c_1 + c_2$ for a
    matrix) to be encoded, and again to be decoded: for c = 64 more than 20 copies of the vector.

    A message has k indices of $\lceil \log_2 c' \rceil$ bits and k values for each chunk, in
    float64 for float64 vectors, else in float32.

    Args:
        k: number of coefficients of each chunk.
        chunk: largest number of elements of a chunk in one dimension.
        columns: number of columns of the matrix, which the vector fills row by row; None: the
            vector is not a matrix.

    Raises:
        ValueError: if k, chunk or columns < 1; when a vector is compressed, if `columns` does not
            divide its length.

    Source: Peng, Quesnelle and Kingma, "DeMo: decoupled momentum optimization", 2024.
    """
    name = f"dct_top_k({k}, {chunk})" if columns is None else f"dct_top_k({k}, {chunk}, {columns})"
    checks.positive_int(f"{name}: k", k)
    checks.positive_int(f"{name}: chunk", chunk)
    if columns is not None:
        checks.positive_int(f"{name}: columns", columns)

    def blocks(d):
        """Returns the shape of d elements in chunks: `[rows / c_1, c_1, columns / c_2, c_2]`."""
        across = d if columns is None else columns
        if d % across:
            raise ValueError(
                f"{name}: the vector has {d} elements; expected a multiple of columns = {columns}"
            )
        first, second = _largest_divisor(d // across, chunk), _largest_divisor(across, chunk)
        return d // across // first, first, across // second, second

    def inner(d):
        _, first, _, second = blocks(d)
        return chunked_top_k(min(k, first * second), first * second)

    def compress(key, x):
        _, first, _, second = blocks(x.shape[0])
        chunks = wide(x).reshape(blocks(x.shape[0]))
        coefficients = _transform("ihjw,kh,lw->ijkl", chunks, first, second).ravel()
        message, decoded = encode(inner(x.shape[0]), key, coefficients)
        return Encoded(message, inverse(decoded))

    def decompress(message, d):
        return inverse(inner(d).decompress(message, d))

    def inverse(coefficients):
        down, first, across, second = blocks(coefficients.size)
        chunks = coefficients.reshape(down, across, first, second)
        return _transform("ijkl,kh,lw->ihjw", chunks, first, second).ravel()

    return fixed_size(compress, decompress, name, delta=lambda d: constant_at(inner(d).delta, d))


def _transform(axes: str, chunks: jax.Array, first: int, second: int) -> jax.Array:
    """Applies the DCT, or its inverse, to chunks of `[first, second]` elements; `axes` are those of
    `jnp.einsum`.
    """
    matrices = (jnp.asarray(_dct_matrix(c), chunks.dtype) for c in (first, second))
    return jnp.einsum(axes, chunks, *matrices, precision="highest")


@cache
def _dct_matrix(c: int) -> np.ndarray:
    """Returns the orthonormal DCT-II of c elements, `[c, c]`: row m has the coefficient X_m."""
    m, j = np.mgrid[:c, :c]
    scale = np.where(m == 0, np.sqrt(1 / c), np.sqrt(2 / c))
    return scale * np.cos(np.pi * (2 * j + 1) * m / (2 * c))


def _largest_divisor(d: int, most: int) -> int:
    """Returns the largest divisor of d that is at most `most`."""
    return next(c for c in range(min(d, most), 0, -1) if d % c == 0)
