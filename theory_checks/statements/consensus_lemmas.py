r"""Lemmas 5.2.1 to 5.2.9, along the exact moments of decentralized SGD on quadratics.

With $X$ the models, $F$ their exact gradients, $G$ the stochastic ones, all divided by $\sqrt N$ in the norms below:

- (5.4): $|\frac1N F 1 - f'(\bar x)|^2 \le L^2 |X - \bar X|_F^2$, by convexity of the square and smoothness.
- (5.5), corrected: $|F - f'(\bar x) 1^T|_F^2 \le 2 L^2 |X - \bar X|_F^2 + 2\varsigma^2$; its proof begins with a half that the statement
  loses.
- (5.6): $E|G|_F^2 \le 2|f'(\bar x)|^2 + 4 L^2 |X - \bar X|_F^2 + 4\varsigma^2 + \sigma^2$.
- 5.2.3: $a_t = \sum_{s \le t} \rho^{t - s} b_s$ has $\sum a_t^2 \le (1 - \rho)^{-2} \sum b_t^2$ (Young's inequality for convolutions).
- 5.2.5: with $a_t = |X_t - \bar X_t|_F$, $b_t = \gamma \rho |G_t|_F$: $\sum E|X - \bar X|_F^2 \le \frac{\gamma^2 \rho^2}{(1 - \rho)^2}
  \sum E|G|_F^2$.
- 5.2.7: (5.6) in 5.2.5 with $4L^2 \le \frac14 \frac{(1 - \rho)^2}{\gamma^2 \rho^2}$ leaves $\frac34$ of the left side:
  $\sum E|X - \bar X|_F^2 \le \frac43 \frac{\gamma^2\rho^2}{(1 - \rho)^2} \sum (2 E|f'(\bar x)|^2 + 4\varsigma^2 + \sigma^2)$. (The survey
  has 2 before the gradients, where this has 8/3; its proof does not give that.)
- 5.2.9: $E|f'(\bar x_t)|^2 \le \frac2\gamma (E f(\bar x_t) - E f(\bar x_{t+1})) + L^2 E|X - \bar X|_F^2 + \frac{\gamma L\sigma^2}{N}$; in
  print the bracket is missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import algorithms
from theory_checks.machinery import instances, moments
from theory_checks.machinery.statement import Draws, Outcome, Statement

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


def _path(draws: Draws, method, *, small: bool = False) -> Path:
    """One instance with gamma <= 1/L; where `small`, gamma rho <= (1 - rho) / (4 L) too."""
    topology = draws.choice(instances.graphs())
    problem = instances.quadratic(draws, topology.n, 2)
    known, rho = instances.known(problem), topology.rho
    limit = min(1 / known.smoothness, (1 - rho) / (4 * known.smoothness * max(rho, 1e-12)) if small else math.inf)
    gamma = draws.real(0.01, 1.0) * limit
    found = moments.second_moments(moments.with_step(method, topology), problem, gamma, steps=_STEPS)
    return Path(found, gamma, known.smoothness, known.noise**2, topology.n, rho, f"{problem.name}, {topology.name}")


def _at_every_step(right: Callable[[Path], tuple[np.ndarray, np.ndarray]]):
    """A trial that returns the worst t of (left side, right side), `[steps]`."""

    def trial(draws: Draws, method=algorithms.decentralized_sgd) -> list[Outcome]:
        path = _path(draws, method)
        left, bound = right(path)
        size = path.found["local"] + path.found["gap"] / path.gamma
        scale = size + 1e-6 * size.max()  # what is 0 now carries the rounding of what was before
        outcomes = [
            Outcome(float(x), float(y), case=f"{path.case}, t = {t}", scale=float(z))
            for t, (x, y, z) in enumerate(zip(left, bound, scale, strict=False))
        ]
        return [max(outcomes, key=lambda outcome: outcome.badness)]

    return trial


def _summed(right: Callable[[Path], np.ndarray], *, small: bool = False):
    """A trial of the consensus distance, summed over t, beside what it is compared with, `[steps]`."""

    def trial(draws: Draws, method=algorithms.decentralized_sgd) -> list[Outcome]:
        path = _path(draws, method, small=small)
        scale = path.gamma**2 * float(path.found["local"].sum())
        left = path.found["consensus"][:_STEPS].sum()
        return [Outcome(float(left), float(right(path)[:_STEPS].sum()), case=path.case, scale=scale)]

    return trial


def mean_gradient(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """(5.4)."""
    return path.found["stale"], path.L**2 * path.found["consensus"]


def gradients_apart(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """(5.5)."""
    return path.found["around"], 2 * path.L**2 * path.found["consensus"] + 2 * path.found["spread"]


def all_gradients(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """(5.6)."""
    found = path.found
    right = 2 * found["slope"] + 4 * path.L**2 * found["consensus"] + 4 * found["spread"] + path.variance
    return found["local"] + path.variance, right


def consensus_by_gradients(path: Path) -> np.ndarray:
    """Lemma 5.2.5."""
    return (path.gamma * path.rho / (1 - path.rho)) ** 2 * (path.found["local"] + path.variance)


def consensus_by_slopes(path: Path) -> np.ndarray:
    """Lemma 5.2.7."""
    inside = 2 * path.found["slope"] + 4 * path.found["spread"] + path.variance
    return 4 / 3 * (path.gamma * path.rho / (1 - path.rho)) ** 2 * inside


def descent(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Lemma 5.2.9."""
    found = {name: values[:-1] for name, values in path.found.items()}
    falls = 2 / path.gamma * -np.diff(path.found["gap"])
    return found["slope"], falls + path.L**2 * found["consensus"] + path.gamma * path.L * path.variance / path.N


def sequences(draws: Draws) -> list[Outcome]:
    """Lemma 5.2.3 on one sequence."""
    rho, length = draws.real(0.0, 0.99), draws.choice((1, 10, 2000))
    heavy = np.random.default_rng(draws.integer(0, 2**32 - 1)).pareto(1.5, length)
    b = draws.choice((heavy, np.ones(length)))
    a, last = np.empty(length), 0.0
    for t in range(length):
        last = a[t] = rho * last + b[t]
    return [Outcome(float((a**2).sum()), float((b**2).sum()) / (1 - rho) ** 2, case=f"rho = {rho:.3g}, {length} terms")]


_SMALL = "W symmetric; gamma rho <= (1-rho)/(4L)"
STATEMENTS = [
    Statement("mean of local gradients", "Lemma 5.2.1, (5.4)", "f_n smooth", _at_every_step(mean_gradient)),
    Statement("local gradients apart", "Lemma 5.2.1, (5.5)", "f_n smooth", _at_every_step(gradients_apart)),
    Statement("size of all gradients", "Lemma 5.2.1, (5.6)", "f_n smooth, noise", _at_every_step(all_gradients)),
    Statement("sums with a memory", "Lemma 5.2.3", "0 <= rho < 1", sequences),
    Statement("consensus by gradients", "Lemma 5.2.5", "W symmetric, equal starts", _summed(consensus_by_gradients)),
    Statement("consensus by slopes", "Lemma 5.2.7", _SMALL, _summed(consensus_by_slopes, small=True)),
    Statement("descent of the mean", "Lemma 5.2.9", "gamma <= 1/L", _at_every_step(descent)),
]
