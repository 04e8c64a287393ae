"""The survey's methods on a quadratic, as their theorems describe them: step size, bound, rate,
exact average, and runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import algorithms
import theory_checks as theory
from algorithms import delays
from dsgd import compressors
from dsgd.base import Algorithm, Compressor, Problem
from dsgd.compressors.members import constant_at
from dsgd.compressors.sizes import fixed_size
from dsgd.graphs.topology import Topology
from theory_checks.machinery import instances, moments, runs
from theory_checks.machinery.rates import Rate
from theory_checks.statements.error_compensated_sgd import any_compressor

METHODS = ("GD", "SGD", "mb-SGD", "CSGD", "EC-SGD", "ASGD", "DSGD", "EF21")
MARKERS = "osD^vPX*"  # marker of each method, like its colour in figures
constant = cache(delays.constant)  # one object for each tau, so that each is compiled once


class Method(NamedTuple):
    r"""A method on one quadratic.

    Args:
        name: name in the survey.
        problem: the quadratic.
        rate: the bound at the recommended step size.
        step_size: T -> gamma, as recommended.
        bound: (T, gamma) -> bound.
        factory: learning_rate -> the project's method.
        exact: (gamma, T) -> $E|f'(x_t)|^2$ of the T models before an update, without sampling
            noise; None if a round is not affine.
        random: whether anything is drawn; if not, one run is exact.
    """

    name: str
    problem: Problem
    rate: Rate
    step_size: Callable[[int], float]
    bound: Callable[[int, float], float]
    factory: Callable[..., Algorithm]
    exact: Callable[[float, int], np.ndarray] | None
    random: bool

    def averages(self, steps: Sequence[int], longest: int = 1) -> np.ndarray:
        r"""Returns $\frac1T \sum_t E|f'(x_t)|^2$ at gamma(T), exactly, for each T.

        Args:
            steps: values of T.
            longest: minimal number of steps of the compiled program.

        Raises:
            ValueError: if the method has no exact moments.
        """
        exact = self.exact
        if exact is None:
            raise ValueError(
                f"{self.name} has no exact moments: its round is not affine; expected runs"
            )
        # programs of equal length are compiled once
        squares = cache(lambda gamma: exact(gamma, max(*steps, longest)))
        return np.array([squares(self.step_size(T))[:T].mean() for T in steps])

    def sample_averages(self, steps: Sequence[int], seeds: int, seed: int) -> np.ndarray:
        """Returns the same averages from runs of the project's loop, `[seeds, len(steps)]`; one run
        if nothing is random.
        """

        count = seeds if self.random else 1

        @cache
        def squares(gamma: float) -> np.ndarray:
            longest = max(T for T in steps if self.step_size(T) == gamma)
            history = runs.histories(
                self.factory,
                self.problem,
                steps=longest,
                learning_rates=[gamma],
                seeds=count,
                seed=seed,
            )
            return history["grad_sqnorm"][0]

        return np.stack([squares(self.step_size(T))[:, :T].mean(axis=1) for T in steps], axis=1)

    def bounds(self, steps: Sequence[int]) -> np.ndarray:
        """Returns the theorem's right side at gamma(T), for each T."""
        return np.array([self.bound(T, self.step_size(T)) for T in steps])


def _method(
    name: str,
    problem: Problem,
    theorem: Any,
    constants: dict[str, float],
    algorithm: Callable[..., Algorithm],
    *settings: Any,
    **moments_of: Any,
) -> Method:
    """Returns a method whose theorem's three functions take the same constants.

    Args:
        name, problem: as in `Method`.
        theorem: statement of `theory_checks`.
        constants: arguments of its rate, step size and bound.
        algorithm: (optimizer, settings) -> the project's method.
        settings: its other arguments.
        moments_of: options of `moments.second_moments`.
    """
    return Method(
        name,
        problem,
        theorem.rate(**constants),
        lambda T: theorem.step_size(**constants, steps=T),
        lambda T, gamma: theorem.bound(**constants, steps=T, learning_rate=gamma),
        runs.with_step(algorithm, *settings),
        _affine(moments.with_step(algorithm, *settings), problem, **moments_of),
        random=bool(problem.constants.noise),
    )


def _affine(build: moments.Build, problem: Problem, **how) -> Callable[[float, int], np.ndarray]:
    """Returns the exact moments of a method whose round is affine, for `Method.exact`."""
    return lambda gamma, T: moments.second_moments(
        build, problem, gamma, steps=max(T - 1, 1), **how
    )["slope"]


def _constants(problem: Problem, *names: str, **others: float) -> dict[str, float]:
    """Returns gap, smoothness, the problem's constants with these names, and others."""
    known = instances.constants(problem)
    return {name: getattr(known, name) for name in ("gap", "smoothness", *names)} | others


def gradient_descent(problem: Problem) -> Method:
    """Returns gradient descent (GD)."""
    theorem, constants = theory.gradient_descent, _constants(problem)
    return _method("GD", problem, theorem, constants, algorithms.gradient_descent)._replace(
        step_size=lambda T: theorem.step_size(smoothness=constants["smoothness"]), random=False
    )


def sgd(problem: Problem) -> Method:
    """Returns SGD: the gradient of one worker per round."""
    constants = _constants(problem, noise=theory.sgd.total_noise(problem))
    return _method("SGD", problem, theory.sgd, constants, algorithms.sgd, one_worker=True)


def minibatch_sgd(problem: Problem) -> Method:
    """Returns mini-batch SGD (mb-SGD): the mean of all workers' gradients."""
    constants = _constants(problem, "noise", workers=problem.workers)
    return _method("mb-SGD", problem, theory.minibatch_sgd, constants, algorithms.minibatch_sgd)


def compressed_sgd(
    problem: Problem, compression: float, via: theory.compressed_sgd.Via = "server"
) -> Method:
    """Returns CSGD with compression errors of mean square sigma'^2 = `compression`^2."""
    method, N = algorithms.compressed_sgd, problem.workers
    effect = theory.compressed_sgd.effect(
        noise=instances.constants(problem).noise, workers=N, compression=compression, via=via
    )
    messages = N * N + (N if via == "server" else 0)
    exact = _affine(
        moments.with_compressor(method, via == "ring"),
        problem,
        compression=compression,
        messages=messages,
    )
    bound = partial(theory.compressed_sgd.bound, compression=compression)
    return _make_compressed_sgd(problem, effect, dithering(problem, compression), via, exact, bound)


def sparsified_sgd(problem: Problem, compressor: Compressor) -> Method:
    """Returns CSGD through servers with a compressor whose errors are relative to its input; the
    f_n of all workers are equal.
    """
    omega = theory.compressed_sgd.omega_of(compressor, problem) or 0.0
    effect = theory.compressed_sgd.effect(
        noise=instances.constants(problem).noise, workers=problem.workers, omega=omega
    )
    return _make_compressed_sgd(
        problem,
        effect,
        compressor,
        "server",
        None,
        partial(theory.compressed_sgd.bound, omega=omega),
    )


def _make_compressed_sgd(
    problem: Problem, effect, compressor: Compressor, via, exact, bound
) -> Method:
    theorem, constants = theory.compressed_sgd, _constants(problem)
    noise = instances.constants(problem).noise
    return Method(
        "CSGD",
        problem,
        theorem.rate(**constants, effect=effect),
        lambda T: theorem.step_size(**constants, steps=T, effect=effect),
        lambda T, gamma: bound(
            **constants, noise=noise, steps=T, workers=problem.workers, learning_rate=gamma, via=via
        ),
        runs.with_step(algorithms.compressed_sgd, compressor, via == "ring"),
        exact,
        random=True,
    )


def error_compensated_sgd(problem: Problem, compression: float) -> Method:
    """Returns EC-SGD; the compression error of each message has the mean square sigma'^2 =
    `compression`^2.
    """
    method, N = any_compressor, problem.workers
    constants = _constants(problem, "noise", workers=N, compression=compression)
    exact = _affine(
        moments.with_compressors(method), problem, compression=compression, messages=N * N + N
    )
    both = [dithering(problem, compression)] * 2
    made = _method("EC-SGD", problem, theory.error_compensated_sgd, constants, method, *both)
    return made._replace(exact=exact, random=made.random or bool(compression))


def asynchronous_sgd(problem: Problem, staleness: int) -> Method:
    """Returns ASGD in which every gradient is `staleness` updates old."""
    noise = theory.sgd.total_noise(problem)
    return _method(
        "ASGD",
        problem,
        theory.asynchronous_sgd,
        _constants(problem, noise=noise, staleness=staleness),
        algorithms.asynchronous_sgd,
        constant(staleness),
        one_worker=True,
        varying=True,
    )


def decentralized_sgd(problem: Problem, topology: Topology) -> Method:
    """Returns DSGD. If Hessians differ, varsigma is its value at the minimiser, to which the
    average along the path tends.
    """
    varsigma = float(problem.constants.heterogeneity or 0.0)
    constants = _constants(
        problem, "noise", workers=problem.workers, heterogeneity=varsigma, rho=topology.rho
    )
    return _method(
        "DSGD",
        problem,
        theory.decentralized_sgd,
        constants,
        algorithms.decentralized_sgd,
        topology,
    )


def ef21(problem: Problem, up: Compressor) -> Method:
    """Returns EF21 with one node and exact gradients, compressed on the way to the server; the
    model is one layer.
    """
    known = instances.constants(problem)
    start = np.asarray(problem.init(jax.random.key(0)), float)
    alpha = constant_at(up.delta, start.size) or 0.0
    shape = {"contractions": [alpha], "weights": [1.0]}
    step = {"layers": [known.smoothness], "smoothness": known.smoothness}
    A, b = (np.asarray(part[0], float) for part in (problem.data.A, problem.data.b))
    errors = {"gap": known.gap, "first": [(1 - alpha) * float(np.sum((A @ start - b) ** 2))]}
    factory = runs.with_step(algorithms.ef21, up, compressors.identity)
    return Method(
        "EF21",
        problem,
        theory.ef21.rate(**shape, **step, **errors),
        lambda T: theory.ef21.step_size(**shape, **step),
        lambda T, gamma: theory.ef21.bound(**shape, **step, **errors, steps=T, learning_rate=gamma),
        factory,
        exact=None,
        random=False,
    )


def dithering(problem: Problem, compression: float) -> Compressor:
    """Returns a compressor that rounds to a grid, with a dither that the receiver subtracts; the
    error of a whole model has the mean square `compression`^2.

    The error is uniform and independent of the compressed vector, exactly as the theorems on
    absolute errors assume.
    """
    d = jax.eval_shape(problem.init, jax.random.key(0)).shape[0]
    return (
        _make_dithering(compression * float(np.sqrt(12 / d)))
        if compression
        else compressors.identity
    )


@cache
def _make_dithering(spacing: float) -> Compressor:
    def compress(key, x):
        code = jnp.round(x / spacing + _dither(key, x.shape[0]))
        return jnp.clip(code, -(2**15), 2**15 - 1).astype(jnp.int16), jax.random.key_data(key)

    def decompress(message, d):
        code, key_data = message
        return (code - _dither(jax.random.wrap_key_data(key_data), d)) * spacing

    return fixed_size(compress, decompress, f"dithered({spacing:.3g})", omega=lambda d: None)


def _dither(key: jax.Array, d: int) -> jax.Array:
    """Draws the dither, which sender and receiver know: uniform between -1/2 and 1/2."""
    return jax.random.uniform(key, (d,), minval=-0.5, maxval=0.5)
