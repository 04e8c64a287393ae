"""Constants of a problem that theorems and step sizes need, computed in float64 on request."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from dsgd import checks, modes
from dsgd.base import Params, Problem
from dsgd.engine import oracle, pooled
from dsgd.machines import agreement, arrays
from dsgd.problems.curvature import LOSSES, Curvature, HessianCurvature, to_float64
from dsgd.problems.examples import EPOCH, Keyed, Minibatch
from dsgd.problems.finite_sum import MeanLoss
from dsgd.problems.solutions import solved, start_value

_SAMPLES = 64  # samples of a worker whose gradients are computed at a time


class ProblemConstants:
    r"""Constants of $f = \frac1N \sum_n w_n f_n$, each computed when it is first read, and kept.

    Reading raises ValueError if a constant cannot be computed. `problem` is the problem.
    """

    def __init__(self, problem: Problem, curvature: float | None = None) -> None:
        self.problem: Problem = problem
        self._given: float | None = curvature

    def __repr__(self) -> str:
        return f"ProblemConstants({self.problem.name})"

    @cached_property
    def smoothness(self) -> float:
        """L, a Lipschitz constant of f', of every $f_n'$ and of every $w_n f_n'$, as in
        `dsgd.Constants`.
        """
        return self._curvature()

    @cached_property
    def mean_smoothness(self) -> float:
        """A Lipschitz constant of f', at most `smoothness`."""
        return self._curvature.of_mean

    @cached_property
    def local_smoothness(self) -> np.ndarray:
        """L_n, a Lipschitz constant of each $w_n f_n'$, `[N]`."""
        weights = self.problem.weights
        return self._curvature.of_workers * (1.0 if weights is None else np.asarray(weights))

    @cached_property
    def rms_smoothness(self) -> float:
        r"""$\tilde L = \sqrt{\frac1N \sum_n L_n^2}$, with the L_n of `local_smoothness`."""
        return float(np.sqrt(np.mean(self.local_smoothness**2)))

    @cached_property
    def strong_convexity(self) -> float:
        r"""$\mu \ge 0$ of f, which is convex: the exact value for quadratics, else a lower
        bound.
        """
        mu = self._convexity
        if mu is None:
            raise ValueError(
                f"constants: {self.problem.name} is not known to be convex; if it is, set "
                "problem.constants.strong_convexity (0.0 without strong convexity)"
            )
        return mu

    @property
    def minimum(self) -> float:
        """f*, the minimum of f, or of f + r if the problem has a regularizer r."""
        minimum = self._with_solution.constants.minimum
        assert minimum is not None
        return minimum

    @property
    def minimizer(self) -> Params:
        """x*, a tree of numpy arrays."""
        return self._with_solution.constants.minimizer

    @cached_property
    def gap(self) -> float:
        """f(x_0) - f* at the start for key 0, with r if there is one; an upper bound if
        `problem.constants.minimum` is a lower bound of f.
        """
        known = self.problem.constants.minimum
        return start_value(self.problem) - (self.minimum if known is None else known)

    @cached_property
    def heterogeneity(self) -> float:
        r"""$\varsigma_\star = \sqrt{\frac1N \sum_n |w_n f_n'(x^\star) - f'(x^\star)|^2}$, where
        $f'(x^\star) = 0$ without a regularizer.
        """
        slopes = self._at_solution[0]
        return float(np.sqrt(np.mean(np.sum((slopes - slopes.mean(axis=0)) ** 2, axis=1))))

    @cached_property
    def noise(self) -> float:
        r"""$\sigma_\star = \sqrt{\frac1N \sum_n E|g_n - w_n f_n'(x^\star)|^2}$ of the gradient
        $g_n$ of one batch of the problem at x*. For single samples use `batch_size=1`.
        """
        problem, draw = self.problem, self.problem.sampler.draw
        draw = draw.sample if isinstance(draw, Keyed) else draw
        if problem.local_samples is None or not isinstance(draw, Minibatch):
            if problem.constants.noise is not None:
                return problem.constants.noise
            raise ValueError(
                f"constants: the batches of {problem.name} are not drawn by problems.minibatch; "
                "expected a finite sum, or a problem with constants.noise"
            )
        slopes, squares = self._at_solution
        sizes = np.asarray(problem.local_samples, float)
        batch = np.full(sizes.shape, float(draw.batch_size))
        fewer = np.ones(sizes.shape)
        if not draw.replacement or draw.replacement == EPOCH:
            batch = np.minimum(batch, sizes)
            fewer = (sizes - batch) / np.maximum(sizes - 1, 1)
        deviations = np.maximum(squares - np.sum(slopes**2, axis=1), 0.0)
        return float(np.sqrt(np.mean(deviations / batch * fewer)))

    @cached_property
    def _curvature(self) -> Curvature:
        known = self.problem.constants[0]  # not called, as by `.smoothness`
        if isinstance(known, Curvature) and self._given is None:
            return known
        return HessianCurvature(self.problem, self._given)

    @cached_property
    def _convexity(self) -> float | None:
        problem = self.problem
        if problem.constants.strong_convexity is not None:
            return problem.constants.strong_convexity
        if isinstance(problem.constants[0], Curvature) or self._given is not None:
            return None
        try:
            found = self._curvature
        except ValueError:
            return None
        assert isinstance(found, HessianCurvature)
        loss, least = problem.loss, found.least_of_mean
        if isinstance(loss, MeanLoss) and loss.per_sample in LOSSES:
            least = loss.l2 + found.least_added
        return least if least >= 0 else None

    @cached_property
    def _with_solution(self) -> Problem:
        known = self.problem.constants
        if known.minimum is not None and known.minimizer is not None:
            return self.problem
        if self._convexity is None:
            raise ValueError(
                f"constants: x* of {self.problem.name} is not known, and the problem is not known "
                "to be convex; if it is, pass problems.solved(problem)"
            )
        return solved(self.problem)

    @cached_property
    def _at_solution(self) -> tuple[np.ndarray, np.ndarray]:
        """w_n f_n'(x*) `[N, d]`, and the mean over worker n's samples of the squared norms of their
        gradients, `[N]`; NaN without samples.
        """
        problem, x = self.problem, self.minimizer
        data = jax.tree.map(arrays.fetch, problem.data)
        data = pooled.flatten(data) if isinstance(data, pooled.Pooled) else data
        weights = np.ones(problem.workers) if problem.weights is None else problem.weights
        with jax.enable_x64(True):
            moments, data, params = jax.jit(_moments(problem)), to_float64(data), to_float64(x)
            found = [
                moments(params, data, n, weight, size)
                for n, (weight, size) in enumerate(
                    zip(weights, problem.local_samples or [0] * problem.workers, strict=True)
                )
            ]
            slopes, squares = zip(*found, strict=True)
            return np.stack(slopes), np.stack(squares)


@checks.arguments
@modes.outermost
def constants(problem: Problem, *, curvature: float | None = None) -> ProblemConstants:
    r"""Returns the constants of a problem that theorems and step sizes need, computed in float64
    when they are read: L of f and of each $f_n$, $\mu$, f*, x*, and the noise and the heterogeneity
    at x*.

        c = problems.constants(problem)
        step = 1 / (c.mean_smoothness + c.rms_smoothness)

    L is exact for quadratic objectives, among them linear regression with any linear model. For
    linear models with a loss whose second derivative is at most c it is $c |A_n|^2 / m_n + l_2$,
    with the matrix $A_n$ of worker n's samples. x* is that of `solved`, for problems that are known
    to be convex.

    Args:
        problem: a ready problem, or any other with at most 4,096 parameters that is quadratic or a
            finite sum of a linear model.
        curvature: c, for finite sums whose loss is not one of optax; None: known, or the problem is
            quadratic. That the model is linear in its parameters is checked.

    Returns:
        The constants. Those that `problem.constants` has are taken from there.

    Raises:
        ValueError: if the curvature is not positive and finite, or there are several processes;
            when a constant is read that cannot be computed.
    """
    if curvature is not None:
        checks.number("constants: curvature", curvature, "(0, inf)")
        if not isinstance(problem.loss, MeanLoss):
            raise ValueError(
                f"constants: curvature = {curvature} for {problem.name}; expected a finite sum"
            )
    if not agreement.is_single_process():
        raise ValueError(
            "constants: called in one of several processes; expected a single process, as x* and "
            "the constants can be computed before the run"
        )
    return ProblemConstants(problem, curvature)


def _moments(problem: Problem) -> Any:
    """Returns the function (x, data of all workers, n, w_n, m_n) -> (the gradient of w_n f_n, the
    mean of the squared norms of w_n times the gradients of single samples).
    """
    gradient, choose = oracle.value_and_grad(problem), problem.sampler.choose

    def of_batch(x, batch):
        return ravel_pytree(gradient(x, batch)[1])[0]

    def moments(x, data, n, weight, size):
        own = pooled.row_data(data, n)
        if choose is None or problem.local_samples is None:
            return weight * of_batch(x, own), jnp.asarray(jnp.nan)

        def of_sample(i, choose=choose):
            return of_batch(x, choose(own, i[None]))

        def add(k, sums):
            places = k * _SAMPLES + jnp.arange(_SAMPLES)
            slopes = jax.vmap(of_sample)(jnp.minimum(places, size - 1))
            slopes = jnp.where((places < size)[:, None], slopes, 0)
            return sums[0] + jnp.sum(slopes, axis=0), sums[1] + jnp.sum(slopes**2)

        zeros = jnp.zeros_like(ravel_pytree(x)[0]), jnp.zeros(())
        total, squares = lax.fori_loop(0, -(-size // _SAMPLES), add, zeros)
        return weight * total / size, weight**2 * squares / size

    return moments
