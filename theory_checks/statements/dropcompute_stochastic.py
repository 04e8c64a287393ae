r"""DropCompute that divides by the number of computed samples: correction="stochastic" (section
B.2.2).

$$ \theta_{i+1} = \theta_i - \gamma \frac{1}{b_i} \sum_{s \le b_i} g_i^s $$

If batch sizes are independent of the gradients, this is SGD whose noise in round i has the variance
$\sigma^2 / b_i$. Theorem 1.2.1 holds for the rounds in which at least one sample is computed, with
$\sigma^2$ times the mean of $1 / b_i$. Steps are as long as without drops, but the noise is larger.
There is no such theorem for stopping times, because the mean of the computed gradients is biased
even then (see `dropcompute_noise`).
"""

from __future__ import annotations

import math

import numpy as np

import algorithms
from dsgd.base import Problem
from theory_checks.machinery import batch_sizes, instances
from theory_checks.machinery.statement import Draws, Outcome, Statement, need
from theory_checks.statements import dropcompute, sgd
from theory_checks.statements.dropcompute import M, N, problem_of, times


def check(
    problem: Problem,
    seconds: np.ndarray,
    threshold: float,
    *,
    share: float,
    stop: str = "preempt",
) -> Outcome:
    """Checks `sgd.bound` against the exact moments for given times of the micro-batches. Arguments
    as of `dropcompute.check`, but share is gamma L, at most 1.
    """
    constants = instances.constants(problem)
    need("dropcompute", [dropcompute.alike(problem)])
    gamma = share / constants.smoothness
    path = batch_sizes.conditional(
        algorithms.drop_compute, problem, seconds, threshold, stop, gamma, "stochastic"
    )
    some = path.batches > 0
    noise = constants.noise * math.sqrt((1 / path.batches[some]).mean())
    right = sgd.bound(
        gap=constants.gap,
        smoothness=constants.smoothness,
        noise=noise,
        steps=int(some.sum()),
        learning_rate=gamma,
    )
    case = (
        f"{problem.name}, {stop}, tau = {threshold:.4g}, gamma L = {share:.3g}, {some.sum()} rounds"
    )
    return Outcome(float(path.slope[some].mean()), right, case=case)


def trial(draws: Draws) -> list[Outcome]:
    """Checks a random quadratic with random times."""
    problem = problem_of(draws)
    seconds, threshold, _ = times(draws, draws.choice((1, 10, 300)))
    return [check(problem, seconds, threshold, share=draws.real(0.01, 1.0))]


def bowls() -> list[Outcome]:
    """Checks that steps have the same length although batch sizes differ."""
    seconds = np.random.default_rng(0).exponential(size=(500, N, M))
    return [
        check(
            instances.bowl(N, 2, distance=away + 1e-3, smoothness=2.0, noise=noise),
            seconds,
            1.5,
            share=share,
        )
        for away, noise, share in sgd.HARD
    ]


STATEMENTS = [
    Statement(
        "DropCompute, stochastic correction, exact",
        "DropCompute, section B.2.2",
        "gamma L <= 1; batches independent of the gradients",
        trial,
        (bowls,),
    ),
]
