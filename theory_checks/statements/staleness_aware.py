r"""Asynchronous SGD with a different step size in every update, in particular staleness-aware step
sizes: Theorem 4.2.3 for variable steps.

With $x_{t+1} = x_t - \gamma_t g_t(x_{D(t)})$, by smoothness as in (4.5),

$$ E f(x_{t+1}) - E f(x_t) \le -\frac{\gamma_t}2 E|f'(x_t)|^2 - \frac{\gamma_t}2 (1 - \gamma_t L)
E|f'(x_{D(t)})|^2
   + \frac{\gamma_t}2 E|f'(x_t) - f'(x_{D(t)})|^2 + \frac{\gamma_t^2 L \sigma^2}{2}. $$

$x_t - x_{D(t)}$ is the sum of the steps $s = D(t), \dots, t - 1$, whose noise is uncorrelated if
delays are independent of the samples:

$$ E|f'(x_t) - f'(x_{D(t)})|^2 \le 2 L^2 \sigma^2 \sum_{s = D(t)}^{t-1} \gamma_s^2
   + 2 L^2 (t - D(t)) \sum_{s = D(t)}^{t-1} \gamma_s^2 E|f'(x_{D(s)})|^2. $$

In the sum over t, $E|f'(x_{D(s)})|^2$ has half the factor
$-\gamma_s (1 - \gamma_s L) + 2 L^2 \gamma_s^2 \sum_{t: D(t) \le s < t} \gamma_t (t - D(t))$. If
this is never positive,

$$ \frac{\sum_t \gamma_t E|f'(x_t)|^2}{\sum_t \gamma_t} \le \frac{1}{\sum_t \gamma_t} \Big( 2D + L
\sigma^2 \sum_t \gamma_t^2
   + 2 L^2 \sigma^2 \sum_t \gamma_t \sum_{s = D(t)}^{t-1} \gamma_s^2 \Big), \qquad
   \gamma_s L + 2 L^2 \gamma_s \sum_{t: D(t) \le s < t} \gamma_t (t - D(t)) \le 1. $$

For constant steps and $t - D(t) \le \tau$ this is Theorem 4.2.3. Staleness-aware steps are
$\gamma_t = \gamma / \max(1, t - D(t))$: a stale update adds $\gamma$ to the sum in the condition,
whereas a constant step adds $\gamma (t - D(t))$.
"""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import optax

import algorithms
from dsgd.base import Problem
from theory_checks.machinery import instances, moments, ranges
from theory_checks.machinery.statement import Condition, Draws, Outcome, Statement, need
from theory_checks.statements.asynchronous_sgd import stale
from theory_checks.statements.sgd import total_noise

# The largest staleness that is checked. All instances use a buffer of this size, so that they share
# one compiled program.
OLDEST = 4


def steps_of(staleness: np.ndarray, learning_rate: float) -> np.ndarray:
    r"""Returns $\gamma_t = \gamma / \max(1, t - D(t))$, `[T]`.

    Args:
        staleness: t - D(t), `[T]`.
        learning_rate: gamma.
    """
    return learning_rate / np.maximum(1, staleness)


def load(staleness: np.ndarray, steps: np.ndarray) -> np.ndarray:
    r"""Returns $\sum_{t: D(t) \le s < t} \gamma_t (t - D(t))$ for every s, `[T]`.

    Args:
        staleness: t - D(t), at most t, `[T]`.
        steps: gamma_t, `[T]`.
    """
    total = np.zeros(len(steps))
    for t, age in enumerate(staleness):
        total[t - age : t] += steps[t] * age
    return total


def hypotheses(smoothness: float, staleness: np.ndarray, steps: np.ndarray) -> list[Condition]:
    """Returns the conditions: gamma_s L + 2 L^2 gamma_s sum_t gamma_t (t - D(t)) <= 1 for every s,
    positive steps, and no update that reaches back before the first model.
    """
    worst = float((steps * smoothness * (1 + 2 * smoothness * load(staleness, steps))).max())
    early = staleness > np.arange(len(staleness))
    return [
        Condition(
            "0 <= t - D(t) <= t",
            not early.any() and staleness.min() >= 0,
            f"t - D(t) = {staleness}",
        ),
        Condition("gamma_t > 0", bool((steps > 0).all()), f"gamma_t = {steps}"),
        Condition(
            "gamma_s L + 2 L^2 gamma_s sum gamma_t (t - D(t)) <= 1",
            worst <= 1 + 1e-12,
            f"the largest left side is {worst:.6g}",
        ),
    ]


def bound(
    *, gap: float, smoothness: float, noise: float, staleness: np.ndarray, steps: np.ndarray
) -> float:
    r"""Returns $\big(2D + L \sigma^2 \sum_t \gamma_t^2 + 2 L^2 \sigma^2 \sum_t \gamma_t \sum_{s =
    D(t)}^{t-1} \gamma_s^2\big) / \sum_t \gamma_t$, the bound on $\sum_t \gamma_t E|f'(x_t)|^2 /
    \sum_t \gamma_t$.

    Args:
        gap: D = f(x_1) - f*.
        smoothness: L.
        noise: sigma, of one gradient.
        staleness: t - D(t), `[T]`.
        steps: gamma_t, `[T]`.

    Raises:
        ValueError: if steps are too long for their staleness, or an argument is out of range.

    Source: derived in the module's docstring, following Liu and Zhang, Theorem 4.2.3.
    """
    ranges.require("staleness_aware.bound", {"gap": gap, "smoothness": smoothness, "noise": noise})
    need("staleness_aware.bound", hypotheses(smoothness, staleness, steps))
    between = sum(
        step * (steps[t - age : t] ** 2).sum()
        for t, (step, age) in enumerate(zip(steps, staleness, strict=True))
    )
    noisy = smoothness * noise**2 * ((steps**2).sum() + 2 * smoothness * between)
    return float((2 * gap + noisy) / steps.sum())


def largest_step(smoothness: float, staleness: np.ndarray) -> float:
    r"""Returns the largest $\gamma$ for which staleness-aware steps satisfy `hypotheses`: the root
    of $a\gamma L + b(\gamma L)^2 = 1$ at the worst s.

    Args:
        smoothness: L.
        staleness: t - D(t), `[T]`.
    """
    shares = steps_of(staleness, 1.0)
    b = 2 * shares * load(staleness, shares)
    return float((2 / (shares + np.sqrt(shares**2 + 4 * b))).min()) / smoothness


@cache
def _with_table() -> moments.Build:
    """Returns a builder of the staleness-aware method whose staleness table is the instance's
    `more`.
    """
    aware = partial(algorithms.asynchronous_sgd, staleness_aware=True)
    return lambda of, compressor: stale(optax.sgd(of.learning_rate), OLDEST, of.more, aware)


_LENGTH = 500  # length of all staleness tables, so that they share one program


def check(problem: Problem, staleness: np.ndarray, *, learning_rate: float) -> Outcome:
    """Checks the bound against the exact moments.

    Args:
        problem: a quadratic with equal Hessians.
        staleness: t - D(t), `[T]`, T at most 500; at most `OLDEST`.
        learning_rate: gamma.

    Raises:
        ValueError: if a hypothesis fails.
    """
    constants, T = instances.constants(problem), len(staleness)
    steps = steps_of(staleness, learning_rate)
    need(
        "staleness_aware",
        [
            instances.same_heterogeneity(problem),
            *hypotheses(constants.smoothness, staleness, steps),
        ],
    )
    right = bound(
        gap=constants.gap,
        smoothness=constants.smoothness,
        noise=total_noise(problem),
        staleness=staleness,
        steps=steps,
    )
    table = np.zeros(_LENGTH, np.int32)
    table[:T] = staleness
    build = _with_table()
    found = moments.second_moments(
        build, problem, learning_rate, steps=T, one_worker=True, varying=True, more=table
    )
    case = (
        f"{problem.name}, t - D(t) up to {staleness.max()}, "
        f"gamma L = {learning_rate * constants.smoothness:.3g}, T = {T}"
    )
    return Outcome(float(steps @ found["slope"][:T] / steps.sum()), right, case=case)


def trial(draws: Draws) -> list[Outcome]:
    """Checks a random quadratic with a random staleness sequence."""
    problem = instances.quadratic(draws, 3, 2, hessians=("isotropic", "equal"))
    T, tau = draws.choice((1, 5, _LENGTH)), draws.integer(0, OLDEST)
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    drawn = draws.choice((np.full(T, tau), rng.integers(0, tau + 1, T)))
    staleness = np.minimum(drawn, np.arange(T))
    gamma = draws.real(0.01, 1.0) * largest_step(instances.constants(problem).smoothness, staleness)
    return [check(problem, staleness, learning_rate=gamma)]


_BOWL = partial(instances.unit_bowl, 3, [1.0, 1.0])
"""Curvature 1 in all directions, exact gradients, and equal workers."""


def one_step() -> list[Outcome]:
    r"""Checks an instance that attains the bound: with $\gamma = 1/L$ and exact gradients the first
    step reaches the minimum, and $|f'|^2 = 2LD$.
    """
    return [check(_BOWL(), np.zeros(1, int), learning_rate=1.0)]


def increasing_staleness() -> list[Outcome]:
    """Checks a staleness that increases slowly: the largest gamma is so large that, without the
    division by the staleness, models would grow without bound.
    """
    staleness = np.minimum(OLDEST, np.arange(_LENGTH) // 4)
    return [check(_BOWL(), staleness, learning_rate=largest_step(1.0, staleness))]


STATEMENTS = [
    Statement(
        "ASGD, staleness-aware, exact",
        "Theorem 4.2.3, variable steps",
        "gamma_s L + 2 gamma_s L^2 sum gamma_t (t - D(t)) <= 1",
        trial,
        [one_step, increasing_staleness],
    )
]
