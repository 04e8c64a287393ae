r"""Error-compensated SGD, Theorem 3.4.3 with its constants.

By Lemma 3.4.1 $\tilde x_t = x_t - \gamma \Omega_{t-1}$, with
$\Omega_t = \delta_t + \frac1N \sum_n \delta_t^{(n)}$, follows SGD with the gradients at $x_t$. By
smoothness at $\tilde x_t$, $E|\bar g_t|^2 \le |f'(x_t)|^2 + \sigma^2 / N$ and
$|f'(\tilde x_t) - f'(x_t)| \le \gamma L |\Omega_{t-1}|$,

$$ E f(\tilde x_{t+1}) - E f(\tilde x_t) \le -\frac\gamma2 (1 - \gamma L) E|f'(x_t)|^2 +
\frac{\gamma^2 L \sigma^2}{2N}
   + \frac{\gamma^3 L^2}{2} E|\Omega_{t-1}|^2. $$

If $E|\delta|^2 \le \sigma'^2$ for every error, $E|\Omega|^2 \le 4\sigma'^2$. As the errors start at
0, $\tilde x_1 = x_1$, and

$$ \frac1T \sum_t E|f'(x_t)|^2 \le \frac{1}{1 - \gamma L} \Big( \frac{2D}{\gamma T} + \frac{\gamma L
\sigma^2}{N} + 4 \gamma^2 L^2 \sigma'^2 \Big),
   \qquad \gamma < \frac1L. $$

The theorem's hypothesis concerns the errors that occur during a run. It is therefore checked with
compressors whose errors are known in advance: additive noise; rounding to integers, with an error
of at most 1/2 per element; and $v + \mathrm{sign}(v)$, with an error of exactly 1, always in the
same direction. The last one attains the third term: with N = 1 on $x^2/2$, all errors point in the
same direction, $x = \pm 2 \gamma$. Of the other two terms only half is attained, with small errors,
because the derivation drops $|f'(\tilde x_t)|^2$.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax

import algorithms
from dsgd.base import Algorithm, Compressor, Problem
from dsgd.compressors.sizes import fixed_size
from theory_checks.machinery import instances, moments, ranges, runs
from theory_checks.machinery.rates import Rate, Terms, step_size_and_rate
from theory_checks.machinery.statement import Condition, Draws, Method, Outcome, Statement


def any_compressor(
    optimizer: optax.GradientTransformation, up: Compressor, down: Compressor
) -> Algorithm:
    """Error-compensated SGD with arbitrary compressors: the theorem concerns errors of a given
    size, and requires no contraction.
    """
    return algorithms.error_compensated_sgd(optimizer, up, down, allow_expanding=True)


def hypotheses(problem: Problem, learning_rate: float) -> list[Condition]:
    """Returns the condition gamma < 1 / L."""
    limit = 1 / instances.constants(problem).smoothness
    return [instances.step_below("1 / L", limit, learning_rate, strictly=True)]


def terms(
    *, gap: float, smoothness: float, noise: float, compression: float, workers: int
) -> Terms:
    r"""Returns the terms of the bound: $a = 2D$, $s = 2L$, $b = \frac{2L\sigma^2}{N}$, $c = 4 L^2
    \sigma'^2$, $w = \frac12$, $f = 2$. The step size has $\frac1\gamma = 2L + \sigma
    \sqrt{\frac{LT}{ND}} + \big(\frac{4 L^2 \sigma'^2 T}{D}\big)^{1/3}$, and the rate is
    $\frac{8LD}{T} + 6\sigma\sqrt{\frac{LD}{NT}} + 6 \cdot 4^{1/3}
    \big(\frac{LD\sigma'}{T}\big)^{2/3}$.
    """
    noisy, drift = 2 * smoothness * noise**2 / workers, 4 * (smoothness * compression) ** 2
    return Terms(2 * gap, 2 * smoothness, noisy, drift, share=0.5, factor=2)


step_size: Callable[..., float]
rate: Callable[..., Rate]
step_size, rate = step_size_and_rate("error_compensated_sgd", terms)


@ranges.validate("bounds.error_compensated_sgd")
def bound(
    *,
    gap: float,
    smoothness: float,
    noise: float,
    compression: float,
    steps: int,
    workers: int,
    learning_rate: float,
) -> float:
    r"""Returns $\frac{1}{1 - \gamma L} \big(\frac{2D}{\gamma T} + \frac{\gamma L\sigma^2}{N} +
    4\gamma^2 L^2 \sigma'^2\big)$, the bound on $\frac1T \sum_t E|f'(x_t)|^2$.

    Args:
        gap: D = f(x_1) - f*.
        smoothness: L.
        noise: sigma, of each worker.
        compression: sigma', with E|delta|^2 <= sigma'^2 for the errors of every worker and of the
            server (of all servers together).
        steps: T.
        workers: N.
        learning_rate: gamma < 1 / L.

    Source: Liu and Zhang, Theorem 3.4.3. Departure: (3.18) is printed with 2 instead of 4.
    """
    instances.require_step(
        "bounds.error_compensated_sgd", learning_rate, "1 / L", 1 / smoothness, strictly=True
    )
    numbers = {"noise": noise, "compression": compression, "workers": workers}
    of = terms(gap=gap, smoothness=smoothness, **numbers)
    return of.total(learning_rate, steps) / (1 - learning_rate * smoothness)


def check(
    problem: Problem,
    up: Compressor | None = None,
    down: Compressor | None = None,
    *,
    steps: int,
    compression: float = 0.0,
    learning_rate: float | None = None,
    seeds: int = runs.SEEDS,
    seed: int = 0,
    method: Method = any_compressor,
) -> Outcome:
    """Checks the bound: against runs if compressors are given, otherwise against the exact moments
    on a quadratic with additive compression errors.

    Args:
        problem: a problem with known constants.
        up, down: compressors; None: both add noise of mean square `compression`^2 to every vector.
        steps: T.
        compression: sigma', an upper bound on the error of a whole vector.
        learning_rate: gamma; None: the recommended one.
        seeds, seed: number of runs, and their seed.
        method: (optimiser, up, down) -> method; the default or a custom one.

    Raises:
        ValueError: if the problem's constants are unknown, a hypothesis fails, or only one
            compressor is given.
    """
    if (up is None) != (down is None):
        raise ValueError(
            "error_compensated_sgd: only one of up and down is given: need two, or none"
        )
    N = problem.workers

    def measure(gamma):
        if up is not None:
            factory = runs.with_step(method, up, down)
            return runs.average_gradient(factory, problem, gamma, steps, seeds=seeds, seed=seed)
        build = moments.with_compressors(method)
        # Messages that contain only padding count as well: their errors stay in the error memory.
        noise = {"compression": compression, "messages": N * N + N}
        return runs.exact_gradient(build, problem, gamma, steps, **noise)

    found = runs.compare(
        "error_compensated_sgd",
        problem,
        measure,
        bound,
        step_size,
        partial(hypotheses, problem),
        learning_rate,
        noise=instances.constants(problem).noise,
        compression=compression,
        steps=steps,
        workers=N,
    )
    how = f"{up.name}, {down.name}" if up and down else f"sigma' = {compression:.3g}"
    return found._replace(case=f"{found.case}, {how}")


def trial_exact(draws: Draws) -> list[Outcome]:
    """Checks the exact moments on a random quadratic, with additive compression errors."""
    problem = instances.quadratic(draws, 4, 4)
    steps, compression = draws.choice((1, 10, 500)), draws.real(0.0, 3.0)
    # The effect of uncompensated errors is of order gamma instead of gamma^2, so that small steps
    # detect it.
    gamma = draws.choice(
        (None, 0.98 * 10 ** draws.real(-2.0, 0.0) / instances.constants(problem).smoothness)
    )
    return [check(problem, steps=steps, compression=compression, learning_rate=gamma)]


class Biased(NamedTuple):
    """A compressor whose error in each element is at most `most`, for every vector."""

    compressor: Compressor
    most: float


def _plain(name: str, function: Callable, most: float) -> Biased:
    return Biased(fixed_size(lambda key, x: function(x), lambda message, d: message, name), most)


BIASED = (
    _plain("overshoot", lambda x: x + jnp.sign(x), 1.0),
    _plain("whole numbers", jnp.round, 0.5),
)
"""Errors that are large relative to a small vector, and rounding that can yield 0."""


def check_biased(problem: Problem, case: Biased, **options: Any) -> Outcome:
    """Calls `check` with the same compressor in both directions, whose sigma' is known in
    advance.
    """
    d = problem.data.inputs.shape[-1]
    return check(
        problem, case.compressor, case.compressor, compression=case.most * math.sqrt(d), **options
    )


def trial_runs(draws: Draws) -> list[Outcome]:
    """Checks runs with a biased compressor in both directions on random non-convex wells."""
    case, problem = draws.choice(BIASED), instances.random_wells(draws, 2, 4)
    steps, share = draws.choice((10, 100, 300)), draws.choice((draws.real(0.01, 0.98), 0.01))
    gamma = draws.choice((None, share / instances.constants(problem).smoothness))
    return [
        check_biased(problem, case, steps=steps, learning_rate=gamma, seed=draws.integer(0, 10**6))
    ]


def bowls() -> list[Outcome]:
    """Checks quadratics on which one term of the bound acts alone: the distance of the start, the
    noise, or the errors, whose effect is of the order of the squared step size if they are
    compensated.
    """
    nearly_0 = 1e-9  # a compression error of exactly 0 would need another program
    cases = (
        (1.0, 0.0, nearly_0, 0.05),
        (0.0, 1.0, nearly_0, 0.05),
        (0.0, 0.0, 1.0, 0.01),
        (0.0, 0.0, 1.0, 0.5),
    )
    return [
        check(
            instances.bowl(4, 4, distance=away + 1e-3, noise=noise, heterogeneity=1.0),
            steps=500,
            compression=compression,
            learning_rate=gamma,
        )
        for away, noise, compression, gamma in cases
    ]


def pulling() -> list[Outcome]:
    """Checks an instance on which the errors of all workers and of the server are equal and move
    the model in the same direction.
    """
    return [
        check_biased(instances.wells(2, 4, start=0.005), BIASED[0], steps=4000, learning_rate=0.01)
    ]


def vanishing() -> list[Outcome]:
    """Checks instances on which the gradients of the workers, and their mean, round to 0, so that
    progress comes only from the error memories.
    """
    start = [0.4, 0.35, 0.3, 0.25]
    problems = (instances.wells(2, 4, start=start, heterogeneity=z) for z in (0.0, 1.0))
    return [
        check_biased(problem, BIASED[1], steps=1000, learning_rate=0.05) for problem in problems
    ]


def falling() -> list[Outcome]:
    """Checks runs that start near a hilltop, with small steps and with nearly the largest step
    size.
    """
    problem = instances.wells(2, 4, start=3.0, smoothness=20.0)
    return [
        check_biased(problem, BIASED[1], steps=1000, learning_rate=share / 20)
        for share in (0.02, 0.9)
    ]


_HYPOTHESES = "gamma < 1/L; E|delta|^2 <= sigma'^2; errors start at 0"
STATEMENTS = [
    Statement("EC-SGD, quadratics, exact", "Theorem 3.4.3", _HYPOTHESES, trial_exact, (bowls,)),
    Statement(
        "EC-SGD, biased Q, non-convex",
        "Theorem 3.4.3",
        _HYPOTHESES,
        trial_runs,
        (pulling, vanishing, falling),
    ),
]
