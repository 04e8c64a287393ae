"""Random linear regression with a minimum that is known exactly, and batches of samples."""

from __future__ import annotations

from typing import Literal

import jax
import numpy as np
from numpy.typing import ArrayLike

from dsgd import checks
from dsgd.base import Constants, Problem
from dsgd.problems.adapters import Model
from dsgd.problems.curvature import LinearCurvature, as_matrix
from dsgd.problems.finite_sum import finite_sum
from dsgd.problems.quadratic import FromZero, spectra
from dsgd.problems.robust_regression import predict


@checks.arguments
def random_linear_regression(
    workers: int,
    spectrum: ArrayLike,
    *,
    samples: int = 32,
    batch_size: int | None = None,
    replacement: bool | Literal["epoch"] = True,
    heterogeneity: float = 1.0,
    residual: float = 0.3,
    seed: int = 0,
) -> Problem:
    r"""Returns linear regression $f_n(x) = \frac1{2 M} |A_n x - y_n|^2$ with given eigenvalues of
    $\frac1M A_n^T A_n$, whose eigenvectors are random.

    Args:
        workers: N.
        spectrum: the eigenvalues, positive, `[d]`, or `[N, d]` if those of the workers differ.
        samples: M, the number of samples of each worker, at least d.
        batch_size, replacement: as in `finite_sum`; by default gradients are exact.
        heterogeneity: $\varsigma$, with $\varsigma^2 = \frac1N \sum_n |f_n'(x^\star)|^2$.
        residual: standard deviation of the noise that is added to y, without its projection on the
            range of $A_n$, which would change $f_n'$. With 0 and without heterogeneity all losses
            are 0 at the minimizer.
        seed: seed of the data.

    Returns:
        A problem that starts at 0 with known L, $\mu$, f*, x* and $\varsigma$.

    Raises:
        ValueError: if N < 1, M < d, the spectrum is not positive, or heterogeneity or residual are
            negative, or heterogeneity > 0 with one worker.
    """
    where = "random_linear_regression"
    N, M = (
        checks.positive_int(f"{where}: {name}", value)
        for name, value in (("workers", workers), ("samples", samples))
    )
    eigenvalues = spectra(where, spectrum, N)
    d = eigenvalues.shape[1]
    if d > M:
        raise ValueError(f"{where}: samples = {M} for {d} eigenvalues; expected at least {d}")
    for name, value in (("heterogeneity", heterogeneity), ("residual", residual)):
        checks.number(f"{where}: {name}", value, "[0, 1e30]")
    if heterogeneity > 0 and N == 1:
        raise ValueError(f"{where}: heterogeneity = {heterogeneity} with one worker; expected 0")
    rng = np.random.default_rng(checks.natural(f"{where}: seed", seed, most=None))
    bases = np.linalg.qr(rng.normal(size=(N, d, d)))[0]
    left = np.linalg.qr(rng.normal(size=(N, M, d)))[0]
    scales = np.sqrt(M * eigenvalues)
    A = np.einsum("nmj,nj,nkj->nmk", left, scales, bases)
    minimizer = rng.normal(size=d) / np.sqrt(d)
    slopes = rng.normal(size=(N, d))
    slopes -= slopes.mean(axis=0)
    size = np.sqrt(np.mean(np.sum(slopes**2, axis=1)))
    slopes *= heterogeneity / size if heterogeneity > 0 else 0
    # A_n^T (A_n x* - y_n) = M f_n'(x*) for y_n = A_n x* - M A_n (A_n^T A_n)^{-1} f_n'(x*) and the
    # part of the noise that is orthogonal to the range of A_n.
    coordinates = np.einsum("nkj,nk->nj", bases, slopes) / scales
    noise = residual * rng.normal(size=(N, M))
    noise -= np.einsum("nmj,nlj,nl->nm", left, left, noise)
    errors = M * np.einsum("nmj,nj->nm", left, coordinates) + noise
    problem = finite_sum(
        Model(FromZero(d), predict),
        _half_square,
        (A.reshape(-1, d), (A @ minimizer - errors).ravel()),
        N,
        "blocks",
        batch_size=batch_size,
        replacement=replacement,
        name=f"linear_regression({N} workers, d = {d})",
    )
    mean = np.einsum("nmj,nmk->jk", A, A) / (N * M)
    return problem._replace(
        constants=Constants(
            smoothness=LinearCurvature(problem, 1.0, as_matrix, 0.0),
            strong_convexity=float(np.linalg.eigvalsh(mean)[0]),
            minimum=float(np.mean(errors**2) / 2),
            minimizer=minimizer,
            heterogeneity=heterogeneity,
        )
    )


def _half_square(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    return (outputs - targets) ** 2 / 2
