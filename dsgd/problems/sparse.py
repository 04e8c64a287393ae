"""Sparse samples, stored on the device by the columns and values of their nonzero features."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse import csr_array, issparse

from dsgd import array_likes, checks

_MOST_FEATURES = np.iinfo(np.int32).max
_SMALL = 1 << 26  # elements of matrices that are stored as dense arrays although these are larger


@partial(
    jax.tree_util.register_dataclass, data_fields=["columns", "values"], meta_fields=["features"]
)
@dataclass(frozen=True, eq=False)
class SparseRows:
    """Rows of a sparse matrix, padded with zeros to a common number k of entries, so that they can
    be drawn, sliced and sent like dense arrays.

    `rows @ kernel` gathers rows of the kernel and sums them, so a model that uses it also works on
    dense inputs; its gradient scatters. On GPUs, XLA sums the scattered entries in no fixed order
    unless XLA_FLAGS contains --xla_gpu_deterministic_ops=true.

    Args:
        columns: int32 `[..., k]`; 0 in the padding.
        values: floating-point numbers `[..., k]`; 0 in the padding.
        features: number of columns of the matrix.
    """

    columns: Any
    values: Any
    features: int = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the dense array."""
        return (*self.columns.shape[:-1], self.features)

    @property
    def ndim(self) -> int:
        """Number of axes of the dense array."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.columns.shape[0]

    def __matmul__(self, kernel: jax.Array) -> jax.Array:
        """Returns the product `[..., classes]` with a kernel `[features, classes]`, or `[...]` with
        a kernel `[features]`.

        Raises:
            ValueError: if the kernel has another number of rows.
        """
        if kernel.shape[:1] != (self.features,) or kernel.ndim > 2:
            raise ValueError(
                f"SparseRows @ kernel: kernel has shape {kernel.shape}; expected "
                f"({self.features},) or ({self.features}, classes)"
            )
        gathered = kernel.at[self.columns].get(mode="fill")  # NaN for columns out of range
        return jnp.einsum(
            "...kc,...k->...c" if kernel.ndim == 2 else "...k,...k->...", gathered, self.values
        )

    def tocsr(self) -> csr_array:
        """Converts rows `[M, k]` to a scipy matrix `[M, features]`."""
        columns, values = np.asarray(self.columns), np.asarray(self.values)
        rows = np.broadcast_to(np.arange(len(columns))[:, None], columns.shape)
        matrix = csr_array((values.ravel(), (rows.ravel(), columns.ravel())), self.shape)
        matrix.eliminate_zeros()
        return matrix

    def toarray(self) -> np.ndarray:
        """Converts rows to the dense array `[M, features]`."""
        return self.tocsr().toarray()


@checks.arguments
def sparse_rows(matrix: Any, longest: int | None = None) -> SparseRows:
    """Converts a scipy.sparse matrix to `SparseRows`.

    `finite_sum` and `logistic_regression` accept such matrices directly, and convert them to dense
    arrays if these take little memory. Use this function if several matrices need the same k, as
    the data of different workers in `problems.ByWorker`.

    Args:
        matrix: `[M, features]` of real numbers; duplicate entries are added.
        longest: k; None: the number of entries of the longest row.

    Raises:
        ValueError: if `matrix` is not such a matrix, has entries that are not finite or outside the
            range of float32, or has a row with more than k entries.
    """
    return _pad("sparse_rows: matrix", _canonical("sparse_rows: matrix", matrix), longest)


def smaller(where: str, *matrices: Any) -> tuple[SparseRows | np.ndarray, ...]:
    """Converts sparse matrices to `SparseRows` with the same k; or to dense arrays, whose products
    are faster, if these take less memory, or at most 256 MB and four times as much.

    Args:
        where: names the matrices in messages.
        matrices: scipy.sparse matrices `[M, features]`.

    Raises:
        ValueError: as for `sparse_rows`.
    """
    rows = [_canonical(where, matrix) for matrix in matrices]
    longest = max(map(_longest, rows))
    dense = max(matrix.shape[1] for matrix in rows)
    sparse = 2 * longest  # each entry takes a value and a column
    small = sum(matrix.shape[0] for matrix in rows) * dense <= _SMALL
    if dense <= sparse or (dense <= 4 * sparse and small):
        return tuple(matrix.toarray() for matrix in rows)
    return tuple(_pad(where, matrix, longest) for matrix in rows)


def _canonical(where: str, matrix: Any) -> Any:
    """Returns the matrix in compressed rows without explicit zeros or duplicates, in JAX's default
    float type.
    """
    if not issparse(matrix) or matrix.ndim != 2:
        raise ValueError(
            f"{where} = {checks.kind(matrix)}; expected a scipy.sparse matrix [M, features], "
            "scipy.sparse.csr_array(X)"
        )
    if not 1 <= matrix.shape[1] <= _MOST_FEATURES:
        raise ValueError(
            f"{where} has shape {matrix.shape}; expected 1 to {_MOST_FEATURES} features"
        )
    rows = compressed_rows(where, matrix)
    rows.data = array_likes.numbers(where, rows.data)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    if not np.isfinite(rows.data).all():
        raise ValueError(f"{where} has entries that are not finite; expected finite numbers")
    rows.data = array_likes.narrow(where, rows.data).astype(jnp.result_type(float), copy=False)
    return rows


def compressed_rows(where: str, matrix: Any) -> csr_array:
    """Returns a copy of a scipy matrix in compressed rows, after checking its indices, which scipy
    checks only partly if a matrix is made from arrays, and not if they change later.
    """
    try:
        copy = matrix.copy()
        if hasattr(copy, "check_format"):
            copy.check_format(full_check=True)
        elif copy.format == "coo":
            copy = type(copy)((copy.data, copy.coords), copy.shape)  # checks the coordinates
        rows = csr_array(copy)
        rows.check_format(full_check=True)
    except (ValueError, IndexError, TypeError) as error:
        reason = f"it is malformed ({str(error).splitlines()[0]})"
        expected = f"indices of its {matrix.shape[0]} rows and {matrix.shape[1]} columns"
        raise ValueError(f"{where}: {reason}; expected {expected}, from 0") from None
    return rows


def require_columns(where: str, rows: SparseRows) -> None:
    """Raises ValueError if a column is outside the matrix."""
    columns = np.asarray(rows.columns)
    if columns.size and not 0 <= columns.min() <= columns.max() < rows.features:
        raise ValueError(
            f"{where}: SparseRows with columns from {columns.min()} to {columns.max()}; expected 0 "
            f"to {rows.features - 1}, for {rows.features} features"
        )


def _longest(rows: Any) -> int:
    """Returns the number of entries of the longest row, and at least 1."""
    return max(1, int(np.diff(rows.indptr).max(initial=0)))


def _pad(where: str, rows: Any, longest: int | None) -> SparseRows:
    k = _longest(rows) if longest is None else checks.positive_int("sparse_rows: longest", longest)
    if not _longest(rows) <= k <= rows.shape[1]:
        raise ValueError(
            f"{where} has a row with {_longest(rows)} entries and {rows.shape[1]} features, but "
            f"longest = {k}; expected a number from {_longest(rows)} to {rows.shape[1]}"
        )
    counts = np.diff(rows.indptr)
    row = np.repeat(np.arange(rows.shape[0]), counts)
    place = np.arange(rows.nnz) - np.repeat(rows.indptr[:-1], counts)
    columns, values = (
        np.zeros((rows.shape[0], k), np.int32),
        np.zeros((rows.shape[0], k), rows.dtype),
    )
    columns[row, place], values[row, place] = rows.indices, rows.data
    return SparseRows(columns, values, rows.shape[1])
