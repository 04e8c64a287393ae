"""Minima of convex problems, computed in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec as P

from dsgd import checks, modes, workers
from dsgd.base import Params, Problem
from dsgd.engine import leaves, oracle
from dsgd.engine.plan import drop_arrays
from dsgd.machines import arrays
from dsgd.problems.curvature import to_float64

_STEPS, _ATTEMPTS = 100, 12  # proximal gradient steps, which double with each attempt
_KRYLOV = 200  # largest dimension of the Krylov space of a step of Newton's method
_ROUNDING = 1e-13  # of f in a comparison of two values, relative to them


@checks.arguments
@modes.outermost
def solved(problem: Problem, tolerance: float = 1e-12) -> Problem:
    r"""Returns the problem with `constants.minimum` and `constants.minimizer`, computed in float64
    for a convex objective F = f + r, with or without a regularizer r.

    The certificate is the norm of the gradient mapping,

    $$ |G(x)| \le \epsilon \max(1, |G(x_0)|), \qquad G(x) = \tfrac1s (x - x^+), \qquad x^+ =
    \mathrm{prox}_{s r}(x - s f'(x)), \qquad s \approx \tfrac1L $$

    where $x_0$ is the problem's start for key 0. By convexity $F(x^+) - F^\star \le |G(x)|\,
    |x - x^\star|$; if f is $\mu$-strongly convex, $F(x^+) - F^\star \le |G(x)|^2 / (2 \mu)$.

    f is the mean of `Problem.loss` over all data of all workers. If the data are float32, it is the
    function of exactly these numbers, but a run in float32 evaluates it with relative errors of
    about $10^{-7}$; gaps below that need runs in float64 (`jax.enable_x64`).

    Accelerated proximal gradient steps (FISTA with restarts and a line search for L) alternate with
    a semismooth Newton method for G(x) = 0, which converges in a few steps once the set of elements
    at which r is not smooth is found.

    Args:
        problem: a convex problem; all its parameters must be trained. Convexity is not checked.
        tolerance: $\epsilon$, in (0, 1).

    Returns:
        The problem; the minimizer is a tree of numpy arrays in float64.

    Raises:
        ValueError: if the certificate is not reached, as for problems that are not convex or have
            no minimizer, or some parameters are not trained.

    Source: Beck and Teboulle, "A fast iterative shrinkage-thresholding algorithm for linear inverse
    problems", 2009; O'Donoghue and Candes, "Adaptive restart for accelerated gradient schemes",
    2015.
    """
    checks.number("solved: tolerance", tolerance, "(0, 1)")
    if not all(leaves.flags(problem)):
        raise ValueError(
            f"solved: parameters of {problem.name} include leaves that are not trained; expected a "
            "problem without `trainable`, with floating-point parameters only"
        )
    with jax.enable_x64(True):
        data, start, unravel = _start(problem)
        smooth, prox, r = _composite(drop_arrays(problem), unravel)
        x = _stationary(problem.name, smooth, prox, data, start, tolerance)
        minimum = float(smooth(x, data)[0] + r(x))
        minimizer = jax.tree.map(np.asarray, unravel(x))
    return problem._replace(
        constants=problem.constants._replace(minimum=minimum, minimizer=minimizer)
    )


def start_value(problem: Problem) -> float:
    """Returns the objective at the problem's start for key 0, with its regularizer, in float64."""
    with jax.enable_x64(True):
        data, start, unravel = _start(problem)
        smooth, _, r = _composite(drop_arrays(problem), unravel)
        return float(smooth(start, data)[0] + r(start))


def _start(problem: Problem) -> tuple[Any, jax.Array, Callable[[jax.Array], Params]]:
    """Returns the data of all workers and the start in float64, as a vector, with the function that
    makes the parameters of a vector.
    """
    data = jax.tree.map(arrays.fetch, problem.data)
    data, params = to_float64((data, problem.init(jax.random.key(0))))
    return data, *ravel_pytree(params)


def _composite(
    problem: Problem, unravel: Callable[[jax.Array], Params]
) -> tuple[Callable, Callable, Callable]:
    """Returns functions of a vector: (x, data) -> f(x) and f'(x); (x, s) -> the proximal step of r;
    x -> r(x).
    """
    mean_loss = problem._replace(evaluate=None, regularizer=None)

    def block(params, data):
        scalars, slope = oracle.evaluate(mean_loss, params, data, ())
        return scalars["loss"], slope

    evaluate = jax.shard_map(
        block,
        mesh=workers.mesh(1),
        in_specs=(P(), P(workers.AXIS)),
        out_specs=P(),
        check_vma=False,
    )

    def smooth(x, data):
        value, slope = evaluate(unravel(x), data)
        return value, ravel_pytree(slope)[0]

    r = problem.regularizer
    if r is None:
        return jax.jit(smooth), lambda x, step: x, lambda x: 0.0
    return (
        jax.jit(smooth),
        lambda x, step: ravel_pytree(r.prox(unravel(x), step))[0],
        lambda x: r.value(unravel(x)),
    )


def _stationary(
    name: str, smooth: Callable, prox: Callable, data: Any, x: jax.Array, tolerance: float
) -> jax.Array:
    """Returns $x^+$ of a point x with a sufficiently small gradient mapping.

    Args:
        name: name of the problem, for the error message.
        smooth, prox: from `_composite`.
        data: the problem's data.
        x: the start.
        tolerance: as in `solved`.
    """

    @jax.jit
    def mapping(x, L, data):
        return x - prox(x - smooth(x, data)[1] / L, 1 / L)

    @jax.jit
    def differential(x, direction, L, data):
        return jax.jvp(lambda x: mapping(x, L, data), (x,), (direction,))[1]

    @jax.jit
    def descend(x, L, data, steps):
        return _fista(smooth, prox, x, L, data, steps)

    def size(x):  # |G(x)|
        return float(L * jnp.linalg.norm(mapping(x, L, data)))

    x, L = descend(x, _curvature(smooth, x, data), data, 0)
    small = tolerance * max(1.0, size(x))
    for attempt in range(_ATTEMPTS):
        x, L = descend(x, L, data, _STEPS << attempt)
        now, before = size(x), np.inf
        while small < now < before / 2:
            step = _newton_step(partial(differential, x, L=L, data=data), mapping(x, L, data))
            before, candidate = now, x + step
            now = size(candidate)
            x = candidate if now < before else x
        if size(x) <= small:
            return x - mapping(x, L, data)
    raise ValueError(
        f"solved: {name}: the norm of the gradient mapping is {size(x):.3g} after "
        f"{_STEPS << _ATTEMPTS} proximal gradient steps, above {small:.3g}; expected a convex "
        "problem with a minimizer: add a small l2, scale the features, or pass a larger tolerance"
    )


def _curvature(smooth: Callable, x: jax.Array, data: Any) -> jax.Array:
    """Returns a first estimate of L: the change of the gradient along the gradient."""
    slope = smooth(x, data)[1]
    length = jnp.linalg.norm(slope)
    direction = jnp.where(length > 0, slope / length, 1 / jnp.sqrt(x.size))
    change = jnp.linalg.norm(smooth(x + direction, data)[1] - slope)
    return jnp.where(change > 0, change, 1.0)


def _fista(
    smooth: Callable, prox: Callable, x: jax.Array, L: jax.Array, data: Any, steps: Any
) -> tuple[jax.Array, jax.Array]:
    """Returns the model after accelerated proximal gradient steps, and L, which doubles until the
    quadratic upper bound holds.
    """

    def one_step(_, carry):
        x, y, t, L = carry
        value, slope = smooth(y, data)

        def trial(L):
            return prox(y - slope / L, 1 / L)

        def too_small(L):
            z = trial(L)
            bound = value + slope @ (z - y) + L / 2 * jnp.sum((z - y) ** 2)
            return smooth(z, data)[0] > bound + _ROUNDING * (1 + jnp.abs(value))

        L = lax.while_loop(too_small, lambda L: 2 * L, L)
        z = trial(L)
        t = jnp.where((y - z) @ (z - x) > 0, 1.0, t)  # restart
        after = (1 + jnp.sqrt(1 + 4 * t**2)) / 2
        return z, z + (t - 1) / after * (z - x), after, L

    x, _, _, L = lax.fori_loop(0, steps, one_step, (x, x, jnp.ones(()), L))
    return x, L


def _newton_step(differential: Callable, moved: jax.Array) -> np.ndarray:
    """Returns the step to the zero of a function that is linear around x.

    Args:
        differential: direction -> the directional derivative at x.
        moved: the function's value at x.
    """
    from scipy.sparse.linalg import LinearOperator, gmres  # noqa: PLC0415 (slow to import)

    d = moved.size
    operator: Any = LinearOperator(
        (d, d), lambda v: np.array(differential(v.ravel().astype(float)))
    )
    return gmres(operator, -np.asarray(moved), rtol=1e-10, restart=min(d, _KRYLOV), maxiter=5)[0]
