r"""SCAFFOLD with equal Hessians h I and exact gradients: closed forms of models and control
variates; and properties that hold for all Hessians.

Rows are workers; $f_n'(y) = h y - b_n$, $\tilde b_n = b_n - \bar b$, $Q = 1 - \gamma h$. The mean
of the control variates equals the server's, so that the mean of the models follows gradient
descent: $\bar x_t - x^\star = Q^t (x_0 - x^\star)$. The difference between a worker's corrected
gradient and the mean is $-r_j \tilde b_n$ in period j, apart from the models' own differences, with
$r_0 = 1$, as all control variates start at 0. After k of its H steps a worker's model differs from
the mean by $\tilde y_n = \frac{1 - Q^k}{h} r_j \tilde b_n$. The new control variate differs from
the mean by the average of $h \tilde y_n - \tilde b_n$ over these steps, so that

$$ r_{j+1} = (1 - m) r_j, \qquad m = \frac1H \sum_{k < H} Q^k, $$

and in round $t = jH + k$ the models are
$x^\star + Q^t (x_0 - x^\star) + \frac{1 - Q^k}{h} (1 - m)^j \tilde b_n$: workers' differences
vanish linearly, whereas local SGD has $r_j = 1$ in all periods.

Source: Karimireddy et al., "SCAFFOLD", 2020, whose Theorem III has a rate without heterogeneity;
the closed form is derived here.
"""

from __future__ import annotations

import numpy as np

import algorithms
from dsgd import problems
from theory_checks.machinery import moments, paths
from theory_checks.machinery.statement import Draws, Outcome, Statement

_STEPS = 60
_WORKERS, _PERIODS = 4, (1, 3)


def closed_form(
    h: float, b: np.ndarray, start: np.ndarray, gamma: float, period: int
) -> np.ndarray:
    """Returns the models before each round, `[T + 1, N, d]`.

    Args:
        h: the curvature of all f_n.
        b: linear terms, `[N, d]`.
        start: initial model, `[d]`.
        gamma: the step size.
        period: H.
    """
    Q, t = 1 - gamma * h, np.arange(_STEPS + 1)[:, None, None]
    best, m = b.mean(axis=0) / h, np.mean(Q ** np.arange(period))
    return (
        best
        + Q**t * (start - best)
        + (1 - Q ** (t % period)) / h * (1 - m) ** (t // period) * paths.apart(b)
    )


def trial(draws: Draws) -> list[Outcome]:
    """Checks the models of a random problem with equal Hessians, and that the mean of the control
    variates equals the server's.
    """
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    h, period = draws.real(0.2, 5.0), draws.choice(_PERIODS)
    gamma, spread = draws.real(0.01, 1.9) / h, draws.real(0.1, 3.0)
    b, start = spread * rng.normal(size=(_WORKERS, 2)), rng.normal(size=2)
    problem = problems.quadratic(np.full((_WORKERS, 2), h), b, start=start)
    path = paths.follow(
        moments.with_step(algorithms.scaffold, period), problem, gamma, steps=_STEPS
    )
    expected = closed_form(h, b, start, gamma, period)
    case, scale = f"H = {period}, gamma h = {gamma * h:.3g}", float(np.abs(expected).max())
    return [
        *paths.worst(path.workers.params, expected, case=case, equality=True, scale=scale),
        *paths.worst(
            path.workers.control.mean(axis=1),
            path.server,
            case=f"{case}, controls",
            equality=True,
            scale=h * scale + spread,
        ),
    ]


def optimum() -> list[Outcome]:
    """Checks that with unequal Hessians workers converge to the minimiser of the mean, with their
    gradients at this point as control variates.
    """
    problem = problems.random_quadratic(
        _WORKERS, 2, smoothness=1.0, strong_convexity=0.5, heterogeneity=2.0, seed=6
    )
    path = paths.follow(
        moments.with_step(algorithms.scaffold, _PERIODS[1]), problem, 0.1, steps=900
    )
    best = np.broadcast_to(np.asarray(problem.constants.minimizer), (_WORKERS, 2))
    gradients = paths.gradients(problem, best)
    return [
        *paths.worst(path.workers.params[-1], best, case="optimum", equality=True, scale=1.0),
        *paths.worst(
            path.workers.control[-1],
            gradients,
            case="controls at the optimum",
            equality=True,
            scale=1.0,
        ),
    ]


STATEMENTS = [
    Statement(
        "SCAFFOLD, closed form",
        "Karimireddy et al. 2020; derived",
        "Hessians h I, exact gradients; gamma < 2/h",
        trial,
        (optimum,),
    ),
]
