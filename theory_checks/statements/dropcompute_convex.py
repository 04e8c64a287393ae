r"""DropCompute on convex f, Theorem D.1 with its constants.

As in `dropcompute`, $\theta_{i+1} = \theta_i - \eta \sum_{s \le b_i} g_i^s$, with
$u_i = \theta_i - \theta^\star$, $R = |u_1|$:

$$ E|u_{i+1}|^2 = E|u_i|^2 - 2\eta E\, b_i \langle f'(\theta_i), u_i \rangle
   + \eta^2 E \Big| b_i f'(\theta_i) + \sum_{s \le b_i} \xi_i^s \Big|^2, $$

where $\langle f', u \rangle \ge f - f^\star + \frac{1}{2L} |f'|^2$ for a convex f with Lipschitz
continuous f'. Summed over rounds, with
$F = E \sum b_i (f(\theta_i) - f^\star)$, $P = E \sum b_i |f'(\theta_i)|^2$:

- Independent batch sizes:
  $2 \eta F \le R^2 + \eta^2 \sigma^2 E K - \frac\eta L (1 - \eta L b) P$. With $\eta L b \le 1$
  $$ \frac{F}{E K} \le \frac{R^2}{2 \eta E K} + \frac{\eta \sigma^2}{2}. $$
- Stopping times: the right side has the additional term
  $2 \eta^2 E \sum b_i \langle f', \sum \xi \rangle \le 2 \eta^2 \sigma \sqrt{b P E K}$, which the
  term of P compensates: $-\alpha P + \beta \sqrt P \le \frac{\beta^2}{4 \alpha}$. With
  $\eta L b < 1$
  $$ \frac{F}{E K} \le \frac{R^2}{2 \eta E K} + \frac{\eta \sigma^2}{2 (1 - \eta L b)}. $$

At $\frac1\eta = Lb + q$, $q = \sigma \sqrt K / R$, both are at most $\frac{R^2}{2K} (Lb + 2q)$:
stopping times are as good as independent batch sizes. For a fixed K the left side is at least
$E f(\bar\theta) - f^\star$, where $\bar\theta$ is the mean of the models, weighted by $b_i$; see
`dropcompute` for the meaning of K. The paper has $8LbR^2/K + 6 \sigma R / \sqrt K$, because it does
not use the above inequality for convex f with Lipschitz continuous f'. (The steps that it names
lead from its (19) to the constants 16 and 11.4 instead; its statement is true nevertheless.)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import algorithms
from dsgd.base import Problem
from theory_checks.machinery import batch_sizes, instances, ranges
from theory_checks.machinery.batch_sizes import Pairs
from theory_checks.machinery.rates import Rate
from theory_checks.machinery.statement import Condition, Draws, Method, Outcome, Statement, need
from theory_checks.statements import dropcompute
from theory_checks.statements.dropcompute import (
    SAME,
    M,
    N,
    describe,
    largest,
    pairs_of,
    problem_of,
    times,
)


def hypotheses(
    problem: Problem, batch_size: int, learning_rate: float, *, noise: float, stopping: bool = False
) -> list[Condition]:
    """Returns the conditions: eta <= 1 / (L b), strictly if batch sizes are stopping times and
    there is noise, and the same data on all workers.
    """
    return [
        dropcompute.alike(problem),
        _short(instances.constants(problem).smoothness, noise, batch_size, learning_rate, stopping),
    ]


def _short(
    smoothness: float, noise: float, batch_size: int, learning_rate: float, stopping: bool
) -> Condition:
    limit = 1 / (smoothness * batch_size)
    return instances.step_below(
        "1 / (L b)", limit, learning_rate, strictly=stopping and noise > 0, symbol="eta"
    )


@ranges.validate("dropcompute_convex.step_size")
def step_size(
    *, distance: float, smoothness: float, noise: float, total: float, batch_size: int
) -> float:
    r"""Returns the recommended step size: $\frac1\eta = Lb + \frac{\sigma \sqrt K}{R}$, both for
    independent batch sizes and for stopping times.
    """
    return 1 / (smoothness * batch_size + noise * math.sqrt(total) / distance)


@ranges.validate("bounds.dropcompute_convex")
def bound(
    *,
    distance: float,
    smoothness: float,
    noise: float,
    total: float,
    batch_size: int,
    learning_rate: float,
    stopping: bool = False,
) -> float:
    r"""Returns $\frac{R^2}{2\eta K} + \frac{\eta \sigma^2}{2}$, the bound on $\frac{1}{E K} E
    \sum_i b_i (f(\theta_i) - f^\star)$; for stopping times $\frac{R^2}{2\eta K} + \frac{\eta
    \sigma^2}{2 (1 - \eta L b)}$.

    Args:
        distance: R, from the start to the minimiser.
        smoothness: L, of a convex f.
        noise: sigma, of one sample's gradient; or of a micro-batch's gradient, if micro-batches are
            counted.
        total: K, total number of samples; its expectation if it is random.
        batch_size: b, the largest number of samples that a round computes.
        learning_rate: eta <= 1 / (L b), for the sum of gradients; see `bounds.dropcompute`.
        stopping: whether batch sizes may depend on earlier gradients, as stopping times do; False:
            they are independent of the gradients.

    Source: Giladi et al., "DropCompute", Theorem D.1. Departures: the constants; see
    `theory_checks.dropcompute_convex`.
    """
    need(
        "bounds.dropcompute_convex",
        [_short(smoothness, noise, batch_size, learning_rate, stopping)],
    )
    noisy = learning_rate * noise**2 / 2
    if stopping and noise:
        noisy /= 1 - learning_rate * smoothness * batch_size
    return distance**2 / (2 * learning_rate * total) + noisy


@ranges.validate("dropcompute_convex.rate")
def rate(*, distance: float, smoothness: float, noise: float, batch_size: int) -> Rate:
    r"""Returns $\frac{LbR^2}{2K} + \frac{\sigma R}{\sqrt K}$, the rate as a function of K, at the
    recommended step size.
    """
    return Rate(smoothness * batch_size * distance**2 / 2, noise * distance)


def distance_of(problem: Problem) -> float:
    """Returns R for a quadratic."""
    return float(np.linalg.norm(batch_sizes.center(problem)[2]))


def check(
    problem: Problem,
    seconds: np.ndarray,
    threshold: float,
    *,
    stop: str = "preempt",
    share: float,
    method: Method = algorithms.drop_compute,
) -> Outcome:
    """Checks the bound against the exact moments for given times of the micro-batches. Arguments
    and errors as of `dropcompute.check`, but share is at most 1.
    """
    constants, batch = instances.constants(problem), largest(seconds, threshold, stop)
    eta = share / (constants.smoothness * batch)
    need("dropcompute_convex", hypotheses(problem, batch, eta, noise=constants.noise))
    sums = batch_sizes.conditional(
        method, problem, seconds, threshold, stop, eta * seconds[0].size
    ).sums
    numbers: dict[str, Any] = {
        "distance": distance_of(problem),
        "smoothness": constants.smoothness,
        "noise": constants.noise,
    }
    right = bound(**numbers, total=sums.total, batch_size=batch, learning_rate=eta)
    return Outcome(sums.gap / sums.total, right, case=describe(problem, stop, threshold, sums, eta))


def check_stopping(
    problem: Problem,
    pairs: Pairs,
    threshold: float,
    *,
    steps: int,
    noise: float,
    share: float,
    stop: str = "between",
    method: Method = algorithms.drop_compute,
) -> Outcome:
    """Checks the bound for stopping times against exact moments. Arguments as of
    `dropcompute.check_stopping`, but share is below 1.
    """
    constants, batch = instances.constants(problem), problem.workers * M
    eta = share / (constants.smoothness * batch)
    need("dropcompute_convex", hypotheses(problem, batch, eta, noise=noise, stopping=True))
    sums = batch_sizes.dependent(
        method, problem, pairs, threshold, stop, eta * batch, steps=steps, noise=noise, M=M
    ).sums
    numbers: dict[str, Any] = {
        "distance": distance_of(problem),
        "smoothness": constants.smoothness,
        "noise": noise,
    }
    right = bound(**numbers, total=sums.total, batch_size=batch, learning_rate=eta, stopping=True)
    return Outcome(sums.gap / sums.total, right, case=describe(problem, stop, threshold, sums, eta))


def trial_exact(draws: Draws) -> list[Outcome]:
    """Checks the exact moments on a random quadratic with random times."""
    problem = problem_of(draws)
    seconds, threshold, stop = times(draws, draws.choice((1, 10, 300)))
    return [check(problem, seconds, threshold, stop=stop, share=draws.real(0.02, 1.0))]


def trial_stopping(draws: Draws) -> list[Outcome]:
    """Checks stopping times on a random quadratic whose noise is a function of the durations."""
    problem = problem_of(draws, noisy=False)
    pairs, threshold = pairs_of(draws)
    noise, steps, share = draws.real(0.0, 3.0), draws.choice((1, 10, 300)), draws.real(0.02, 0.98)
    return [check_stopping(problem, pairs, threshold, steps=steps, noise=noise, share=share)]


def bowls() -> list[Outcome]:
    """Checks quadratics that attain the bound at the largest step size: after one step without
    noise, and with noise as the influence of the start vanishes.
    """
    found = []
    for away, noise, share, T in (
        (1.0, 0.0, 1.0, 1),
        (0.0, 1.0, 1.0, 500),
        (20.0, 1.0, 1.0, 500),
        (1.0, 0.0, 0.1, 500),
    ):
        for stop, threshold in (("preempt", 2.5), ("between", 1.5)):
            problem = instances.bowl(N, 2, distance=away + 1e-3, smoothness=2.0, noise=3 * noise)
            found.append(check(problem, SAME[:T], threshold, stop=stop, share=share))
    return found


def stopping_bowls() -> list[Outcome]:
    """Checks quadratics that nearly attain the bound: one step attains the term of the start; noise
    alone, with small steps, attains half of the bound.
    """
    found = list[Outcome]()
    for away, noise, share, steps in (
        (1.0, 0.0, 0.999, 1),
        (0.0, 1.0, 2e-3, 100_000),
        (0.0, 1.0, 0.5, 500),
    ):
        problem = instances.bowl(N, 2, distance=away + 1e-3, smoothness=2.0)
        options = {"steps": steps, "noise": noise, "share": share}
        found += [
            check_stopping(problem, Pairs(1.0, 10.0, chance), 5.0, **options)
            for chance in (0.5, 1e-4)
        ]
    return found


_INDEPENDENT = "eta L b <= 1; batches independent of the gradients"
_STOPPING = "eta L b < 1; noise is a function of the seconds, workers stop between micro-batches"
STATEMENTS = [
    Statement(
        "DropCompute-convex, exact", "DropCompute, Theorem D.1", _INDEPENDENT, trial_exact, (bowls,)
    ),
    Statement(
        "DropCompute-convex, stopping times, exact",
        "DropCompute, Theorem D.1",
        _STOPPING,
        trial_stopping,
        (stopping_bowls,),
    ),
]
