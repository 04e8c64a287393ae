"""Spectra of mixing matrices and the number of gossip rounds until a given accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np
from scipy.sparse import csr_array

_DENSE = 2048  # the largest n whose eigenvalues are taken from the dense matrix


def product(matrices: Sequence[csr_array]) -> np.ndarray:
    """Returns the product of a period, W_T ... W_1, as a dense matrix `[n, n]`."""
    return reduce(lambda done, W: W @ done, matrices[1:], matrices[0].toarray())


def size(W: csr_array) -> int:
    """Returns n, the number of rows."""
    return len(W.indptr) - 1


def symmetric(W: csr_array) -> bool:
    """Whether W = W^T exactly."""
    return (W != W.T).nnz == 0


def second_largest(matrices: Sequence[csr_array]) -> float:
    """Returns the second largest absolute eigenvalue of the product of the matrices, that is, the
    largest one on the subspace of vectors with sum 0, which every round maps into itself.

    It is computed by the Fourier transform if all matrices are circulant, from the dense matrix for
    n up to 2048, and by Lanczos iterations (Arnoldi iterations if W is not symmetric) to float64
    accuracy for larger n.
    """
    n = size(matrices[0])
    if n == 1:
        return 0.0
    if all(circulant(W) for W in matrices):
        return float(np.abs(_circulant_eigenvalues(matrices)[1:]).max())
    single = len(matrices) == 1 and symmetric(matrices[0])
    if n <= _DENSE:
        without_mean = product(matrices)
        without_mean -= without_mean.mean(axis=1, keepdims=True)  # W (I - 11^T/n)
        return float(
            np.abs(
                np.linalg.eigvalsh(without_mean) if single else np.linalg.eigvals(without_mean)
            ).max()
        )

    from scipy.sparse.linalg import LinearOperator, eigs, eigsh  # noqa: PLC0415 (takes a tenth of a second to import)

    def apply(x):
        x = x.ravel() - x.mean()
        for W in matrices:
            x = W @ x
        return x - x.mean()

    operator = LinearOperator((n, n), matvec=apply, dtype=np.float64)  # pyright: ignore[reportCallIssue]
    # A fixed start makes rho reproducible; ARPACK's default start is random.
    start = np.random.default_rng(0).normal(size=n)
    if single:
        return float(
            np.abs(
                eigsh(
                    operator,
                    k=1,
                    which="LM",
                    v0=start,
                    ncv=min(n - 1, 128),
                    return_eigenvectors=False,
                )
            )[0]
        )
    return float(
        np.abs(
            eigs(
                operator, k=1, which="LM", v0=start, ncv=min(n - 1, 128), return_eigenvectors=False
            )
        )[0]
    )


def smallest(W: csr_array) -> float:
    """Returns the smallest eigenvalue of a symmetric W."""
    n = size(W)
    if circulant(W):
        return float(np.real(_circulant_eigenvalues([W])).min())
    if n <= _DENSE:
        return float(np.linalg.eigvalsh(W.toarray()).min())
    from scipy.sparse.linalg import eigsh  # noqa: PLC0415 (takes a tenth of a second to import)

    return float(
        eigsh(
            W,
            k=1,
            which="SA",
            v0=np.random.default_rng(0).normal(size=n),
            ncv=min(n - 1, 128),
            return_eigenvectors=False,
        )[0]
    )


def rounds_at(rho: float, eps: float) -> int:
    """Returns the smallest t with rho^t <= eps, and at least 1."""
    if rho <= eps:
        return 1
    # The factor accepts a power that equals eps up to rounding.
    return math.ceil(math.log(eps) / math.log(rho) * (1 - 1e-12))


def rounds_until(matrices: Sequence[csr_array], eps: float) -> int:
    """Returns the number of rounds until the product of the matrices, with its rows scaled to sum
    1, is within eps of the averaging matrix in the spectral norm.

    It squares the product of a period until the accuracy is reached, then bisects over the squares,
    and finally counts single rounds.
    """
    powers = [product(matrices)]
    while _distance(powers[-1]) > eps:
        powers.append(powers[-1] @ powers[-1])
    done, rounds = np.eye(len(powers[0])), 0
    # The largest number of whole periods that does not reach the accuracy.
    for doublings, power in reversed(list(enumerate(powers))):
        if _distance(power @ done) > eps:
            done, rounds = power @ done, rounds + (len(matrices) << doublings)
    for W in matrices:
        if _distance(done) <= eps:
            break
        done, rounds = W @ done, rounds + 1
    return rounds


def _distance(P: np.ndarray) -> float:
    return float(np.linalg.norm(P / P.sum(axis=1, keepdims=True) - 1 / len(P), 2))


def circulant(W: csr_array) -> bool:
    """Whether each row equals the row above, shifted by one place."""
    n, per_row = size(W), W.nnz // size(W)
    if (np.diff(W.indptr) != per_row).any():
        return False
    shift = (W.indices.reshape(n, per_row) - np.arange(n)[:, None]) % n
    order = np.argsort(shift, axis=1)
    shift, weight = (
        np.take_along_axis(shift, order, 1),
        np.take_along_axis(W.data.reshape(n, per_row), order, 1),
    )
    return bool((shift == shift[0]).all() and (weight == weight[0]).all())


def _circulant_eigenvalues(matrices: Sequence[csr_array]) -> np.ndarray:
    columns = [np.fft.fft(W[:, [0]].toarray().ravel()) for W in matrices]
    return reduce(np.multiply, columns)
