r"""Lemmas 5.2.1 to 5.2.9, checked along the exact moments of decentralized SGD on quadratics.

$X$ are the models, $F$ their exact gradients and $G$ the stochastic ones; all norms below are
divided by $\sqrt N$:

- (5.4): $|\frac1N F 1 - f'(\bar x)|^2 \le L^2 |X - \bar X|_F^2$, by convexity of the square and
  smoothness.
- (5.5), corrected: $|F - f'(\bar x) 1^T|_F^2 \le 2 L^2 |X - \bar X|_F^2 + 2\varsigma^2$; the proof
  starts with a factor 1/2 that is missing in the statement.
- (5.6): $E|G|_F^2 \le 2|f'(\bar x)|^2 + 2 L^2 |X - \bar X|_F^2 + 2\varsigma^2 + \sigma^2$; two of
  these factors are 4 in the survey. Gradients at $\bar x$ have the mean square
  $|f'(\bar x)|^2 + \varsigma^2$, because their differences from $f'$ have the mean 0.
- 5.2.3: $a_t = \sum_{s \le t} \rho^{t - s} b_s$ has $\sum a_t^2 \le (1 - \rho)^{-2} \sum b_t^2$
  (Young's inequality for convolutions).
- 5.2.5: with $a_t = |X_t - \bar X_t|_F$, $b_t = \gamma \rho |G_t|_F$:
  $\sum E|X - \bar X|_F^2 \le \frac{\gamma^2 \rho^2}{(1 - \rho)^2} \sum E|G|_F^2$.
- 5.2.7: inserting (5.6) in 5.2.5 with $2L^2 \le \frac18 \frac{(1 - \rho)^2}{\gamma^2 \rho^2}$
  leaves $\frac78$ of the left side:
  $\sum E|X - \bar X|_F^2 \le \frac87 \frac{\gamma^2\rho^2}{(1 - \rho)^2}
  \sum (2 E|f'(\bar x)|^2 + 2\varsigma^2 + \sigma^2)$. (The survey has the factors 2 for the
  gradients and 8 for the other terms. The bound `decentralized_sgd.consensus` has no term of
  gradients, and is attained.)
- 5.2.9: $E|f'(\bar x_t)|^2 \le \frac2\gamma (E f(\bar x_t) - E f(\bar x_{t+1})) + L^2
  E|X - \bar X|_F^2 + \frac{\gamma L\sigma^2}{N}$; the bracket is missing in print.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import algorithms
from dsgd import problems
from dsgd.base import Problem
from dsgd.graphs.topology import Topology
from theory_checks.machinery import instances, moments, paths
from theory_checks.machinery.statement import Draws, Outcome, Statement
from theory_checks.statements.decentralized_sgd import (
    LONG,
    balanced_problem,
    diverging_problem,
    one_rho,
)

_STEPS = 120
Moments = dict[str, np.ndarray]


class Path(NamedTuple):
    """One instance: its moments, and gamma, L, sigma^2, N, rho."""

    found: Moments
    gamma: float
    L: float
    variance: float
    N: int
    rho: float
    case: str


def _draw_path(draws: Draws, *, small: bool = False) -> Path:
    """Draws an instance with gamma <= 1/L, and also gamma rho <= (1 - rho) / (4 L) if `small`."""
    topology = draws.choice(instances.graphs())
    problem = instances.quadratic(draws, topology.n, 2)
    L, rho = instances.constants(problem).smoothness, topology.rho
    limit = min(1 / L, (1 - rho) / (4 * L * max(rho, 1e-12)) if small else math.inf)
    return _measure_path(problem, topology, draws.real(0.01, 1.0) * limit, _STEPS)


def _measure_path(problem: Problem, topology: Topology, gamma: float, steps: int) -> Path:
    constants = instances.constants(problem)
    found = moments.second_moments(
        moments.with_step(algorithms.decentralized_sgd, topology), problem, gamma, steps=steps
    )
    return Path(
        found,
        gamma,
        constants.smoothness,
        constants.noise**2,
        topology.n,
        topology.rho,
        f"{problem.name}, {topology.name}",
    )


Sides = Callable[[Path], list[Outcome]]
Instance = Callable[[], tuple[Problem, Topology, float]]


def _compare_steps(right: Callable[[Path], tuple[np.ndarray, np.ndarray]]) -> Sides:
    """Returns a function that compares (left side, right side), both `[steps]`, at the worst t."""

    def worst(path: Path) -> list[Outcome]:
        left, bound = right(path)
        size = path.found["local"] + path.found["gap"] / path.gamma
        # Values that are 0 now still carry rounding errors of earlier, larger values.
        scale = (size + 1e-6 * size.max())[: len(left)]
        return paths.worst(left, bound, case=path.case, scale=scale)

    return worst


def _compare_sums(right: Callable[[Path], np.ndarray]) -> Sides:
    """Returns a function that compares the consensus distance, summed over t, with the sum of a
    right side `[steps]`.
    """

    def total(path: Path) -> list[Outcome]:
        scale = path.gamma**2 * float(path.found["local"].sum())
        left, bound = (values[:-1].sum() for values in (path.found["consensus"], right(path)))
        return [Outcome(float(left), float(bound), case=path.case, scale=scale)]

    return total


def mean_gradient(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns both sides of (5.4)."""
    return path.found["stale"], path.L**2 * path.found["consensus"]


def gradient_deviations(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns both sides of (5.5)."""
    return path.found["around"], 2 * path.L**2 * path.found["consensus"] + 2 * path.found["spread"]


def all_gradients(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns both sides of (5.6)."""
    found = path.found
    right = 2 * (found["slope"] + path.L**2 * found["consensus"] + found["spread"]) + path.variance
    return found["local"] + path.variance, right


def consensus_by_stochastic_gradients(path: Path) -> np.ndarray:
    """Returns the right side of Lemma 5.2.5."""
    return (path.gamma * path.rho / (1 - path.rho)) ** 2 * (path.found["local"] + path.variance)


def consensus_by_mean_gradients(path: Path) -> np.ndarray:
    """Returns the right side of Lemma 5.2.7."""
    inside = 2 * path.found["slope"] + 2 * path.found["spread"] + path.variance
    return 8 / 7 * (path.gamma * path.rho / (1 - path.rho)) ** 2 * inside


def descent(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns both sides of Lemma 5.2.9."""
    found = {name: values[:-1] for name, values in path.found.items()}
    falls = 2 / path.gamma * -np.diff(path.found["gap"])
    return found["slope"], falls + path.L**2 * found[
        "consensus"
    ] + path.gamma * path.L * path.variance / path.N


def sequences(draws: Draws) -> list[Outcome]:
    """Checks Lemma 5.2.3 on a random sequence."""
    rho, length = draws.real(0.0, 0.99), draws.choice((1, 10, 2000))
    heavy = np.random.default_rng(draws.integer(0, 2**32 - 1)).pareto(1.5, length)
    b = draws.choice((heavy, np.ones(length)))
    a, last = np.empty(length), 0.0
    for t in range(length):
        last = a[t] = rho * last + b[t]
    return [
        Outcome(
            float((a**2).sum()),
            float((b**2).sum()) / (1 - rho) ** 2,
            case=f"rho = {rho:.3g}, {length} terms",
        )
    ]


# --- Instances close to the bounds.


def balanced_gradients() -> tuple[Problem, Topology, float]:
    """Returns an instance with curvatures of nearly opposite sign: the local gradients balance, so
    that the models do not move although f' is not 0.
    """
    return balanced_problem(4, 0.015), one_rho(4, 0.002), 1.0


def growing_disagreement() -> tuple[Problem, Topology, float]:
    """Returns an instance of curvature -1 with gamma L rho / (1 - rho) = 1/2: the disagreement
    changes the workers' gradients by as much as these differ without disagreement.
    """
    return diverging_problem(), one_rho(10, 0.5), 0.5


def constant_heterogeneity() -> tuple[Problem, Topology, float]:
    """Returns an instance whose local gradients differ by constants, with a small step size."""
    pull = np.array([1.0, -1.0, *[0.0] * 8])
    return (
        problems.quadratic(np.ones((10, 2)), np.outer(pull, [1.0, 0.0]), start=[1e-3, 0.0]),
        one_rho(10, 0.5),
        1e-3,
    )


def growing_disagreement_small_step() -> tuple[Problem, Topology, float]:
    """Returns the instance of `growing_disagreement` with the largest step size of Lemma 5.2.7."""
    return diverging_problem(), one_rho(10, 0.5), 0.25


def _statement(
    name: str,
    reference: str,
    hypotheses: str,
    sides: Sides,
    hardest: Instance,
    *,
    small: bool = False,
) -> Statement:
    """Returns a statement that is checked on random instances and on one constructed instance."""

    def trial(draws: Draws) -> list[Outcome]:
        return sides(_draw_path(draws, small=small))

    def extreme() -> list[Outcome]:
        return sides(_measure_path(*hardest(), LONG))

    return Statement(name, reference, hypotheses, trial, (extreme,))


_SMOOTH, _SMALL = "f_n smooth", "W symmetric; gamma rho <= (1-rho)/(4L)"
STATEMENTS = [
    _statement(
        "mean of local gradients",
        "Lemma 5.2.1, (5.4)",
        _SMOOTH,
        _compare_steps(mean_gradient),
        balanced_gradients,
    ),
    _statement(
        "deviation of local gradients",
        "Lemma 5.2.1, (5.5)",
        _SMOOTH,
        _compare_steps(gradient_deviations),
        growing_disagreement,
    ),
    _statement(
        "second moment of all gradients",
        "Lemma 5.2.1, (5.6)",
        f"{_SMOOTH}, noise",
        _compare_steps(all_gradients),
        growing_disagreement,
    ),
    Statement("discounted sums", "Lemma 5.2.3", "0 <= rho < 1", sequences),
    _statement(
        "consensus, by stochastic gradients",
        "Lemma 5.2.5",
        "W symmetric, equal starts",
        _compare_sums(consensus_by_stochastic_gradients),
        constant_heterogeneity,
    ),
    _statement(
        "consensus, by gradients at the mean",
        "Lemma 5.2.7",
        _SMALL,
        _compare_sums(consensus_by_mean_gradients),
        growing_disagreement_small_step,
        small=True,
    ),
    _statement(
        "descent of the mean",
        "Lemma 5.2.9",
        "gamma <= 1/L",
        _compare_steps(descent),
        balanced_gradients,
    ),
]
