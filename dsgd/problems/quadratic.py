"""Quadratic problems whose constants are all known exactly, for checking bounds numerically."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import ArrayLike

from dsgd import array_likes, checks, xla
from dsgd.base import Constants, Evaluation, Loss, Problem
from dsgd.machines import arrays
from dsgd.problems.curvature import QuadraticCurvature

_SYMMETRY = 1e-6


class Quadratic(NamedTuple):
    """The data of one worker, or of all workers with a leading worker axis.

    Args:
        A: Hessian, `[d, d]`, or its diagonal `[d]`.
        b: linear term, `[d]`.
        scale: sigma / sqrt(d), a scalar.
        noise: the difference between the stochastic and the exact gradient, `[d]`; None in exact
            gradients.
    """

    A: jax.Array
    b: jax.Array
    scale: jax.Array
    noise: jax.Array | None = None


class Average(NamedTuple):
    """The averaged quadratic around its minimiser: f(x) = minimum + (x - x*)^T A (x - x*) / 2."""

    A: jax.Array
    minimizer: jax.Array
    minimum: jax.Array


@checks.arguments
def quadratic(
    A: ArrayLike, b: ArrayLike, *, noise: float = 0.0, start: ArrayLike | None = None
) -> Problem:
    r"""Returns a quadratic problem: worker n has $f_n(x) = \frac12 x^T A_n x - b_n^T x$ and
    observes $f_n'(x) + \xi$ with $\xi \sim N(0, \sigma^2 I / d)$.

    Args:
        A: Hessians `[N, d, d]`, symmetric, or their diagonals `[N, d]`; their mean must be positive
            definite.
        b: linear terms, `[N, d]`.
        noise: sigma >= 0, so that E|xi|^2 = sigma^2 for each worker.
        start: x_0, `[d]`; None: zeros. Problems of the same shape that start at zero share one
            compiled program if all of them have noise or none of them has.

    Returns:
        A problem with exact constants: L, the largest absolute eigenvalue of any A_n; mu, the
        smallest eigenvalue of the mean; x*, f*, sigma, and varsigma = sqrt((1/N) sum |f_n'(x*)|^2),
        which bounds the heterogeneity everywhere if all A_n are equal. Parameters are `[d]` in
        JAX's default float type.

    Raises:
        ValueError: if the shapes do not fit, an A_n is not symmetric, the mean is not positive
            definite, sigma is negative, or any number is not finite.
    """
    A, b = (_real(name, values) for name, values in (("A", A), ("b", b)))
    start = None if start is None else _real("start", start)
    _check(A, b, noise, start)
    workers, d = b.shape
    diagonal = A.ndim == 2
    mean_A, mean_b = A.mean(axis=0), b.mean(axis=0)
    curvature = mean_A if diagonal else np.linalg.eigvalsh(mean_A)
    if not curvature.min() > 0:
        raise ValueError(
            f"quadratic: the mean of A has the eigenvalue {curvature.min():.3g}; expected a "
            "positive definite mean, or f has no minimum"
        )
    minimizer = mean_b / mean_A if diagonal else np.linalg.solve(mean_A, mean_b)
    minimum = -0.5 * float(mean_b @ minimizer)
    local = (A * minimizer if diagonal else A @ minimizer) - b
    average = Average(
        *(arrays.from_host(each, jnp.result_type(float)) for each in (mean_A, minimizer, minimum))
    )
    return Problem(
        init=FromZero(d) if start is None else _start_at(start.copy()),
        loss=Loss(_loss, _gradient),
        sample=_sample if noise > 0 else _sample_exact,
        evaluate=Evaluation(_evaluate, average),
        data=Quadratic(
            arrays.default_float(A),
            arrays.default_float(b),
            arrays.default_float(np.full(workers, noise / np.sqrt(d))),
        ),
        constants=Constants(
            smoothness=QuadraticCurvature(A),
            strong_convexity=float(curvature.min()),
            minimum=minimum,
            minimizer=minimizer,
            noise=float(noise),
            heterogeneity=float(np.sqrt(np.mean(np.sum(local**2, axis=1)))),
        ),
        name=f"quadratic({workers} workers, d = {d})",
    )


_LARGEST = (
    1e30  # limit of the constants: within float32, with room for products with the parameters
)

# The functions below capture no numbers, so that all quadratics of one shape share one compiled
# program (one with noise, one without).


@dataclass(frozen=True)
class FromZero:
    """key -> zeros. It is compared by its dimension, so that problems of one dimension share a
    program.

    Args:
        dimension: d.
    """

    dimension: int

    def __call__(self, key: jax.Array) -> jax.Array:
        return jnp.zeros(self.dimension)


def _start_at(first: np.ndarray) -> Callable[[jax.Array], jax.Array]:
    return lambda key: jnp.asarray(first, float)


def _multiply(A: jax.Array, x: jax.Array) -> jax.Array:
    return A * x if A.ndim == 1 else jnp.matmul(A, x, precision=lax.Precision.HIGHEST)


def _loss(x: jax.Array, batch: Quadratic) -> jax.Array:
    value = 0.5 * x @ _multiply(batch.A, x) - batch.b @ x
    return value if batch.noise is None else value + batch.noise @ x


def _gradient(x: jax.Array, batch: Quadratic) -> jax.Array:
    exact = _multiply(batch.A, x) - batch.b
    return exact if batch.noise is None else exact + batch.noise


def _sample(key: jax.Array, data: Quadratic) -> Quadratic:
    return data._replace(noise=data.scale * jax.random.normal(key, data.b.shape, data.b.dtype))


def _sample_exact(key: jax.Array, data: Quadratic) -> Quadratic:
    return data


def _evaluate(
    x: jax.Array, data: Quadratic, mean: Average
) -> tuple[dict[str, jax.Array], jax.Array]:
    # Relative to the minimiser, f' and f - f* lose no digits to cancellation (f itself is only as
    # precise as f* in its float type).
    delta = x - mean.minimizer
    slope = _multiply(mean.A, delta)
    return {"loss": mean.minimum + 0.5 * xla.inner(delta, slope)}, slope


@checks.arguments
def random_quadratic(
    workers: int,
    dimension: int,
    *,
    smoothness: float = 1.0,
    strong_convexity: float = 0.1,
    heterogeneity: float = 1.0,
    noise: float = 0.0,
    spectrum: ArrayLike | None = None,
    distance: float | None = None,
    equal_hessians: bool = False,
    diagonal: bool = False,
    seed: int = 0,
) -> Problem:
    r"""Returns a random quadratic problem with the given constants.

    Those of RelaySGD, $\frac{1}{2 N} \sum_n |A_n x - b_n|^2$ with the singular values s of each
    $A_n$, have `spectrum=s**2`, `heterogeneity=zeta` and `distance=r_0`; its figures show twice the
    gap, without the 1/2.

    Args:
        workers: N.
        dimension: d.
        smoothness: L, the largest eigenvalue of every Hessian.
        strong_convexity: mu, the smallest eigenvalue of every Hessian. That of the mean is at least
            mu; `constants` has its exact value.
        heterogeneity: varsigma at the minimiser.
        noise: sigma.
        spectrum: the eigenvalues of each Hessian, `[d]`, or `[N, d]` if they differ, in place of
            uniform ones between strong_convexity and smoothness; None: those.
        distance: $|x^\star|$, the distance of the minimizer from the start; None: x* is drawn from
            N(0, I / d).
        equal_hessians: whether all workers have the same Hessian, so that the heterogeneity is the
            same at all x.
        diagonal: whether the Hessians are diagonal, stored as `[N, d]`.
        seed: seed of the Hessians and of b.

    Raises:
        ValueError: if N or d < 1; unless 0 < strong_convexity <= smoothness (equal if d = 1); if
            heterogeneity < 0, or > 0 with one worker; if the spectrum is not positive, or given
            with smoothness or strong_convexity; if distance < 0; and as for `quadratic`.

    Source: Vogels et al., "RelaySum for decentralized deep learning on heterogeneous data", 2021
    (spectrum and distance).
    """
    if workers < 1 or dimension < 1:
        raise ValueError(
            f"random_quadratic: workers = {workers}, dimension = {dimension}; expected at least 1 "
            "of each"
        )
    checks.positive_int("random_quadratic: workers * dimension", workers * dimension)
    if not 0 < strong_convexity <= smoothness <= _LARGEST:
        given = f"strong_convexity = {strong_convexity}, smoothness = {smoothness}"
        raise ValueError(
            f"random_quadratic: {given}; expected 0 < strong_convexity <= smoothness <= "
            f"{_LARGEST:.3g}"
        )
    if spectrum is None and dimension == 1 and strong_convexity < smoothness:
        given = f"strong_convexity = {strong_convexity}, smoothness = {smoothness}"
        raise ValueError(
            f"random_quadratic: {given} in dimension 1; expected equal numbers, since there is "
            "only one eigenvalue"
        )
    if not 0 <= heterogeneity <= _LARGEST or (heterogeneity > 0 and workers == 1):
        need = f"expected a number from 0 to {_LARGEST:.3g}, and 0 for one worker"
        raise ValueError(
            f"random_quadratic: heterogeneity = {heterogeneity} with {workers} workers; {need}"
        )
    rng = np.random.default_rng(checks.natural("random_quadratic: seed", seed, most=None))
    different = 1 if equal_hessians else workers
    eigenvalues = rng.uniform(strong_convexity, smoothness, (different, dimension))
    eigenvalues[:, 0] = strong_convexity
    eigenvalues[:, -1] = smoothness
    if spectrum is not None:
        if (smoothness, strong_convexity) != (1.0, 0.1):
            given = f"smoothness = {smoothness}, strong_convexity = {strong_convexity}"
            raise ValueError(
                f"random_quadratic: spectrum with {given}; expected only the spectrum, which has "
                "both"
            )
        eigenvalues = spectra("random_quadratic", spectrum, different)
        if eigenvalues.shape[1] != dimension:
            raise ValueError(
                f"random_quadratic: spectrum of {eigenvalues.shape[1]} eigenvalues in dimension "
                f"{dimension}; expected {dimension}"
            )
    if diagonal:
        A = np.stack([rng.permutation(row) for row in eigenvalues])
    else:
        bases = np.linalg.qr(rng.normal(size=(different, dimension, dimension)))[0]
        A = np.einsum("nij,nj,nkj->nik", bases, eigenvalues, bases)
        A = (A + np.swapaxes(A, 1, 2)) / 2
    A = np.broadcast_to(A, (workers, *A.shape[1:]))
    # b_n = A_n x* - r_n with sum r_n = 0, so that f_n'(x*) = r_n. The r_n are scaled to the given
    # heterogeneity.
    minimizer = rng.normal(size=dimension) / np.sqrt(dimension)
    if distance is not None:
        checks.number("random_quadratic: distance", distance, f"[0, {_LARGEST:.3g}]")
        minimizer *= distance / np.linalg.norm(minimizer)
    residual = rng.normal(size=(workers, dimension))
    residual -= residual.mean(axis=0)
    size = np.sqrt(np.mean(np.sum(residual**2, axis=1)))
    residual *= heterogeneity / size if heterogeneity > 0 else 0
    b = (A * minimizer if diagonal else A @ minimizer) - residual
    return quadratic(A, b, noise=noise)


def spectra(where: str, given: ArrayLike, N: int) -> np.ndarray:
    """Returns given eigenvalues, `[d]` or `[N, d]`, as `[N, d]`."""
    eigenvalues = array_likes.numbers(f"{where}: spectrum", given).astype(float)
    if eigenvalues.ndim not in (1, 2) or eigenvalues.shape[:-1] not in ((), (N,)):
        raise ValueError(
            f"{where}: spectrum has shape {eigenvalues.shape}; expected [d] or [{N}, d]"
        )
    if not eigenvalues.size or not ((eigenvalues > 0) & (eigenvalues <= _LARGEST)).all():
        raise ValueError(
            f"{where}: spectrum = {checks.show(given)}; expected numbers in (0, {_LARGEST:.3g}]"
        )
    return np.broadcast_to(eigenvalues, (N, eigenvalues.shape[-1]))


def _real(name: str, values: ArrayLike) -> np.ndarray:
    """Returns the values in float64, after checking that JAX's default type can represent them."""
    real = array_likes.numbers(f"quadratic: {name}", values).astype(np.float64, copy=False)
    array_likes.narrow(f"quadratic: {name}", real)
    return real


def _check(A: np.ndarray, b: np.ndarray, noise: float, start: np.ndarray | None) -> None:
    if b.ndim != 2 or A.shape not in (b.shape, (*b.shape, b.shape[-1])):
        raise ValueError(
            f"quadratic: A has shape {A.shape}, b {b.shape}; expected A [N, d, d] or [N, d] and b "
            "[N, d]"
        )
    if b.size == 0:
        raise ValueError(
            f"quadratic: b has shape {b.shape}; expected at least one worker and one dimension"
        )
    if not 0 <= noise < np.inf:
        raise ValueError(f"quadratic: noise = {noise}; expected a finite sigma >= 0")
    array_likes.narrow("quadratic: noise", np.array(noise, np.float64))
    if start is not None and np.shape(start) != b.shape[1:]:
        raise ValueError(
            f"quadratic: start has shape {np.shape(start)}; expected {b.shape[1:]}, as b[n]"
        )
    if start is not None and not np.isfinite(start).all():
        raise ValueError(
            "quadratic: start has entries that are not finite; expected finite numbers"
        )
    if not (np.isfinite(A).all() and np.isfinite(b).all()):
        raise ValueError(
            "quadratic: A or b has entries that are not finite; expected finite numbers"
        )
    if A.ndim == 3:
        asymmetry = np.abs(A - np.swapaxes(A, 1, 2)).max(axis=(1, 2))
        asymmetry /= np.maximum(np.abs(A).max(axis=(1, 2)), np.finfo(float).tiny)
        if asymmetry.max() > _SYMMETRY:
            worst = int(asymmetry.argmax())
            raise ValueError(
                f"quadratic: A[{worst}] is not symmetric (by {asymmetry[worst]:.3g} of its "
                "largest entry); expected symmetric Hessians"
            )
