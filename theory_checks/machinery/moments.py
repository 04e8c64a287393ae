r"""Exact moments, without sampling noise, of the project's own methods on quadratics.

On a quadratic, a round of SGD, of gossip, of a stale or of a compressed step with additive noise is
affine in the state and in the noise. Its matrices are obtained by differentiating the method's own
`query` and `update` (which is exact, since they are affine):

$$ s_{t+1} = M_t s_t + c_t + B_t \xi_t, \qquad E \xi_t = 0,\ E \xi_t \xi_t^T = I $$

Mean and covariance of the state therefore follow

$$ m_{t+1} = M_t m_t + c_t, \qquad S_{t+1} = M_t S_t M_t^T + B_t B_t^T, $$

and any affine quantity $P s + q$ (a gradient, a distance between models) has $E|Ps + q|^2 = |Pm +
q|^2 + \mathrm{tr}(P S P^T)$.

A round must be the same affine map for every t (unless `varying`) and for every key, except for the
choice of the worker that is queried, which must be uniform. Only the round's number and
floating-point numbers may change. This is probed, and a violation raises an error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from dsgd import checks
from dsgd.base import Algorithm, Problem, State
from dsgd.problems.quadratic import Quadratic
from theory_checks.machinery import probes
from theory_checks.machinery.rounds import Build, Instance, Rounds, place_on_one_device

_SHORTEST = 9  # log2 of the smallest number of rounds for which a program is compiled


@cache
def with_step(method: Callable[..., Algorithm], *arguments: Any) -> Build:
    """Returns a builder of method(optax.sgd(gamma), *arguments). It is the same object for equal
    arguments, so that the method is compiled once.
    """
    return lambda of, compressor: method(optax.sgd(of.learning_rate), *arguments)


@cache
def with_compressor(method: Callable[..., Algorithm], *arguments: Any) -> Build:
    """Returns a builder of method(optax.sgd(gamma), compressor, *arguments), cached as in
    `with_step`.
    """
    return lambda of, compressor: method(optax.sgd(of.learning_rate), compressor, *arguments)


@cache
def with_compressors(method: Callable[..., Algorithm]) -> Build:
    """Returns a builder of method(optax.sgd(gamma), up, down) with the same compressor in both
    directions, cached as in `with_step`.
    """
    return lambda of, compressor: method(optax.sgd(of.learning_rate), compressor, compressor)


def second_moments(
    build: Build,
    problem: Problem,
    learning_rate: float,
    *,
    steps: int,
    one_worker: bool = False,
    varying: bool = False,
    compression: float = 0.0,
    messages: int = 0,
    more: Any = (),
    quantities: Callable[[State], dict[str, jax.Array]] | None = None,
) -> dict[str, np.ndarray]:
    r"""Returns the mean squares that occur in theorems, before each of the rounds and after the
    last, `[steps + 1]`, in float64.

    Args:
        build: from `with_step`, `with_compressor` or the like.
        problem: from `problems.quadratic`.
        learning_rate: gamma.
        steps: T. Programs are compiled for powers of two, from 512 on.
        one_worker: whether the method queries one worker, drawn uniformly. The differences between
            workers are then noise, and their Hessians must be equal.
        varying: whether the round's matrices depend on t.
        compression: s', if each message of a whole vector has an error of mean square s'^2, see
            `rounds.additive`.
        messages: number of messages that a round compresses.
        more: additional arrays from which the method is built.
        quantities: additional quantities, affine in the state.

    Returns:
        `slope` $E|f'(\bar x_t)|^2$, `gap` $E f(\bar x_t) - f^\star$, `consensus` $\frac1N \sum
        E|x_n - \bar x|^2$, `spread` $\frac1N \sum E|f_n' - f'|^2$ at the mean of the models at
        which gradients are computed; for these gradients `asked` $E|\frac1N \sum_n f_n'|^2$,
        `stale` $E|f'(\bar x_t) - \frac1N \sum_n f_n'|^2$, `local` $\frac1N \sum E|f_n'|^2$,
        `around` $\frac1N \sum E|f_n' - f'(\bar x_t)|^2$; and the additional quantities.

    Raises:
        ValueError: if the problem or its noise is of another kind; if one worker is queried and the
            Hessians differ, or a worker is queried more often than others; if a round has another
            number of messages; or if rounds are not the same affine map.
    """
    checks.positive_int("steps", steps)
    messages = messages if compression else 0
    of = instance(problem, learning_rate, compression, more, one_worker)
    with jax.enable_x64(True):
        key = (
            probes.key_without_collisions(build, of, problem.gradient, messages)
            if messages
            else jax.random.key(0)
        )
        found, wrong = _second_moments(
            of,
            key,
            build=build,
            gradient=problem.gradient,
            length=1 << max(_SHORTEST, steps.bit_length()),
            varying=varying,
            rows=probes.rows_for(messages),
            quantities=quantities,
        )
        probes.require_as_assumed(problem.name, wrong)
        if one_worker:
            probes.require_uniform(problem.name, build, of, problem.gradient)
        return {name: np.asarray(values, np.float64)[: steps + 1] for name, values in found.items()}


def instance(
    problem: Problem,
    learning_rate: float,
    compression: float = 0.0,
    more: Any = (),
    one_worker: bool = False,
) -> Instance:
    """Returns the numbers of a quadratic and of a method on it. Arguments and errors are those of
    `second_moments`.
    """
    data = problem.data
    if not isinstance(data, Quadratic):
        raise ValueError(
            f"{problem.name}: no exact moments; expected a problem from problems.quadratic"
        )
    if problem.sample.__module__ != Quadratic.__module__:
        raise ValueError(
            f"{problem.name} has a custom sampler; exact moments need equal Gaussian noise "
            "in all directions"
        )
    A, b = np.asarray(data.A, np.float64), np.asarray(data.b, np.float64)
    if A.ndim == 2:
        A = A[:, :, None] * np.eye(A.shape[1])
    N, d = b.shape
    covariance = (problem.constants.noise or 0.0) ** 2 / d * np.eye(d)
    if one_worker:
        if np.abs(A - A[0]).max() > 1e-12 * np.abs(A).max():
            raise ValueError(
                f"{problem.name}: the Hessians differ; exact moments of methods that query one "
                "worker need equal Hessians"
            )
        deviations = b - b.mean(axis=0)
        covariance = covariance + deviations.T @ deviations / N
        b = np.broadcast_to(b.mean(axis=0), b.shape)
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0))
    with jax.enable_x64(True):
        start = problem.init(jax.random.key(0))
        arrays = (jnp.asarray(x, float) for x in (A, b, root, start, learning_rate, compression))
        return Instance(*arrays, more=jax.tree.map(jnp.asarray, more))


@partial(jax.jit, static_argnames=("build", "gradient", "length", "varying", "rows", "quantities"))
def _second_moments(of, key, *, build, gradient, length, varying, rows, quantities):
    def everything(of, key):
        rounds = Rounds(build, gradient, of, key, quantities)
        first, silence = rounds.first(), rounds.silence(rows)

        def matrices(t):
            zero, z = jnp.zeros_like(first), jnp.zeros(rounds.shape)
            M, c = (
                jax.jacfwd(lambda s: rounds.next_state(t, s, z, silence))(zero),
                rounds.next_state(t, zero, z, silence),
            )
            B = jax.jacfwd(lambda z: rounds.next_state(t, zero, z, silence))(z).reshape(
                first.size, -1
            )
            noise = B @ B.T
            if rows > 1:
                C = jax.jacrev(lambda table: rounds.next_state(t, zero, z, table))(silence).reshape(
                    first.size, -1
                )
                noise = noise + C @ C.T
            seen = rounds.quantities_at(t, zero)
            jacobians = jax.jacfwd(lambda s: rounds.quantities_at(t, s))(zero)
            squares = {
                name: (jacobians[name].reshape(-1, first.size), seen[name].ravel()) for name in seen
            }
            return M, c, noise, squares

        fixed = None if varying else matrices(jnp.int32(0))

        def step(carry, t):
            m, S = carry
            M, c, noise, squares = matrices(t) if fixed is None else fixed
            moments = {
                name: jnp.sum((J @ m + q) ** 2) + jnp.sum((J @ S) * J)
                for name, (J, q) in squares.items()
            }
            return (M @ m + c, M @ S @ M.T + noise), moments

        start = (first, jnp.zeros((first.size, first.size)))
        wrong = probes.wrong(rounds, first, silence, varying)
        return lax.scan(step, start, jnp.arange(length, dtype=jnp.int32))[1], wrong

    return place_on_one_device(everything)(of, key)
