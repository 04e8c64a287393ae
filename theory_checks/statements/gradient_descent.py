r"""Gradient descent, Theorem 1.1.1 with its constant.

By smoothness, with exact gradients (1.5),

$$ f(x_{t+1}) - f(x_t) \le -\gamma \Big(1 - \frac{\gamma L}{2}\Big) |f'(x_t)|^2. $$

Summed over t, the left side is at least $-D$ with $D = f(x_1) - f^\star$:

$$ \frac1T \sum_t |f'(x_t)|^2 \le \frac{D}{\gamma T (1 - \gamma L/2)}, \qquad \gamma < \frac2L, $$

The right side is smallest at $\gamma = 1/L$, where it is $2LD/T$. On $\frac L2 |x|^2$ the bound is
attained as T grows.
"""

from __future__ import annotations

from functools import partial

import algorithms
from dsgd.base import Problem
from theory_checks.machinery import instances, ranges, runs
from theory_checks.machinery.rates import Rate, Terms
from theory_checks.machinery.statement import Condition, Draws, Method, Outcome, Statement


def hypotheses(problem: Problem, learning_rate: float) -> list[Condition]:
    """Returns the condition gamma < 2 / L."""
    limit = 2 / instances.constants(instances.full_batch(problem)).smoothness
    return [instances.step_below("2 / L", limit, learning_rate, strictly=True)]


@ranges.validate("gradient_descent.step_size")
def step_size(*, smoothness: float) -> float:
    r"""Returns $\gamma = 1/L$, the step size that minimises the bound."""
    return 1 / smoothness


@ranges.validate("bounds.gradient_descent")
def bound(*, gap: float, smoothness: float, steps: int, learning_rate: float) -> float:
    r"""Returns $\frac{D}{\gamma T (1 - \gamma L / 2)}$, the bound on $\frac1T \sum_t |f'(x_t)|^2$.

    Args:
        gap: D = f(x_1) - f*.
        smoothness: L.
        steps: T.
        learning_rate: gamma < 2 / L.

    Source: Liu and Zhang, Theorem 1.1.1.
    """
    instances.require_step(
        "bounds.gradient_descent", learning_rate, "2 / L", 2 / smoothness, strictly=True
    )
    return Terms(2 * gap, smoothness).bound_of_sgd(learning_rate, steps)


@ranges.validate("gradient_descent.rate")
def rate(*, gap: float, smoothness: float) -> Rate:
    r"""Returns $\frac{2LD}{T}$, the rate at the recommended step size."""
    return Terms(2 * gap, smoothness).rate()


def check(
    problem: Problem,
    *,
    steps: int,
    learning_rate: float | None = None,
    method: Method = algorithms.gradient_descent,
) -> Outcome:
    """Checks the bound against a run.

    Args:
        problem: a problem with known constants.
        steps: T.
        learning_rate: gamma; None: the recommended one.
        method: optimiser -> method; the default or a custom one.

    Raises:
        ValueError: if the problem's constants are unknown, or a hypothesis fails.
    """
    # The method uses exact gradients, so the problem's noise does not matter.
    return runs.compare(
        "gradient_descent",
        instances.full_batch(problem),
        lambda gamma: runs.average_gradient(
            runs.with_step(method), problem, gamma, steps, seeds=1, seed=0
        ),
        bound,
        lambda smoothness, **other: step_size(smoothness=smoothness),
        partial(hypotheses, problem),
        learning_rate,
        steps=steps,
    )


def trial(draws: Draws) -> list[Outcome]:
    """Checks a random quadratic or random non-convex wells, at the recommended step size or a
    random one.
    """
    convex = draws.choice((True, False))
    problem = (
        instances.quadratic(draws, 3, 4, at_zero=True)
        if convex
        else instances.random_wells(draws, 3, 4)
    )
    share = draws.choice((0.5, draws.real(0.01, 0.99)))
    L = instances.constants(problem).smoothness
    steps = draws.choice((1, 10, 200))
    return [check(problem, steps=steps, learning_rate=share * 2 / L)]


def bowls() -> list[Outcome]:
    """Checks quadratics, on which the bound is attained at every step size as soon as the minimum
    is reached.
    """
    problem = instances.bowl(3, 4, distance=1.0, smoothness=2.0)
    return [check(problem, steps=300, learning_rate=share / 2.0) for share in (0.05, 1.0, 1.9)]


def hilltops() -> list[Outcome]:
    """Checks a run from near a hilltop into the well with small steps, for which the bound on the
    decrease of f is nearly attained.
    """
    return [check(instances.wells(3, 4, start=3.0), steps=1000, learning_rate=0.02)]


STATEMENTS = [Statement("GD", "Theorem 1.1.1", "gamma < 2/L", trial, (bowls, hilltops))]
