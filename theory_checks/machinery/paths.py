"""Full state trajectories of the project's own methods on quadratics with exact gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dsgd import checks, problems
from dsgd.base import Problem, State
from theory_checks.machinery import moments
from theory_checks.machinery.rounds import Build, Rounds, place_on_one_device, vector
from theory_checks.machinery.statement import Outcome

ROUNDED = 1e-4
"""If a quantity is nearly 0, its rounding error of 1e-9 is relative to this fraction of the largest
one.
"""
_SHORTEST = 6  # log2 of the smallest number of rounds for which a program is compiled


def follow(
    build: Build,
    problem: Problem,
    learning_rate: float,
    *,
    steps: int,
    models: np.ndarray | None = None,
    more: Any = (),
) -> State:
    """Returns the states before each of the rounds and after the last, leaves `[steps + 1, ...]`,
    in float64.

    Args:
        build: from `moments.with_step` or the like.
        problem: from `problems.quadratic`; its noise is ignored.
        learning_rate: gamma; 0 for gossip alone.
        steps: T. Programs are compiled for powers of two, from 64 on.
        models: initial models of the workers, `[N, d]`, for a method whose state has them as
            `workers.params`; None: the problem's start.
        more: additional arrays from which the method is built.

    Raises:
        ValueError: if the problem is of another kind.
    """
    checks.positive_int("steps", steps)
    with jax.enable_x64(True):
        of = moments.instance(problem, learning_rate, more=more)
        first = (
            np.broadcast_to(np.asarray(of.start), of.b.shape)
            if models is None
            else np.asarray(models, np.float64)
        )
        length = 1 << max(_SHORTEST, steps.bit_length())
        states = _follow(
            of, jnp.asarray(first), build=build, gradient=problem.gradient, length=length
        )
        return jax.tree.map(lambda leaf: np.asarray(leaf)[: steps + 1], states)


@partial(jax.jit, static_argnames=("build", "gradient", "length"))
def _follow(of, models, *, build, gradient, length):
    def everything(of, models):
        rounds = Rounds(build, gradient, of, jax.random.key(0), None)
        silence, start = rounds.silence(1), rounds.state(jnp.int32(0), rounds.first())
        moved = start._replace(workers=start.workers._replace(params=models))

        def step(s, t):
            return rounds.next_state(t, s, jnp.zeros(rounds.shape), silence), rounds.state(t, s)

        return lax.scan(step, vector(moved), jnp.arange(length, dtype=jnp.int32))[1]

    return place_on_one_device(everything)(of, models)


def follow_gossip(build: Build, models: np.ndarray, *, steps: int, more: Any = ()) -> State:
    """Returns the states of a method without gradients, from the models of the workers, `[N, d]`.
    Arguments are those of `follow`.
    """
    still = problems.quadratic(np.ones_like(models), np.zeros_like(models))
    return follow(build, still, 0.0, steps=steps, models=models, more=more)


def gradients(problem: Problem, models: np.ndarray) -> np.ndarray:
    """Returns the workers' exact gradients of a quadratic at their own models, `[..., N, d]`,
    computed independently of the project's code.
    """
    A, b = np.asarray(problem.data.A, np.float64), np.asarray(problem.data.b, np.float64)
    return (A * models if A.ndim == 2 else np.einsum("nij,...nj->...ni", A, models)) - b


def apart(models: np.ndarray) -> np.ndarray:
    """Returns models `[..., N, d]` minus their mean."""
    return models - models.mean(axis=-2, keepdims=True)


def size(values: np.ndarray) -> np.ndarray:
    """Returns the Frobenius norms of `[..., N, d]`."""
    return np.linalg.norm(values, axis=(-2, -1))


def worst(
    measured: np.ndarray,
    bound: np.ndarray,
    *,
    case: str,
    equality: bool = False,
    scale: np.ndarray | float = 0.0,
) -> list[Outcome]:
    """Returns the worst outcome of comparing two arrays of the same shape elementwise; its case
    includes the index. `scale` is an array of this shape, or one number for all elements.
    """
    outcomes = [
        Outcome(
            float(measured[at]),
            float(bound[at]),
            case=f"{case}, at {at}",
            equality=equality,
            scale=float(size),
        )
        for at, size in np.ndenumerate(np.broadcast_to(scale, measured.shape))
    ]
    return [max(outcomes, key=lambda outcome: outcome.badness)]


def worst_parts(
    measured: np.ndarray,
    bound: np.ndarray,
    parts: Sequence[str],
    *,
    case: str,
    scale: np.ndarray | float = 0.0,
) -> list[Outcome]:
    """Returns the worst outcome of each column of two arrays `[T, parts]`, which `parts` names."""
    return [
        outcome
        for k, part in enumerate(parts)
        for outcome in worst(measured[:, k], bound[:, k], case=f"{case}, {part}", scale=scale)
    ]
