"""Inclusion probabilities of successive sampling: draws without replacement by weights."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.polynomial import chebyshev

# More distinct weights are represented by polynomials in the logarithm of the weight, of this
# degree, except for the largest ones.
_DISTINCT, _LARGEST, _DEGREE = 600, 250, 100
_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(128)
_NEGLIGIBLE = 1e-15


def inclusion(weights: np.ndarray, k: int) -> np.ndarray:
    r"""Returns the probability that each of N workers is among the k that have the smallest
    exponential times with rates $w_n$, with an error below 1e-6.

    $$ \pi_n = \int_0^\infty w_n e^{-w_n t}\, P\Big(\sum_{j \ne n} B_j(t) < k\Big) dt, \qquad
       B_j(t) \sim \mathrm{Bernoulli}(1 - e^{-w_j t}) $$

    The integral is computed by Gauss-Legendre quadrature in $\log t$, and the probability is a sum
    over roots of unity of the generating function $\prod_j (1 + (1 - e^{-w_j t})(\omega - 1))$.
    Both, and thus $\pi_n$, depend on a worker through a smooth function of its weight, so that the
    time does not grow with the number of distinct weights.

    Args:
        weights: `[N]`, above 0.
        k: from 1 to N.
    """
    N = len(weights)
    if k in (1, N):
        return weights / weights.sum() if k == 1 else np.ones(N)
    distinct, place, counts = np.unique(weights / weights.mean(), False, True, True)
    if len(distinct) <= _DISTINCT:
        return _at(distinct, counts, distinct, counts, k, N)[place]
    first = len(distinct) - _LARGEST
    logs, ends = np.log(distinct[:first]), np.log(distinct[[0, first - 1]])
    scaled = (2 * logs - ends.sum()) / (ends[1] - ends[0])
    points = chebyshev.chebpts1(_DEGREE + 1)
    nodes = np.exp((points * (ends[1] - ends[0]) + ends.sum()) / 2)
    # A sum over all weights of a function is a sum over the nodes with these factors.
    fit = np.linalg.inv(chebyshev.chebvander(points, _DEGREE))
    moments = np.zeros(_DEGREE + 1)
    for part in np.array_split(np.arange(first), -(-first // 10_000)):
        moments += counts[part] @ chebyshev.chebvander(scaled[part], _DEGREE)
    at = np.concatenate([nodes, distinct[first:]])
    factors = np.concatenate([moments @ fit, counts[first:]])
    values = _at(distinct, counts, at, factors, k, N)
    of_rest = np.exp(chebyshev.chebval(scaled, fit @ np.log(values[: _DEGREE + 1])))
    return np.minimum(np.concatenate([of_rest, values[_DEGREE + 1 :]]), 1)[place]


def _at(
    distinct: np.ndarray, counts: np.ndarray, at: np.ndarray, factors: np.ndarray, k: int, N: int
) -> np.ndarray:
    """Returns the inclusion probabilities for the weights `at`; sums over all workers are sums over
    `at` with the given factors.
    """

    def mean(log_time: float) -> float:
        return float(counts @ -np.expm1(-distinct * np.exp(log_time)))

    def mean_of_others(log_time: float) -> float:
        return float(counts @ np.exp(-distinct * np.exp(log_time)))

    # Before the first time fewer than k workers are through, after the last one at least k others.
    low = _bisect(lambda x: _rare(mean(x), k) or _rare_below(mean_of_others(x), N - k + 1), False)
    high = _bisect(
        lambda x: not (_rare(mean_of_others(x), N - k) or _rare_below(mean(x) - 1, k)), True
    )
    logs = low + (high - low) * (1 + _NODES) / 2
    times = np.exp(logs)
    p = -np.expm1(-np.outer(times, at))
    bottom = max(0, int(mean(low) - _deviation(mean(low), mean_of_others(low))))
    top = min(N - 1, int(mean(high) + _deviation(mean(high), mean_of_others(high))) + 1)
    roots = max(top, k - 1) - bottom + 1
    probability = np.zeros_like(p)
    for root in range(roots // 2 + 1):
        omega = np.exp(2j * np.pi * root / roots)
        each = np.log(1 + p * (omega - 1) + 1e-300)
        product = (each @ factors)[:, None]
        if product.real.max() < math.log(_NEGLIGIBLE):
            break
        powers = np.sum(omega ** -np.arange(bottom, k, dtype=float))
        term = np.real(np.exp(product - each) * powers) / roots
        probability += term if root in (0, roots / 2) else 2 * term
    scale = (high - low) / 2 * _NODE_WEIGHTS * times
    later = scale @ (at * np.exp(-np.outer(times, at)) * probability)
    return np.minimum(-np.expm1(-at * np.exp(low)) + later, 1)


def _rare(mean: float, k: int) -> bool:
    """Whether P(S >= k) is negligible for a sum of Bernoulli variables with this mean, by
    Chernoff's bound.
    """
    return mean < k and k * math.log(k / max(mean, 1e-300)) - k + mean > -math.log(_NEGLIGIBLE)


def _rare_below(mean: float, k: int) -> bool:
    """Whether P(S < k) is negligible, by Chernoff's bound."""
    return mean > k and k * math.log(k / mean) - k + mean > -math.log(_NEGLIGIBLE)


def _deviation(mean: float, mean_of_others: float) -> float:
    """Returns by how much a sum of Bernoulli variables differs from its mean at most."""
    return 9 * math.sqrt(min(mean, mean_of_others)) + 40


def _bisect(condition: Callable[[float], bool], last: bool) -> float:
    """Returns where a condition on log t that holds up to some point ceases to hold: the last point
    at which it holds, or the first at which it does not.
    """
    ends = [-200.0, 200.0]
    for _ in range(60):
        middle = sum(ends) / 2
        ends[not condition(middle)] = middle
    return ends[last]
