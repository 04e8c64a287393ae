"""Low-rank compression: a vector as a matrix, approximated by a product of two thin matrices."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dsgd import checks
from dsgd.base import Compressor
from dsgd.compressors.scales import unit
from dsgd.compressors.sizes import fixed_size, wide


class Factors(NamedTuple):
    """A message of `low_rank`, in float64 for float64 models, else in float32.

    Args:
        left: `[rows, rank]`, with orthonormal columns.
        right: `[columns, rank]`.
    """

    left: jax.Array
    right: jax.Array


@checks.arguments
def low_rank(rank: int, columns: int | None = None) -> Compressor:
    r"""Low-rank approximation by one step of power iteration on the vector as a matrix M, filled
    row by row; biased.

    $$ P = \mathrm{orth}(M R), \qquad C(M) = P\,(M^\top P)^\top = P P^\top M, \qquad E|C(M) - M|^2
    \le \Big(1 - \frac{r}{\min(\mathrm{rows}, \mathrm{columns})}\Big) |M|^2 $$

    R is Gaussian, so that the projection of its range to the row space of M, of dimension q, is
    uniformly distributed: $|P^\top M| \ge |M Q|$ for an orthonormal basis Q of it, and $E|MQ|^2 =
    |M|^2 r / q$. Equal singular values attain the bound. Methods that keep messages
    use a warm start: R is their last right factor $M^\top P$. For a matrix that does not change,
    this is subspace iteration, whose error (for the padded matrix) never grows. For other matrices,
    the bound does not hold with a warm start.

    Args:
        rank: r.
        columns: number of columns of M, whose last row is padded with zeros; None: the square root
            of d, rounded up.

    Raises:
        ValueError: if rank or columns < 1, or rank > columns; when a vector is compressed, if the
            rank is larger than a side of its matrix.

    Source: Vogels, Karimireddy and Jaggi, "PowerSGD", 2019. Departure: the matrix need not be that
    of a layer, since servers compress shards.
    """
    name = f"low_rank({rank})" if columns is None else f"low_rank({rank}, {columns})"
    checks.positive_int(f"{name}: rank", rank)
    if columns is not None:
        checks.positive_int(f"{name}: columns", columns)
        _require_rank(name, rank, columns, f"{columns} columns")

    def shape(d):
        width = columns or math.isqrt(d - 1) + 1
        rows = -(-d // width)
        _require_rank(name, rank, min(rows, width), f"{d} elements as a {rows} x {width} matrix")
        return rows, width

    def factor(x, start):
        rows, width = shape(x.shape[0])
        relative, largest = unit(wide(x))
        matrix = jnp.pad(relative, (0, rows * width - x.shape[0])).reshape(rows, width)
        left = orthonormal(jnp.matmul(matrix, start, precision="highest"))
        return Factors(left, jnp.matmul(matrix.T, left, precision="highest") * largest)

    def compress(key, x, last=None):
        if last is None:
            return factor(x, normal(key, (shape(x.shape[0])[1], rank), wide(x).dtype))
        return factor(x, warm_start(key, last.right))

    def decompress(message, d):
        return jnp.matmul(message.left, message.right.T, precision="highest").ravel()[:d]

    return fixed_size(compress, decompress, name, delta=lambda d: rank / min(shape(d)))


def warm_start(key: jax.Array, last: jax.Array) -> jax.Array:
    """Returns the right factor from which a power iteration starts: the last one, scaled to a
    largest magnitude of 1, or normal numbers if it is 0.
    """
    start, size = unit(last)
    return jnp.where(size > 0, start, normal(key, last.shape, last.dtype))


def normal(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Returns independent standard normal numbers, drawn as float32."""
    return jax.random.normal(key, shape, jnp.float32).astype(dtype)


def orthonormal(matrix: jax.Array) -> jax.Array:
    """Returns an orthonormal basis of the columns of a matrix, `[a, r]` with r at most a. Columns
    that depend on earlier ones, such as zeros, are replaced by other orthonormal columns.
    """
    return jnp.linalg.qr(matrix)[0]


def _require_rank(name: str, rank: int, most: int, what: str) -> None:
    if rank > most:
        raise ValueError(
            f"{name} of {what}: expected a rank of at most {most}, or longer vectors (whole_model, "
            "fewer workers)"
        )
