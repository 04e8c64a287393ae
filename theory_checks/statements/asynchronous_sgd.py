r"""Asynchronous SGD, Theorem 4.2.3 with its constants.

By smoothness and $-\langle a, b \rangle = \frac12 (|a - b|^2 - |a|^2 - |b|^2)$, as in (4.5),

$$ E f(x_{t+1}) - E f(x_t) \le -\frac\gamma2 E|f'(x_t)|^2 - \frac\gamma2 (1 - \gamma L)
E|f'(x_{D(t)})|^2
   + \frac\gamma2 E|f'(x_t) - f'(x_{D(t)})|^2 + \frac{\gamma^2 L \sigma^2}{2}. $$

Lemma 4.2.1, in which the printed $f'(x_{D(t)})$ is corrected to $f'(x_{D(s)})$, bounds the third
term by
$2\gamma^2 L^2 \tau \sigma^2 + 2\gamma^2 L^2 \tau \sum_{s = D(t)}^{t - 1} E|f'(x_{D(s)})|^2$. In the
sum over t every s occurs at most $\tau$ times, so the second term compensates these gradients if
$2 (\gamma L \tau)^2 \le 1 - \gamma L$:

$$ \frac1T \sum_t E|f'(x_t)|^2 \le \frac{2D}{\gamma T} + \gamma L \sigma^2 (1 + 2 \gamma L \tau),
\qquad \gamma L + 2 (\gamma L \tau)^2 \le 1. $$

Delays must be independent of the samples; otherwise the noise of $g_t(x_{D(t)})$ has a nonzero
mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

import algorithms
from algorithms import delays
from dsgd.base import Algorithm, Problem
from theory_checks.machinery import instances, moments, ranges, runs
from theory_checks.machinery.rates import Rate, Terms, step_size_and_rate
from theory_checks.machinery.statement import Condition, Draws, Method, Outcome, Statement
from theory_checks.statements.sgd import total_noise

# The largest tau that is checked. All instances use a buffer of this size, so that they share one
# compiled program.
OLDEST = 12
_LARGEST = "(sqrt(1 + 8 tau^2) - 1) / (4 tau^2 L)"
_TABLE = 64  # length of the staleness sequence, which is repeated


@ranges.validate("asynchronous_sgd.largest_step")
def largest_step(*, smoothness: float, staleness: int) -> float:
    r"""Returns $\frac{\sqrt{1 + 8\tau^2} - 1}{4 \tau^2 L}$, the root of $\gamma L + 2(\gamma
    L\tau)^2 = 1$; $\frac1L$ at $\tau = 0$.
    """
    # (sqrt(1 + y) - 1) / (y / 2) = 2 / (sqrt(1 + y) + 1), which has no 0 / 0.
    return 2 / (math.sqrt(1 + 8 * staleness**2) + 1) / smoothness


def hypotheses(problem: Problem, staleness: int, learning_rate: float) -> list[Condition]:
    r"""Returns the conditions $\gamma L + 2 (\gamma L \tau)^2 \le 1$ and a variance that is bounded
    by the same constant everywhere.
    """
    limit = largest_step(smoothness=instances.constants(problem).smoothness, staleness=staleness)
    return [
        instances.same_heterogeneity(problem),
        instances.step_below(_LARGEST, limit, learning_rate),
    ]


def terms(*, gap: float, smoothness: float, noise: float, staleness: int) -> Terms:
    r"""Returns the terms of the bound: $a = 2D$, $s = 2L(\tau + 1)$, $b = 2L\sigma^2$. The step
    size has $\frac1\gamma = 2L(\tau + 1) + \sigma \sqrt{\frac{LT}{D}}$, and the rate is
    $\frac{4LD(\tau + 1)}{T} + 4\sigma\sqrt{\frac{LD}{T}}$.
    """
    return Terms(2 * gap, 2 * smoothness * (staleness + 1), 2 * smoothness * noise**2)


step_size: Callable[..., float]
rate: Callable[..., Rate]
step_size, rate = step_size_and_rate("asynchronous_sgd", terms)


@ranges.validate("bounds.asynchronous_sgd")
def bound(
    *, gap: float, smoothness: float, noise: float, steps: int, staleness: int, learning_rate: float
) -> float:
    r"""Returns $\frac{2D}{\gamma T} + \gamma L \sigma^2 (1 + 2 \gamma L \tau)$, the bound on
    $\frac1T \sum_t E|f'(x_t)|^2$.

    Args:
        gap: D = f(x_1) - f*.
        smoothness: L.
        noise: sigma, of one gradient.
        steps: T, number of updates.
        staleness: tau, the largest t - D(t).
        learning_rate: gamma, at most `largest_step`.

    Source: Liu and Zhang, Theorem 4.2.3.
    """
    limit = largest_step(smoothness=smoothness, staleness=staleness)
    instances.require_step("bounds.asynchronous_sgd", learning_rate, _LARGEST, limit)
    of = terms(gap=gap, smoothness=smoothness, noise=noise, staleness=staleness)
    share = 1 / 2 + learning_rate * smoothness * staleness
    return of._replace(share=share).total(learning_rate, steps)


def stale(
    optimizer: optax.GradientTransformation,
    bound: int,
    table: jax.Array,
    method: Method = algorithms.asynchronous_sgd,
) -> Algorithm:
    """Returns the method with a staleness given by a table, which is repeated. The table is an
    array argument of the compiled program, so that all tables share one program.
    """

    def staleness(key, t, parts, moved):
        return jnp.broadcast_to(jnp.minimum(table[t % table.shape[0]], t), (parts,)).astype(
            jnp.int32
        )

    return method(optimizer, delays.Delays(bound, staleness, f"table({bound})"))


@cache
def with_table(bound: int, method: Method = algorithms.asynchronous_sgd) -> moments.Build:
    """Returns a builder of the method whose staleness table, with entries of at most `bound`, is
    the instance's `more`.
    """
    return lambda of, compressor: stale(optax.sgd(of.learning_rate), bound, of.more, method)


def check(
    problem: Problem,
    rule: delays.Delays | np.ndarray,
    *,
    steps: int,
    learning_rate: float | None = None,
    seeds: int = runs.SEEDS,
    seed: int = 0,
    method: Method = algorithms.asynchronous_sgd,
) -> Outcome:
    """Checks the bound: against the exact moments if the staleness of a quadratic is given as a
    table, otherwise against runs.

    Args:
        problem: a problem with known constants.
        rule: delays from `algorithms.delays`, for runs; or an integer array `[length]` of the
            staleness t - D(t), which is repeated, for the exact moments on a quadratic (no update
            reaches back before the first model).
        steps: T.
        learning_rate: gamma; None: the recommended one.
        seeds, seed: number of runs, and their seed.
        method: (optimiser, delays) -> method; the default or a custom one.

    Raises:
        ValueError: if the problem's constants are unknown, or a hypothesis fails.
    """
    tau = rule.bound if isinstance(rule, delays.Delays) else _largest(rule)

    def measure(gamma):
        if isinstance(rule, delays.Delays):
            factory = runs.with_step(method, rule)
            return runs.average_gradient(factory, problem, gamma, steps, seeds=seeds, seed=seed)
        build, table = with_table(max(tau, OLDEST), method), np.asarray(rule, np.int32)
        options = {"one_worker": True, "varying": True, "more": table}
        return runs.exact_gradient(build, problem, gamma, steps, **options)

    return runs.compare(
        "asynchronous_sgd",
        problem,
        measure,
        bound,
        step_size,
        partial(hypotheses, problem, tau),
        learning_rate,
        case=f"tau = {tau}, ",
        noise=total_noise(problem),
        steps=steps,
        staleness=tau,
    )


def _largest(staleness: np.ndarray) -> int:
    if (
        staleness.ndim != 1
        or staleness.size == 0
        or staleness.dtype.kind not in "iu"
        or staleness.min() < 0
    ):
        raise ValueError(
            f"asynchronous_sgd: staleness = {staleness!r}: need integers [T], at least 0"
        )
    return int(staleness.max())


TAUS = (0, 1, 4, OLDEST)


def table(draws: Draws, taus: Sequence[int] = TAUS) -> np.ndarray:
    """Returns a random staleness table that is constant, uniform, or mostly 0, and reaches one of
    `taus`, at most `OLDEST`.
    """
    tau = draws.choice(taus)
    kind = draws.choice(("constant", "uniform", "rare"))
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    drawn = {
        "constant": np.full(_TABLE, tau),
        "uniform": rng.integers(0, tau + 1, _TABLE),
        "rare": np.where(rng.random(_TABLE) < 0.1, tau, 0),
    }[kind]
    drawn[-1] = tau  # The largest staleness occurs at least once.
    return drawn


def trial_exact(draws: Draws, taus: Sequence[int] = TAUS) -> list[Outcome]:
    """Checks the exact moments on a random quadratic with a random staleness table."""
    problem = instances.quadratic(draws, 3, 2, hessians=("isotropic", "equal"))
    staleness, steps = table(draws, taus), draws.choice((1, 10, 250))
    limit = largest_step(
        smoothness=instances.constants(problem).smoothness, staleness=int(staleness.max())
    )
    gamma = draws.choice((None, draws.real(0.01, 1.0) * limit))
    return [check(problem, staleness, steps=steps, learning_rate=gamma)]


@cache
def _rules() -> tuple[delays.Delays, ...]:
    return delays.constant(0), delays.uniform(6)


def trial_runs(draws: Draws) -> list[Outcome]:
    """Checks runs on random non-convex wells, without delays or with random ones."""
    problem = instances.random_wells(draws, 3, 3)
    rule, steps = draws.choice(_rules()), draws.choice((10, 100, 300))
    limit = largest_step(smoothness=instances.constants(problem).smoothness, staleness=rule.bound)
    gamma = draws.choice((None, draws.real(0.01, 1.0) * limit))
    return [check(problem, rule, steps=steps, learning_rate=gamma, seed=draws.integer(0, 10**6))]


def bowls(taus: Sequence[int] = (0,)) -> list[Outcome]:
    """Checks quadratics on which only the start, the noise or the heterogeneity matters. Without
    staleness the bound is attained at the largest step size; with staleness at least half of it.
    """
    found = []
    for tau in taus:
        gamma = largest_step(smoothness=2.0, staleness=tau)
        for away, noise, z in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)):
            problem = instances.bowl(
                3, 2, distance=away + 1e-3, smoothness=2.0, noise=noise, heterogeneity=z
            )
            found.append(check(problem, np.full(_TABLE, tau), steps=500, learning_rate=gamma))
    return found


def wells() -> list[Outcome]:
    """Checks runs that start in a well, with little noise of both kinds or none, and near a
    hilltop. Each is run without staleness, for which the bound is attained at the largest step
    size, and with staleness.
    """
    found = []
    for start, noise, steps in ((0.01, 0.1, 1000), (0.05, 0.0, 300), (3.0, 0.0, 300)):
        problem = instances.wells(3, 3, start=start, noise=noise, heterogeneity=noise / 2)
        for rule in _rules():
            gamma = largest_step(smoothness=instances.SMOOTHNESS, staleness=rule.bound)
            found.append(check(problem, rule, steps=steps, learning_rate=gamma))
    return found


_STEP = "gamma L + 2(gamma L tau)^2 <= 1; delays independent of samples"
STATEMENTS = [
    Statement("ASGD, quadratics, exact", "Theorem 4.2.3", _STEP, trial_exact, (bowls,)),
    Statement(
        "ASGD, tau >= 1, exact",
        "Theorem 4.2.3",
        _STEP,
        partial(trial_exact, taus=TAUS[1:]),
        (partial(bowls, (1, 2, 4)),),
    ),
    Statement("ASGD, non-convex", "Theorem 4.2.3", _STEP, trial_runs, (wells,)),
]
