r"""Seconds to $E|f'|^2 \le \epsilon$ on graphs: worker i needs $h_i$ seconds a gradient, and a
message from i to j needs $\tau_{i \to j}$ seconds along the fastest path.

One worker j, the pivot, makes the steps. The model reaches worker i after $\tau_{j \to i}$ seconds
and its gradients return after $\tau_{i \to j}$; let $\tau_i$ be the sum.

**Fragile.** Let T seconds begin with a new model at the pivot. Worker i has it for $T - \tau_i$
seconds in which gradients return in time, and may first finish a gradient of an earlier model. So
it contributes more than $(T - \tau_i)/h_i - 2$ gradients, and any set of workers contributes B if

$$ \sum_i \Big(\frac{T - \tau_i}{h_i} - 2\Big) \ge B, \qquad
t(B) = \min_m \frac{B + \sum_{i \le m} (2 + \tau_i/h_i)}{\sum_{i \le m} 1/h_i} $$

with workers in the order of $\tau_i + 2h_i$. With the time $t^\star$ of `optimal_seconds_on_graph`
for $s = B$, $T = 4t^\star$ is enough, because $\tau_i, h_i \le t^\star$ for the workers of its
minimum: $t(B) \le 4t^\star$. Without messages t is that of Rennala.

**Amelie.** For $T = \max_i \tau_i + U$ with $U \ge 2h_N$, worker i contributes $B_i \ge \lfloor
U/h_i \rfloor - 1 \ge \frac U{3h_i}$ gradients, so that $\frac1N\sum_i\frac1{B_i} \le \frac{3\bar
h}U$ with the mean $\bar h$ of $h_i$. A step takes at most $\max_i \tau_i + \max(2h_N, 3\bar hS/N)$.

Both make steps with a variance of at most $\epsilon$, as Rennala and Malenia do
(`theory_checks.statements.seconds`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from theory_checks.machinery import ranges
from theory_checks.statements import seconds


@ranges.validate("bounds.optimal_seconds_on_graph")
def optimal_seconds_on_graph(
    *,
    gap: float,
    smoothness: float,
    noise: float,
    epsilon: float,
    times: Sequence[float],
    travel: Sequence[Sequence[float]],
) -> float:
    r"""Returns $\frac{LD}\epsilon \min_j t^\star(\frac{\sigma^2}\epsilon, h, \tau_{\cdot \to j} +
    \tau_{j \to \cdot})$ with $t^\star(s, h, \tau) = \min_k \max\big\{ \max(\tau_k, h_k),\ s
    \big(\sum_{i \le k} \frac1{h_i}\big)^{-1} \big\}$ for workers in the order of $\max(\tau_i,
    h_i)$, the order of the optimal time on a graph for workers with equal data, up to log N, which
    Fragile reaches.

    Args:
        gap: D = f(x_1) - f*.
        smoothness: L.
        noise: sigma, of one gradient.
        epsilon: the accuracy.
        times: h_i, seconds of a gradient by worker.
        travel: tau_ij, seconds of a message from worker i to worker j along the fastest path, a
            list for each i.

    Source: Tyurin and Richtarik, "On the optimal time complexities in decentralized stochastic
    asynchronous optimization", 2024.
    """
    h = np.asarray(times, float)
    best = np.inf
    for tau in _there_and_back("bounds.optimal_seconds_on_graph", times, travel):
        order = np.argsort(np.maximum(tau, h), kind="stable")
        farthest = np.maximum(tau, h)[order]  # sorted, so each is the maximum of those before
        best = min(best, np.min(np.maximum(farthest, noise**2 / epsilon / np.cumsum(1 / h[order]))))
    return float(smoothness * gap / epsilon * best)


@ranges.validate("bounds.optimal_seconds_on_graph_different_data")
def optimal_seconds_on_graph_different_data(
    *,
    gap: float,
    smoothness: float,
    noise: float,
    epsilon: float,
    times: Sequence[float],
    travel: Sequence[Sequence[float]],
) -> float:
    r"""Returns $\frac{LD}\epsilon \max\big(\max_{ij} \tau_{i \to j}, \max_i h_i, \bar h
    \frac{\sigma^2}{N\epsilon} \big)$ with the mean $\bar h$ of $h_i$, the order of the optimal time
    on a graph for workers with different data, which Amelie reaches. Arguments are those of
    `optimal_seconds_on_graph`.

    Source: Tyurin and Richtarik, 2024.
    """
    _there_and_back("bounds.optimal_seconds_on_graph_different_data", times, travel)
    mean = sum(times) / len(times)
    slowest = max(*map(max, travel), *times, mean * noise**2 / epsilon / len(times))
    return smoothness * gap / epsilon * slowest


@ranges.validate("bounds.fragile_seconds")
def fragile_seconds(
    *,
    gap: float,
    smoothness: float,
    noise: float,
    epsilon: float,
    times: Sequence[float],
    travel: Sequence[Sequence[float]],
    pivot: int | None = None,
) -> float:
    r"""Returns $\lceil 4LD/\epsilon \rceil\, t(B)$, the seconds within which Fragile with $B =
    \max(1, \lceil\sigma^2/\epsilon\rceil)$ and $\gamma = \frac1{2L}$ reaches $\frac1K\sum_k
    E|f'(x_k)|^2 \le \epsilon$; with the best pivot at most 16 times `optimal_seconds_on_graph`, up
    to rounding.

    Args:
        gap, smoothness, noise, epsilon, times, travel: those of `optimal_seconds_on_graph`.
        pivot: j, the worker that makes the steps; None: the best one.

    Source: derived in the module's docstring, following Tyurin and Richtarik, 2024.
    """
    batch, h = seconds.batch(noise=noise, epsilon=epsilon), np.asarray(times, float)
    best = np.inf
    for tau in _there_and_back("bounds.fragile_seconds", times, travel, pivot):
        order = np.argsort(tau + 2 * h, kind="stable")
        needed = batch + np.cumsum((2 + tau / h)[order])
        best = min(best, np.min(needed / np.cumsum(1 / h[order])))
    steps = seconds.sgd_steps(gap=gap, smoothness=smoothness, variance=epsilon, epsilon=epsilon)
    return float(steps * best)


@ranges.validate("bounds.amelie_seconds")
def amelie_seconds(
    *,
    gap: float,
    smoothness: float,
    noise: float,
    epsilon: float,
    times: Sequence[float],
    travel: Sequence[Sequence[float]],
    pivot: int | None = None,
) -> float:
    r"""Returns $\lceil 4LD/\epsilon \rceil (\max_i \tau_i + \max(2\max_i h_i, 3\bar hS/N))$, the
    seconds within which Amelie with $S = \max(1, \lceil \sigma^2 / \epsilon \rceil)$ and $\gamma =
    \frac1{2L}$ reaches $\frac1K\sum_k E|f'(x_k)|^2 \le \epsilon$. Arguments are those of
    `fragile_seconds`.

    Source: derived in the module's docstring, following Tyurin and Richtarik, 2024.
    """
    farthest = _there_and_back("bounds.amelie_seconds", times, travel, pivot).max(axis=1).min()
    steps = seconds.sgd_steps(gap=gap, smoothness=smoothness, variance=epsilon, epsilon=epsilon)
    given = {"gap": gap, "smoothness": smoothness, "noise": noise, "epsilon": epsilon}
    return float(steps * farthest + seconds.malenia_seconds(**given, times=times))


def _there_and_back(
    where: str,
    times: Sequence[float],
    travel: Sequence[Sequence[float]],
    pivot: int | None = None,
) -> np.ndarray:
    """Returns tau_ij + tau_ji for each possible pivot j and each worker i, `[pivots, N]`."""
    N = len(times)
    if len(travel) != N or any(len(row) != N for row in travel):
        raise ValueError(
            f"{where}: travel has rows of {[len(row) for row in travel]} for {N} workers; expected "
            f"{N} rows of {N}, the seconds from worker i to worker j"
        )
    if pivot is not None and pivot >= N:
        raise ValueError(
            f"{where}: pivot = {pivot} with {N} workers; expected a number from 0 to {N - 1}"
        )
    tau = np.asarray(travel, float)
    tau = tau + tau.T
    return tau if pivot is None else tau[pivot : pivot + 1]
