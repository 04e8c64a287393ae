r"""Seconds to $E|f'|^2 \le \epsilon$ if worker i needs $h_i$ seconds a gradient, $h_1 \le \dots \le
h_N$, and messages take no time.

`optimal_seconds`, `asynchronous_seconds`, `minibatch_seconds` and `optimal_seconds_different_data`
are the orders of the papers, without constants. The seconds of the methods have constants, which
are derived here.

**Rennala and Ringmaster.** Let T seconds begin with a new model (Rennala), or at any step
(Ringmaster with the threshold B). Worker i may first finish a gradient of an earlier model, which
is ignored; then it makes at least $\lfloor T/h_i \rfloor - 1 > T/h_i - 2$ gradients within T. They
count until B are in: at Rennala because the model is the current one, at Ringmaster because fewer
than B steps were made since they began. So a step of Rennala, and B steps of Ringmaster, take at
most

$$ t(B) = \min_m \frac{B + 2m}{\sum_{i \le m} 1/h_i} \le 2 \min_m \frac{B + m}{\sum_{i \le m}
1/h_i}. $$

**Malenia.** In $T \ge 2h_N$ seconds worker i makes $B_i \ge \lfloor T/h_i \rfloor - 1 \ge
\frac T{3h_i}$ gradients at the current model, so that $\frac1N\sum_i \frac1{B_i} \le \frac{3\bar
h}T$ with the mean $\bar h$ of $h_i$. A step takes at most $\max(2h_N, 3\bar hS/N)$.

**Numbers of steps.** Rennala and Malenia make steps with a variance of at most
$\sigma^2/B \le \epsilon$, so that $\gamma = \frac1{2L}$ gives $\frac1K\sum E|f'|^2 \le
\frac23\big(\frac{4LD}K + \frac\epsilon2\big)$ (Theorem 1.2.1): $K = \lceil 4LD/\epsilon \rceil$ is
enough. Ringmaster needs those of `theory_checks.birch_sgd` with R = B - 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from theory_checks.machinery import ranges
from theory_checks.statements import birch_sgd


@ranges.validate("bounds.optimal_seconds")
def optimal_seconds(
    *, gap: float, smoothness: float, noise: float, epsilon: float, times: Sequence[float]
) -> float:
    r"""Returns $\min_m \Big(\frac1m \sum_{i \le m} \frac1{h_i}\Big)^{-1} \Big(\frac{LD}\epsilon +
    \frac{\sigma^2LD}{m\epsilon^2}\Big)$, the order of the optimal time for workers with equal data,
    which Rennala and Ringmaster reach.

    Args:
        gap: D = f(x_1) - f*.
        smoothness: L.
        noise: sigma, of one gradient.
        epsilon: the accuracy.
        times: h_i, seconds of a gradient by worker, in any order.

    Source: Tyurin and Richtarik, "Optimal time complexities of parallel stochastic optimization
    methods under a fixed computation model", 2023.
    """
    return smoothness * gap / epsilon * _fastest(noise**2 / epsilon, times, 1)


@ranges.validate("bounds.asynchronous_seconds")
def asynchronous_seconds(
    *, gap: float, smoothness: float, noise: float, epsilon: float, times: Sequence[float]
) -> float:
    r"""Returns $\Big(\frac1N \sum_i \frac1{h_i}\Big)^{-1} \Big(\frac{LD}\epsilon +
    \frac{\sigma^2LD}{N\epsilon^2}\Big)$, the order of the time of asynchronous SGD with step sizes
    that adapt to the delays. Arguments are those of `optimal_seconds`.

    Source: Mishchenko et al., 2022, and Koloskova et al., 2022, as stated by Tyurin and Richtarik,
    2023.
    """
    rounds = smoothness * gap / epsilon * (1 + noise**2 / epsilon / len(times))
    return rounds * len(times) / sum(1 / h for h in times)


@ranges.validate("bounds.minibatch_seconds")
def minibatch_seconds(
    *, gap: float, smoothness: float, noise: float, epsilon: float, times: Sequence[float]
) -> float:
    r"""Returns $\max_i h_i \Big(\frac{LD}\epsilon + \frac{\sigma^2LD}{N\epsilon^2}\Big)$, the order
    of the time of mini-batch SGD. Arguments are those of `optimal_seconds`.

    Source: as stated by Tyurin and Richtarik, 2023.
    """
    return max(times) * smoothness * gap / epsilon * (1 + noise**2 / epsilon / len(times))


@ranges.validate("bounds.optimal_seconds_different_data")
def optimal_seconds_different_data(
    *, gap: float, smoothness: float, noise: float, epsilon: float, times: Sequence[float]
) -> float:
    r"""Returns $\frac{LD}\epsilon \max_i h_i + \bar h \frac{\sigma^2LD}{N\epsilon^2}$ with the mean
    $\bar h$ of $h_i$, the order of the optimal time for workers with different data, which Malenia
    reaches. Arguments are those of `optimal_seconds`.

    Source: Tyurin and Richtarik, 2023.
    """
    mean = sum(times) / len(times)
    return smoothness * gap / epsilon * (max(times) + mean * noise**2 / epsilon / len(times))


@ranges.validate("bounds.rennala_seconds")
def rennala_seconds(
    *, gap: float, smoothness: float, noise: float, epsilon: float, times: Sequence[float]
) -> float:
    r"""Returns $\lceil 4LD/\epsilon \rceil\, t(B)$, the seconds within which Rennala with $B =
    \max(1, \lceil\sigma^2/\epsilon\rceil)$ and $\gamma = \frac1{2L}$ reaches $\frac1K\sum_k
    E|f'(x_k)|^2 \le \epsilon$. Arguments are those of `optimal_seconds`; t is `batch_seconds`.

    Source: derived in the module's docstring, following Tyurin and Richtarik, 2023.
    """
    batch = _batch(noise, epsilon)
    return _steps(gap, smoothness, epsilon) * batch_seconds(batch_size=batch, times=times)


@ranges.validate("bounds.ringmaster_seconds")
def ringmaster_seconds(
    *, gap: float, smoothness: float, noise: float, epsilon: float, times: Sequence[float]
) -> float:
    r"""Returns $\lceil K/B \rceil\, t(B)$, the seconds within which Ringmaster with the threshold
    $B = \max(1, \lceil\sigma^2/\epsilon\rceil)$ makes the K steps of `theory_checks.birch_sgd`.
    Arguments are those of `optimal_seconds`; t is `batch_seconds`.

    Source: derived in the module's docstring, following Maranjyan, Tyurin and Richtarik,
    "Ringmaster ASGD", 2025.
    """
    batch = _batch(noise, epsilon)
    steps = birch_sgd.iterations(
        gap=gap, smoothness=smoothness, noise=noise, tree_distance=batch - 1, epsilon=epsilon
    )
    return math.ceil(steps / batch) * batch_seconds(batch_size=batch, times=times)


@ranges.validate("bounds.malenia_seconds")
def malenia_seconds(
    *, gap: float, smoothness: float, noise: float, epsilon: float, times: Sequence[float]
) -> float:
    r"""Returns $\lceil 4LD/\epsilon \rceil \max(2\max_i h_i, 3\bar hS/N)$, the seconds within which
    Malenia with $S = \max(1, \lceil\sigma^2/\epsilon\rceil)$ and $\gamma = \frac1{2L}$ reaches
    $\frac1K\sum_k E|f'(x_k)|^2 \le \epsilon$. Arguments are those of `optimal_seconds`.

    Source: derived in the module's docstring, following Tyurin and Richtarik, 2023.
    """
    slowest, mean = max(times), sum(times) / len(times)
    step = max(2 * slowest, 3 * mean * _batch(noise, epsilon) / len(times))
    return _steps(gap, smoothness, epsilon) * step


@ranges.validate("bounds.batch_seconds")
def batch_seconds(*, batch_size: int, times: Sequence[float]) -> float:
    r"""Returns $t(B) = \min_m \frac{B + 2m}{\sum_{i \le m} 1/h_i}$, the most seconds of a step of
    Rennala with batches of B, and of B steps of Ringmaster with the threshold B.

    Args:
        batch_size: B.
        times: h_i, seconds of a gradient by worker, in any order.

    Source: derived in the module's docstring.
    """
    return _fastest(batch_size, times, 2)


def _fastest(gradients: float, times: Sequence[float], each: int) -> float:
    """Returns min_m (gradients + each m) / sum_{i <= m} 1 / h_i."""
    m = np.arange(1, len(times) + 1)
    return float(np.min((gradients + each * m) / np.cumsum(1 / np.sort(times))))


def _batch(noise: float, epsilon: float) -> int:
    return max(1, math.ceil(noise**2 / epsilon))


def _steps(gap: float, smoothness: float, epsilon: float) -> int:
    return max(1, math.ceil(4 * smoothness * gap / epsilon))
