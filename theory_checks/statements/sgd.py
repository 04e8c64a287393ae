r"""SGD, Theorem 1.2.1 with its constants.

By smoothness and $E|g|^2 \le |f'|^2 + \sigma^2$ (1.14),

$$ E f(x_{t+1}) - E f(x_t) \le -\gamma \Big(1 - \frac{\gamma L}{2}\Big) E|f'(x_t)|^2 +
\frac{\gamma^2 L \sigma^2}{2}. $$

Summed over t and divided by $\gamma T (1 - \gamma L / 2)$, with $D = f(x_1) - f^\star$,

$$ \frac1T \sum_t E|f'(x_t)|^2 \le \frac{1}{2 - \gamma L} \Big( \frac{2D}{\gamma T} + \gamma L
\sigma^2 \Big), \qquad \gamma \le \frac1L. $$

On $\frac L2 |x|^2$ the bound is attained as T grows. The variances enter only through their sum, so
that $\sigma^2$ may be their average along the path.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import algorithms
from dsgd.base import Problem
from theory_checks.machinery import instances, ranges, runs
from theory_checks.machinery.rates import Rate, Terms, step_size_and_rate
from theory_checks.machinery.statement import Condition, Draws, Method, Outcome, Statement


def hypotheses(problem: Problem, learning_rate: float) -> list[Condition]:
    """Returns the conditions: gamma <= 1 / L, and the same bound everywhere on the variance, which
    consists of a worker's noise and the heterogeneity.
    """
    limit = 1 / instances.constants(problem).smoothness
    return [
        instances.same_heterogeneity(problem),
        instances.step_below("1 / L", limit, learning_rate),
    ]


def terms(*, gap: float, smoothness: float, noise: float) -> Terms:
    r"""Returns the terms of the bound: $a = 2D$, $s = L$, $b = L\sigma^2$, $w = 0$. The step size
    has $\frac1\gamma = L + \sigma \sqrt{\frac{LT}{2D}}$, and the rate is $\frac{2LD}{T} + \sigma
    \sqrt{\frac{2LD}{T}}$.
    """
    return Terms(2 * gap, smoothness, smoothness * noise**2, share=0)


step_size: Callable[..., float]
rate: Callable[..., Rate]
step_size, rate = step_size_and_rate("sgd", terms)


@ranges.validate("bounds.sgd")
def bound(
    *, gap: float, smoothness: float, noise: float, steps: int, learning_rate: float
) -> float:
    r"""Returns $\frac{1}{2 - \gamma L} \big(\frac{2D}{\gamma T} + \gamma L \sigma^2\big)$, the
    bound on $\frac1T \sum_t E|f'(x_t)|^2$.

    Args:
        gap: D = f(x_1) - f*.
        smoothness: L.
        noise: sigma, of the whole gradient estimate.
        steps: T.
        learning_rate: gamma <= 1 / L.

    Source: Liu and Zhang, Theorem 1.2.1.
    """
    instances.require_step("bounds.sgd", learning_rate, "1 / L", 1 / smoothness)
    of = terms(gap=gap, smoothness=smoothness, noise=noise)
    return of.bound_of_sgd(learning_rate, steps)


def total_noise(problem: Problem) -> float:
    r"""Returns $\sqrt{\sigma^2 + \varsigma^2}$: the gradient of a worker that is drawn uniformly
    varies because of its noise and of the heterogeneity.
    """
    constants = instances.constants(problem)
    return math.hypot(constants.noise, constants.heterogeneity or 0.0)


def check(
    problem: Problem,
    *,
    steps: int,
    learning_rate: float | None = None,
    seeds: int = runs.SEEDS,
    seed: int = 0,
    method: Method = algorithms.sgd,
) -> Outcome:
    """Checks the bound: against the exact moments on a quadratic, against runs on other problems.

    Args:
        problem: a problem with known constants.
        steps: T.
        learning_rate: gamma; None: the recommended one.
        seeds, seed: number of runs, and their seed.
        method: optimiser -> method that uses one worker's gradient per round; the default or a
            custom one.

    Raises:
        ValueError: if the problem's constants are unknown, or a hypothesis fails.
    """
    return runs.compare(
        "sgd",
        problem,
        lambda gamma: runs.gradient(
            method, problem, gamma, steps, one_worker=True, seeds=seeds, seed=seed
        ),
        bound,
        step_size,
        partial(hypotheses, problem),
        learning_rate,
        noise=total_noise(problem),
        steps=steps,
    )


def trial_exact(draws: Draws) -> list[Outcome]:
    """Checks the exact moments on a random quadratic."""
    N, d = draws.choice(((1, 1), (4, 3)))
    problem = instances.quadratic(draws, N, d, hessians=("isotropic", "equal"))
    steps, share = draws.choice((1, 10, 300)), draws.real(0.01, 1.0)
    L = instances.constants(problem).smoothness
    return [check(problem, steps=steps, learning_rate=gamma) for gamma in (None, share / L)]


def trial_runs(draws: Draws) -> list[Outcome]:
    """Checks runs on random wells, which are not convex."""
    problem = instances.random_wells(draws, 3, 4)
    steps, share = draws.choice((10, 100, 300)), draws.real(0.01, 1.0)
    gamma = draws.choice((None, share / instances.constants(problem).smoothness))
    return [check(problem, steps=steps, learning_rate=gamma, seed=draws.integer(0, 10**6))]


HARD = ((1.0, 0.0, 0.05), (0.0, 1.0, 1.0), (0.0, 1.0, 0.3), (20.0, 1.0, 1.0))
"""Distance of the start, noise, and gamma L: each term of the bound alone, and both together."""


def bowls() -> list[Outcome]:
    """Checks quadratics, on which the bound is attained as the influence of the start vanishes,
    whether the variance comes from the noise or from the heterogeneity.
    """
    found = []
    for away, noise, share in HARD:
        for sigma, z in ((noise, 0.0), (0.0, noise)):
            problem = instances.bowl(
                4, 3, distance=away + 1e-3, smoothness=2.0, noise=sigma, heterogeneity=z
            )
            found.append(check(problem, steps=500, learning_rate=share / 2.0))
    return found


def wells() -> list[Outcome]:
    """Checks runs that start in a well with little noise of both kinds, and near a hilltop with
    small steps and without noise.
    """
    well = instances.wells(3, 4, start=0.01, noise=0.1, heterogeneity=0.05)
    hilltop = instances.wells(3, 4, start=3.0)
    return [
        check(well, steps=1000, learning_rate=1 / instances.SMOOTHNESS),
        check(hilltop, steps=1000, learning_rate=0.02),
    ]


STATEMENTS = [
    Statement("SGD, quadratics, exact", "Theorem 1.2.1", "gamma <= 1/L", trial_exact, (bowls,)),
    Statement("SGD, non-convex", "Theorem 1.2.1", "gamma <= 1/L", trial_runs, (wells,)),
]
