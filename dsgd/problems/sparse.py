"""Samples with few features that are not zero, kept as those on the device."""

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


@partial(
    jax.tree_util.register_dataclass, data_fields=["columns", "values"], meta_fields=["features"]
)
@dataclass(frozen=True, eq=False)
class SparseRows:
    """Rows of a sparse matrix, padded with zeros to one length k: arrays that are drawn, cut and
    sent like others.

    `rows @ kernel` gathers the kernel's rows and adds them up, so a model made of it works on dense
    inputs, too; its gradient scatters. On GPUs XLA adds up in no fixed order, unless XLA_FLAGS has
    --xla_gpu_deterministic_ops=true.

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
        """That of the dense array."""
        return (*self.columns.shape[:-1], self.features)

    @property
    def ndim(self) -> int:
        """The dense array's number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.columns.shape[0]

    def __matmul__(self, kernel: jax.Array) -> jax.Array:
        """The product `[..., classes]` with a kernel `[features, classes]`, or `[...]` with one
        `[features]`.

        Raises:
            ValueError: if the kernel has another number of rows.
        """
        if kernel.shape[:1] != (self.features,) or kernel.ndim > 2:
            raise ValueError(
                f"SparseRows @ kernel: kernel has shape {kernel.shape}; expected "
                f"({self.features},) or ({self.features}, classes)"
            )
        gathered = kernel.at[self.columns].get(mode="fill")  # NaN for a column that is not there
        return jnp.einsum(
            "...kc,...k->...c" if kernel.ndim == 2 else "...k,...k->...", gathered, self.values
        )

    def tocsr(self) -> csr_array:
        """The matrix `[M, features]` of scipy's, from rows `[M, k]`."""
        columns, values = np.asarray(self.columns), np.asarray(self.values)
        rows = np.broadcast_to(np.arange(len(columns))[:, None], columns.shape)
        matrix = csr_array((values.ravel(), (rows.ravel(), columns.ravel())), self.shape)
        matrix.eliminate_zeros()
        return matrix

    def toarray(self) -> np.ndarray:
        """The dense array `[M, features]`."""
        return self.tocsr().toarray()


@checks.arguments
def sparse_rows(matrix: Any, longest: int | None = None) -> SparseRows:
    """The rows of a sparse matrix of scipy's.

    `finite_sum` and `logistic_regression` take such matrices as they are, and make dense arrays of
    them where these are smaller. Where several matrices must have the same k, as the workers' in
    `problems.ByWorker`, this function gives it to them.

    Args:
        matrix: `[M, features]` of real numbers; entries at one place are added.
        longest: k; None: that of the longest row.

    Raises:
        ValueError: if it is no such matrix, has entries that are not finite or that float32 cannot
            hold, or a row with more entries.
    """
    return _padded("sparse_rows: matrix", _canonical("sparse_rows: matrix", matrix), longest)


def smaller(where: str, *matrices: Any) -> tuple[SparseRows | np.ndarray, ...]:
    """Sparse matrices of equal kind as `SparseRows` of one k, or as dense arrays if these take less
    memory.

    Args:
        where: names them in messages.
        matrices: of scipy's, `[M, features]`.

    Raises:
        ValueError: as `sparse_rows`.
    """
    rows = [_canonical(where, matrix) for matrix in matrices]
    longest = max(map(_longest, rows))
    if longest * 2 >= max(matrix.shape[1] for matrix in rows):  # a value and a column each
        return tuple(matrix.toarray() for matrix in rows)
    return tuple(_padded(where, matrix, longest) for matrix in rows)


def _canonical(where: str, matrix: Any) -> Any:
    """Without zeros or duplicates, in JAX's default type."""
    if not issparse(matrix) or matrix.ndim != 2:
        raise ValueError(
            f"{where} = {checks.typed(matrix)}: expected a sparse matrix [M, features] of "
            "scipy's, scipy.sparse.csr_array(X)"
        )
    if not 1 <= matrix.shape[1] <= _MOST_FEATURES:
        raise ValueError(
            f"{where} has shape {matrix.shape}; expected 1 to {_MOST_FEATURES} features"
        )
    rows = csr_array(matrix, copy=True)
    rows.data = array_likes.numbers(where, rows.data)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    if not np.isfinite(rows.data).all():
        raise ValueError(f"{where} has entries that are not finite")
    rows.data = array_likes.kept(where, rows.data).astype(jnp.result_type(float), copy=False)
    return rows


def _longest(rows: Any) -> int:
    """How many entries the longest row has, and at least 1."""
    return max(1, int(np.diff(rows.indptr).max(initial=0)))


def _padded(where: str, rows: Any, longest: int | None) -> SparseRows:
    k = _longest(rows) if longest is None else checks.positive_int("sparse_rows: longest", longest)
    if not _longest(rows) <= k <= rows.shape[1]:
        given = f"a row with {_longest(rows)} entries and {rows.shape[1]} features"
        raise ValueError(
            f"{where} has {given}, but longest = {k}; expected a number from the entries to the "
            "features"
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
