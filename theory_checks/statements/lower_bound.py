r"""Seconds that no method can beat, on the chain of `theory_checks.machinery.chains`.

Consider methods on workers with equal data, worker i of which needs $h_i$ seconds a gradient, and
whose models are in the span of the gradients so far, coordinate by coordinate, as those of all
methods with a server. Let $x_j$ be nonzero in no model, but $x_{j-1}$ in some. A gradient shows
element j with probability p, if it is begun from now on at such a model, and never otherwise.
Within t seconds at most $\sum_i \lfloor t/h_i \rfloor$ gradients are begun and completed, so that

$$ P(x_j \text{ becomes nonzero within } t) \le p \sum_i \lfloor t/h_i \rfloor \le \tfrac12
\quad\text{for}\quad t < \hat t =
\min \Big\{ t : p \sum_i \lfloor t/h_i \rfloor > \tfrac12 \Big\}, $$

given all that happened before. The number of elements j = 1, ..., T that take $\hat t$ seconds or
longer is at least as large as a binomial variable with T trials and probability $\frac12$, whose
median is at least $\lfloor \frac T2 \rfloor$. So with probability at least $\frac12$ the last
element is zero for $\lfloor \frac T2 \rfloor \hat t$ seconds, and $E|f'|^2 > \frac12 \cdot
2\epsilon$ until then.

With the m workers for which $h_i \le \hat t$, $\hat t \sum_{i \le m} \frac1{h_i} \ge \sum_{i \le m}
\lfloor \hat t/h_i \rfloor$, which is at least m and at least $\frac1{2p}$:

$$ \hat t \ge \frac12 \min_m \Big( \sum_{i \le m} \frac1{h_i} \Big)^{-1} \Big( m + \frac1{2p} \Big),
\qquad \frac1{2p} \ge \frac{\sigma^2}{2116\,\epsilon}, $$

so that the seconds are at least $\frac18 \frac1{3648} \frac1{2116}$ of `optimal_seconds` if $LD \ge
2 \cdot 3648\, \epsilon$: a constant that does not depend on the cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import algorithms
from theory_checks.machinery import chains, clocked_runs, ranges, runs
from theory_checks.machinery.statement import Draws, Outcome, Statement
from theory_checks.statements.methods_on_the_clock import PROFILES


@ranges.validate("bounds.lower_seconds")
def bound(
    *, gap: float, smoothness: float, noise: float, epsilon: float, times: Sequence[float]
) -> float:
    r"""Returns $\lfloor \frac T2 \rfloor \hat t$, seconds until which no method with workers of
    equal data has $E|f'|^2 \le \epsilon$ on the hard instance, with $T = \big\lfloor
    \frac{LD}{3648\,\epsilon} \big\rfloor$, $\hat t = \min \{ t : p \sum_i \lfloor t/h_i \rfloor >
    \frac12 \}$ and $p = \min(1, \frac{1058\,\epsilon}{\sigma^2})$.

    Args:
        gap: D = f(x_1) - f*.
        smoothness: L.
        noise: sigma, of one gradient.
        epsilon: the accuracy.
        times: h_i, seconds of a gradient by worker, in any order.

    Source: derived in the module's docstring, following Tyurin and Richtarik, 2023.
    """
    T = chains.length(gap=gap, smoothness=smoothness, epsilon=epsilon)
    p = chains.probability(noise=noise, epsilon=epsilon)
    return T // 2 * _seconds_of_gradients(math.floor(1 / (2 * p)) + 1, times)


def _seconds_of_gradients(count: int, times: Sequence[float]) -> float:
    """Returns the seconds in which the workers complete so many gradients, rounded down."""
    h = np.asarray(times, float)
    low, high = (count / np.sum(1 / h)) * (1 - 1e-12), (count + len(h)) / np.sum(1 / h)
    while (middle := (low + high) / 2) not in (low, high):
        if np.sum(np.floor(middle / h)) < count:
            low = middle
        else:
            high = middle
    return float(low)


_LENGTH, _SEEDS, _BATCH = 1280, 8, 5
METHODS = {
    "Rennala": runs.with_step(algorithms.rennala_sgd, _BATCH),
    "Ringmaster": runs.with_step(algorithms.ringmaster_sgd, _BATCH),
    "Asynchronous SGD": runs.with_step(algorithms.asynchronous_sgd),
    "Mini-batch SGD": runs.with_step(algorithms.minibatch_sgd),
}
"""learning_rate -> method."""


def observe(
    factory: Callable[..., Any],
    learning_rate: float,
    numbers: Mapping[str, Any],
    *,
    noise: float | None = None,
) -> tuple[float, bool]:
    r"""Returns the seconds until the mean over runs of $|f'|^2$ on the hard instance is at most
    $\epsilon$, and True; or the seconds of all rounds and False, if it is larger in all of them.

    Args:
        factory: learning_rate -> method.
        learning_rate: gamma.
        numbers: gap, smoothness, noise, epsilon, times.
        noise: sigma of the gradients that the method gets; None: that of `numbers`.
    """
    given = {name: numbers[name] for name in ("gap", "smoothness", "noise", "epsilon")}
    given["noise"] = given["noise"] if noise is None else noise
    problem = chains.chain(len(numbers["times"]), **given)
    found = clocked_runs.run(
        factory, problem, learning_rate, numbers["times"], length=_LENGTH, seeds=_SEEDS
    )
    # The model before a round is that of the end of the round before.
    begins = np.concatenate([[0.0], found.seconds[0]])
    reached = np.flatnonzero(found.slope.mean(axis=0) <= numbers["epsilon"])
    return (float(begins[reached[0]]), True) if len(reached) else (float(begins[-1]), False)


def check(method: str, step: float, numbers: Mapping[str, Any], words: str = "") -> Outcome:
    """Checks that a method does not reach the accuracy before the bound.

    Args:
        method: one of `METHODS`.
        step: gamma L. The step size is not that of a theorem: the bound holds for any.
        numbers: gap, smoothness, noise, epsilon, times.
        words: name of the cluster.
    """
    observed, reached = observe(METHODS[method], step / numbers["smoothness"], numbers)
    state = "reached" if reached else "not reached"
    return Outcome(
        bound(**numbers), observed, case=f"{method}, {words}, gamma L = {step:.3g}, {state}"
    )


def instance(
    times: Sequence[float] | np.ndarray,
    *,
    smoothness: float = 2.0,
    epsilon: float = 0.75,
    elements: int = 8,
    probability: float = 0.02,
) -> dict[str, Any]:
    """Returns the numbers of a chain with so many elements, shown with this probability."""
    gap = 2 * chains.GAP * chains.SMOOTHNESS * epsilon * (elements + 0.5) / smoothness
    noise = math.sqrt(2 * chains.LARGEST**2 * epsilon / probability)
    return {
        "gap": gap,
        "smoothness": smoothness,
        "noise": noise,
        "epsilon": epsilon,
        "times": [float(h) for h in times],
    }


def trial(draws: Draws) -> list[Outcome]:
    """Checks a random method, step size, cluster and chain."""
    profile = draws.choice(tuple(PROFILES))
    numbers = instance(
        PROFILES[profile],
        smoothness=draws.real(0.2, 5.0),
        epsilon=draws.real(0.1, 3.0),
        probability=draws.real(0.01, 0.2),
    )
    step = 10 ** draws.real(0.5, 3.0)
    return [check(draws.choice(tuple(METHODS)), step, numbers, profile)]


def clusters() -> list[Outcome]:
    """Checks all methods on all clusters, with step sizes large enough to discover the next element
    with one gradient that shows it.
    """
    return [
        check(method, 80.0, instance(times), profile)
        for method in METHODS
        for profile, times in PROFILES.items()
    ]


STATEMENTS = [
    Statement(
        "lower bound of seconds",
        "derived; Tyurin and Richtarik, 2023",
        "models in the span of the gradients; equal data",
        trial,
        (clusters,),
    )
]
