r"""Mini-batch SGD, (1.20) and (2.2) with their constants: SGD with a smaller variance.

The mean of B draws from M samples has the variance $\sigma^2 / B$ with replacement, and
$\frac{M - B}{M - 1} \frac{\sigma^2}{B}$ without (Lemma 1.2.2), where $\sigma^2$ is the variance of
one draw. The mean of N workers' independent gradients has $\frac1N$ of their variance, for all
data: heterogeneity does not contribute to the noise here. The rest is as in `theory_checks.sgd`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import algorithms
from dsgd.base import Problem
from theory_checks.machinery import instances, ranges, runs
from theory_checks.machinery.rates import Rate, Terms, step_size_and_rate
from theory_checks.machinery.statement import Condition, Draws, Method, Outcome, Statement
from theory_checks.statements import sgd


def hypotheses(problem: Problem, learning_rate: float) -> list[Condition]:
    """Returns the condition gamma <= 1 / L."""
    return [
        instances.step_below("1 / L", 1 / instances.constants(problem).smoothness, learning_rate)
    ]


@ranges.validate("minibatch_sgd.variance")
def variance(
    *, noise: float, batch_size: int = 1, samples: int | None = None, workers: int = 1
) -> float:
    r"""Returns $\frac{\sigma^2}{NB}$, the variance of the mean gradient with replacement;
    multiplied by $\frac{M - B}{M - 1}$ without replacement, if M is given.

    Args:
        noise: sigma, of one sample's gradient.
        batch_size: B, of each worker.
        samples: M, of each worker, drawn without replacement; None: with replacement.
        workers: N.

    Raises:
        ValueError: if the batch is larger than the data.

    Source: Liu and Zhang, section 1.2.3. Departure: (1.19) is printed with the factor B (M - B) /
    (M - 1).
    """
    if samples is not None and batch_size > samples:
        raise ValueError(
            f"minibatch_sgd.variance: batch_size = {batch_size}, samples = {samples}: need B <= M "
            "without replacement"
        )
    fewer = 1.0 if samples is None or samples == 1 else (samples - batch_size) / (samples - 1)
    return noise**2 * fewer / (batch_size * workers)


def terms(
    *,
    gap: float,
    smoothness: float,
    noise: float,
    workers: int = 1,
    batch_size: int = 1,
    samples: int | None = None,
) -> Terms:
    r"""Returns the terms of `theory_checks.sgd` with $\sigma_B^2$ from `variance`."""
    total = variance(noise=noise, batch_size=batch_size, samples=samples, workers=workers)
    return sgd.terms(gap=gap, smoothness=smoothness, noise=math.sqrt(total))


step_size: Callable[..., float]
rate: Callable[..., Rate]
step_size, rate = step_size_and_rate("minibatch_sgd", terms)


@ranges.validate("bounds.minibatch_sgd")
def bound(
    *,
    gap: float,
    smoothness: float,
    noise: float,
    steps: int,
    learning_rate: float,
    workers: int = 1,
    batch_size: int = 1,
    samples: int | None = None,
) -> float:
    r"""Returns $\frac{1}{2 - \gamma L} \big(\frac{2D}{\gamma T} + \gamma L \sigma_B^2\big)$, the
    bound on $\frac1T \sum_t E|f'(x_t)|^2$, with $\sigma_B^2$ from `variance`.

    Args:
        gap: D = f(x_1) - f*.
        smoothness: L.
        noise: sigma, of one sample's gradient; of one worker's gradient if batch_size is 1.
        steps: T.
        learning_rate: gamma <= 1 / L.
        workers, batch_size, samples: N, B, M, as in `variance`.

    Source: Liu and Zhang, (1.20) and (2.2).
    """
    instances.require_step("bounds.minibatch_sgd", learning_rate, "1 / L", 1 / smoothness)
    total = variance(noise=noise, batch_size=batch_size, samples=samples, workers=workers)
    of = sgd.terms(gap=gap, smoothness=smoothness, noise=math.sqrt(total))
    return of.bound_of_sgd(learning_rate, steps)


def check(
    problem: Problem,
    *,
    steps: int,
    learning_rate: float | None = None,
    seeds: int = runs.SEEDS,
    seed: int = 0,
    batches: Mapping[str, Any] | None = None,
    method: Method = algorithms.minibatch_sgd,
) -> Outcome:
    """Checks the bound: against the exact moments on a quadratic, against runs on other problems.

    Args:
        problem: a problem with known constants; its `noise` is that of one worker's batch.
        steps: T.
        learning_rate: gamma; None: the recommended one.
        seeds, seed: number of runs, and their seed.
        batches: `noise`, `batch_size` and `samples` of the problem, as in `variance`, for the
            bound; None: a worker's batch is one draw with the problem's `noise`.
        method: optimiser -> method that averages the gradients of all workers; the default or a
            custom one.

    Raises:
        ValueError: if the problem's constants are unknown, or a hypothesis fails.
    """
    return runs.compare(
        "minibatch_sgd",
        problem,
        lambda gamma: runs.gradient(method, problem, gamma, steps, seeds=seeds, seed=seed),
        bound,
        step_size,
        partial(hypotheses, problem),
        learning_rate,
        steps=steps,
        workers=problem.workers,
        **({"noise": instances.constants(problem).noise} if batches is None else batches),
    )


def trial_exact(draws: Draws) -> list[Outcome]:
    """Checks the exact moments on a random quadratic."""
    N, d = draws.choice(((2, 1), (4, 3)))
    problem = instances.quadratic(draws, N, d)
    steps, share = draws.choice((1, 10, 300)), draws.real(0.01, 1.0)
    L = instances.constants(problem).smoothness
    return [check(problem, steps=steps, learning_rate=gamma) for gamma in (None, share / L)]


def trial_runs(draws: Draws) -> list[Outcome]:
    """Checks runs on random non-convex wells, with batches drawn with or without replacement."""
    B, replacement = draws.choice(((4, True), (4, False)))
    problem = instances.random_wells(draws, 4, 3, batches=((B, replacement),))
    steps, share = draws.choice((10, 100, 300)), draws.real(0.01, 1.0)
    gamma = draws.choice((None, share / instances.constants(problem).smoothness))
    return [check_batches(problem, steps=steps, learning_rate=gamma, seed=draws.integer(0, 10**6))]


def check_batches(problem: Problem, **options: Any) -> Outcome:
    """Calls `check` on wells whose noise is that of the samples; (1.20) gives the variance of a
    batch.
    """
    draw: Any = problem.sampler.draw
    samples = None if draw.replacement else problem.max_local_samples
    batches = {
        "noise": instances.sample_noise(problem),
        "batch_size": problem.batch_size,
        "samples": samples,
    }
    return check(problem, batches=batches, **options)


def bowls() -> list[Outcome]:
    """Checks quadratics, on which the bound is attained as the influence of the start vanishes;
    heterogeneity does not matter.
    """
    return [
        check(
            instances.bowl(
                4, 3, distance=away + 1e-3, smoothness=2.0, noise=2 * noise, heterogeneity=1.0
            ),
            steps=500,
            learning_rate=share / 2.0,
        )
        for away, noise, share in sgd.HARD
    ]


def wells(replacement: bool) -> list[Outcome]:
    """Checks runs that start in a well with little noise, and near a hilltop with small steps and
    without noise. The latter runs only once, because without noise the kind of sampling does not
    matter.
    """
    batches = {"batch_size": 4, "replacement": replacement}
    well = instances.wells(4, 3, start=0.01, noise=0.3, heterogeneity=1.0, **batches)
    found = [check_batches(well, steps=1000, learning_rate=1 / instances.SMOOTHNESS)]
    if replacement:
        found.append(
            check_batches(
                instances.wells(4, 3, start=3.0, heterogeneity=1.0, **batches),
                steps=1000,
                learning_rate=0.02,
            )
        )
    return found


STATEMENTS = [
    Statement("mb-SGD, quadratics, exact", "(2.2)", "gamma <= 1/L", trial_exact, (bowls,)),
    Statement(
        "mb-SGD, non-convex, batches",
        "(1.20)",
        "gamma <= 1/L",
        trial_runs,
        tuple(partial(wells, replacement) for replacement in (True, False)),
    ),
]
