"""Robust regression: a non-convex problem whose constants are all known."""

from __future__ import annotations

from math import sqrt
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import checks
from dsgd.base import Constants, Problem
from dsgd.problems.adapters import Model
from dsgd.problems.curvature import LinearCurvature, as_matrix
from dsgd.problems.finite_sum import finite_sum
from dsgd.problems.quadratic import FromZero

STEEPEST = 3 * sqrt(3) / 16  # the largest |phi'|, at u = 1 / sqrt(3)


@checks.arguments
def robust_regression(
    workers: int,
    dimension: int,
    *,
    samples: int = 32,
    batch_size: int = 1,
    replacement: bool | Literal["epoch"] = True,
    residual: float = 0.3,
    seed: int = 0,
) -> Problem:
    r"""Returns robust regression: $f_n(x) = \frac1M \sum_m \phi(a_{nm}^T x - y_{nm})$ with the loss
    of Geman and McClure, $\phi(u) = \frac{u^2}{2(1 + u^2)}$.

    $\phi'(u) = u / (1 + u^2)^2$ is at most $\kappa = 3\sqrt3/16$, and $-1/4 \le \phi'' \le 1$.
    Hence $L = \max_n \lambda_{\max}(\frac1M \sum_m a_{nm} a_{nm}^T)$, and the following hold
    everywhere: $\sigma^2 = \frac{\kappa^2}{B} \max_n \frac1M \sum_m |a_{nm}|^2$ (without
    replacement times $\frac{M-B}{M-1}$, Lemma 1.2.2) and $\varsigma^2 = \frac{\kappa^2}{N} \sum_n
    (\frac1M \sum_m |a_{nm}|)^2$.

    Args:
        workers: N.
        dimension: d.
        samples: M, the number of samples of each worker. The a are Gaussian with a covariance that
            differs by worker; y = a^T x* + residual z with standard normal z.
        batch_size: B.
        replacement: whether a sample may be drawn twice in a batch. Without replacement, a batch
            has at most M samples. "epoch": as in `finite_sum`.
        residual: standard deviation of the noise in y, at least 0.
        seed: seed of the data.

    Returns:
        A problem that starts at 0, with L, sigma, varsigma, and 0 as a lower bound of f (its
        minimum, at x*, if residual = 0).

    Raises:
        ValueError: if an integer is below 1, or residual < 0.

    Source: Geman and McClure, "Statistical methods for tomographic image reconstruction", 1987.
    """
    for name, value in (
        ("workers", workers),
        ("dimension", dimension),
        ("samples", samples),
        ("batch_size", batch_size),
    ):
        checks.positive_int(f"robust_regression: {name}", value)
    if not 0 <= residual <= 1e30:
        raise ValueError(
            f"robust_regression: residual = {residual}; expected a number from 0 to 1e30 (for "
            "float32)"
        )
    rng = np.random.default_rng(checks.natural("robust_regression: seed", seed, most=None))
    scale = rng.uniform(0.3, 1.0, (workers, 1, dimension))
    a = scale * rng.normal(size=(workers, samples, dimension))
    minimizer = rng.normal(size=dimension)
    y = a @ minimizer + residual * rng.normal(size=(workers, samples))
    lengths = np.linalg.norm(a, axis=2)
    fewer = 1.0 if replacement or samples == 1 else max(samples - batch_size, 0) / (samples - 1)
    problem = finite_sum(
        Model(FromZero(dimension), predict),
        _geman_mcclure,
        (a.reshape(-1, dimension), y.ravel()),
        workers,
        "blocks",
        batch_size=batch_size,
        replacement=replacement,
        name=f"robust_regression({workers} workers, d = {dimension})",
    )
    return problem._replace(
        constants=Constants(
            smoothness=LinearCurvature(problem, 1.0, as_matrix, 0.0),
            minimum=0.0,
            minimizer=minimizer if residual == 0 else None,
            noise=STEEPEST * float(np.sqrt((lengths**2).mean(axis=1).max() * fewer / batch_size)),
            heterogeneity=STEEPEST * float(np.sqrt((lengths.mean(axis=1) ** 2).mean())),
        )
    )


def predict(x: jax.Array, inputs: jax.Array) -> jax.Array:
    """Returns the products of samples `[m, d]` with x `[d]`."""
    return jnp.matmul(inputs, x, precision=jax.lax.Precision.HIGHEST)


def _geman_mcclure(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    u = outputs - targets
    return u**2 / (2 * (1 + u**2))
