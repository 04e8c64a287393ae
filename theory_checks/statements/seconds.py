r"""Seconds to $E|f'|^2 \le \epsilon$ if worker i needs $h_i$ seconds a gradient, $h_1 \le \dots \le
h_N$, and messages take no time.

`optimal_seconds` and `optimal_seconds_different_data` are the orders of the papers, without
constants. The seconds of the methods have constants, which are derived here; they are checked
against the clock in `theory_checks.statements.methods_on_the_clock`.

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

**Numbers of steps.** For steps with a variance of at most v, Theorem 1.2.1 at $\gamma =
\frac1{L(1 + v/\epsilon)}$ is

$$ \frac1K\sum_k E|f'(x_k)|^2 \le \frac{1 + r}{1 + 2r} \Big(\frac{2LD(1 + r)}K +
\frac{r\epsilon}{1 + r}\Big), \quad r = \frac v\epsilon, \qquad
\text{at most } \epsilon \text{ if } K \ge \frac{2LD}\epsilon \Big(1 + \frac v\epsilon\Big). $$

Rennala and Malenia have $v = \sigma^2/B \le \epsilon$: $\gamma = \frac1{2L}$ and $K = \lceil
4LD/\epsilon \rceil$. **Mini-batch SGD** has $v = \sigma^2/N$, and a step takes $h_N$ seconds; if it
waits for the m fastest workers (**backup workers**, m-synchronous SGD), $v = \sigma^2/m$ and $h_m$.
Ringmaster needs the steps of `theory_checks.birch_sgd` with R = B - 1.

**Asynchronous SGD.** While worker i computes a gradient, worker j finishes at most $\lfloor h_i/h_j
\rfloor + 1$. So R of `theory_checks.birch_sgd` is at most $\sum_j (\lfloor h_N/h_j \rfloor + 1) -
2$. In T seconds the m fastest workers make more than $\sum_{i \le m} (T/h_i - 1)$ steps, so that K
steps take at most $\min_m (K + m) / \sum_{i \le m} \frac1{h_i}$.

**Delay-adaptive SGD** with `late=0` ignores gradients with a delay of more than 2N, so that R = 2N.
A worker reads the model after each of its gradients. So the sum of $\tau + 1$ over its gradients is
at most the number A of all gradients, and the sum over all gradients at most N A: fewer than half
of them have $\tau + 1 \ge 2N + 2$. K steps take at most $\min_m (2K + m) / \sum_{i \le m}
\frac1{h_i}$, however slow the slowest worker is.

**Ringleader.** Let s be the first step of a round of N steps. All gradients of its table were
computed at $x_{s - N + 1}$ or later, since their workers had made a step in the round before, and
the last step that uses them is $s + N - 1$: their age is at most $2N - 2$. The noise of $g_k$,
which has the variance $v = \frac{\sigma^2}{NB}$ with the harmonic mean B of the numbers $b_i$ of
gradients, is independent of $x_s$. With the mean $\bar g_k$ of $g_k$ given the models,

$$ E f(x_{k+1}) - E f(x_k) \le -\frac\gamma2 E|f'(x_k)|^2 - \frac\gamma2 E|\bar g_k|^2
   + \frac\gamma2 E|f'(x_k) - \bar g_k|^2 - \gamma E\langle f'(x_k) - f'(x_s), g_k - \bar g_k
   \rangle + \gamma^2 L (E|\bar g_k|^2 + v). $$

The third term is at most $\gamma^3 L^2 m (\sum_l E|\bar g_l|^2 + m v)$ for the $m \le 2N - 2$ steps
before k. The fourth is at most $\gamma^2 L \sum_l \big(\frac12 E|\bar g_l|^2 + \frac32 v\big)$
for the at most $N - 1$ steps l from s on. For $\gamma \le \frac1{8NL}$, the sum over k has
$-\frac\gamma2 + \frac\gamma{16} + \frac\gamma{16} + \frac\gamma8 < 0$ in front of $E|\bar
g_l|^2$, and at most $\gamma^2 L v (2N - 1) \le 2\gamma^2 L \sigma^2/B$ of noise in each step:

$$ \frac1K \sum_k E|f'(x_k)|^2 \le \frac{2D}{\gamma K} + \frac{4\gamma L\sigma^2}B, $$

which is at most $\epsilon$ if $\gamma \le \frac{\epsilon B}{10L\sigma^2}$ and $K \ge
\frac{10D}{3\gamma\epsilon}$. In each part of a round each worker is waited for at most once, so
that N steps take at most $2h_N$. Let e be the time of the first step of a round, and e' that of the
next round. Worker i makes a step at $c_i \le e + h_i$ in between, and $e' \ge c_N + h_N \ge e +
h_N$. Gradients of worker i that arrive from $c_i$ to e' count: $b_i \ge \max(1, \lceil h_N/h_i
\rceil - 2) \ge \frac{h_N}{3h_i}$, with any order of gradients that arrive together.
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
    size = batch(noise=noise, epsilon=epsilon)
    return _steps(gap, smoothness, epsilon) * batch_seconds(batch_size=size, times=times)


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
    size = batch(noise=noise, epsilon=epsilon)
    steps = birch_sgd.iterations(
        gap=gap, smoothness=smoothness, noise=noise, tree_distance=size - 1, epsilon=epsilon
    )
    return math.ceil(steps / size) * batch_seconds(batch_size=size, times=times)


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
    step = max(2 * slowest, 3 * mean * batch(noise=noise, epsilon=epsilon) / len(times))
    return _steps(gap, smoothness, epsilon) * step


@ranges.validate("bounds.minibatch_seconds")
def minibatch_seconds(
    *, gap: float, smoothness: float, noise: float, epsilon: float, times: Sequence[float]
) -> float:
    r"""Returns $\max_i h_i \Big\lceil \frac{2LD}\epsilon + \frac{2\sigma^2LD}{N\epsilon^2}
    \Big\rceil$, the seconds within which mini-batch SGD with $\gamma = 1 / (L + \frac{L
    \sigma^2}{N\epsilon})$ reaches $\frac1K\sum_k E|f'(x_k)|^2 \le \epsilon$. Arguments are those of
    `optimal_seconds`.

    Source: derived in the module's docstring; the order is in Tyurin and Richtarik, 2023.
    """
    given = {"gap": gap, "smoothness": smoothness, "noise": noise, "epsilon": epsilon}
    return backup_workers_seconds(**given, times=times, backups=0)


@ranges.validate("bounds.backup_workers_seconds")
def backup_workers_seconds(
    *,
    gap: float,
    smoothness: float,
    noise: float,
    epsilon: float,
    times: Sequence[float],
    backups: int,
) -> float:
    r"""Returns $h_m \Big\lceil \frac{2LD}\epsilon + \frac{2\sigma^2LD}{m\epsilon^2} \Big\rceil$,
    the seconds within which synchronous SGD that waits for the $m = N - k$ fastest workers, with
    $\gamma = 1 / (L + \frac{L\sigma^2}{m\epsilon})$, reaches $\frac1K\sum_k E|f'(x_k)|^2 \le
    \epsilon$.

    Args:
        gap, smoothness, noise, epsilon, times: those of `optimal_seconds`.
        backups: k, number of workers that are not waited for, less than N.

    Source: derived in the module's docstring.
    """
    counted = len(times) - backups
    if counted < 1:
        raise ValueError(
            f"bounds.backup_workers_seconds: backups = {backups} with {len(times)} workers; "
            f"expected at most {len(times) - 1}"
        )
    variance = noise**2 / counted
    steps = sgd_steps(gap=gap, smoothness=smoothness, variance=variance, epsilon=epsilon)
    return sorted(times)[counted - 1] * steps


@ranges.validate("bounds.asynchronous_seconds")
def asynchronous_seconds(
    *, gap: float, smoothness: float, noise: float, epsilon: float, times: Sequence[float]
) -> float:
    r"""Returns $\min_m (K + m) / \sum_{i \le m} \frac1{h_i}$, the seconds within which asynchronous
    SGD with a constant step size makes the K steps of `theory_checks.birch_sgd` for $R = \sum_j
    (\lfloor h_N/h_j \rfloor + 1) - 2$, the largest delay. Arguments are those of `optimal_seconds`.

    Source: derived in the module's docstring.
    """
    steps = birch_sgd.iterations(
        gap=gap,
        smoothness=smoothness,
        noise=noise,
        tree_distance=largest_delay(times=times),
        epsilon=epsilon,
    )
    return _fastest(steps, times, 1)


@ranges.validate("bounds.delay_adaptive_seconds")
def delay_adaptive_seconds(
    *, gap: float, smoothness: float, noise: float, epsilon: float, times: Sequence[float]
) -> float:
    r"""Returns $\min_m (2K + m) / \sum_{i \le m} \frac1{h_i}$, the seconds within which
    delay-adaptive SGD that ignores delays of more than 2N (`late=0`) makes the K steps of
    `theory_checks.birch_sgd` for R = 2N. Arguments are those of `optimal_seconds`.

    Source: derived in the module's docstring; the method is that of Koloskova et al., 2022.
    """
    steps = birch_sgd.iterations(
        gap=gap,
        smoothness=smoothness,
        noise=noise,
        tree_distance=2 * len(times),
        epsilon=epsilon,
    )
    return _fastest(2 * steps, times, 1)


@ranges.validate("bounds.ringleader_seconds")
def ringleader_seconds(
    *, gap: float, smoothness: float, noise: float, epsilon: float, times: Sequence[float]
) -> float:
    r"""Returns $2 \max_i h_i \lceil K/N \rceil$, the seconds within which Ringleader with $\gamma =
    \min(\frac1{8NL}, \frac{\epsilon B}{10L\sigma^2})$ makes $K = \lceil \frac{10D}{3\gamma\epsilon}
    \rceil$ steps, so that $\frac1K\sum_k E|f'(x_k)|^2 \le \epsilon$. B is the harmonic mean of
    $\max(1, \lceil h_N/h_i \rceil - 2)$, at least a third of $h_N$ divided by the mean of $h_i$. L
    is that of every $f_i$; other arguments are those of `optimal_seconds`.

    Source: derived in the module's docstring, following Maranjyan and Richtarik, "Ringleader ASGD",
    2025.
    """
    step = ringleader_step(smoothness=smoothness, noise=noise, epsilon=epsilon, times=times)
    steps = max(1, math.ceil(10 * gap / (3 * step * epsilon)))
    return 2 * max(times) * math.ceil(steps / len(times))


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


@ranges.validate("seconds.batch")
def batch(*, noise: float, epsilon: float) -> int:
    r"""Returns $\max(1, \lceil\sigma^2/\epsilon\rceil)$, the number of gradients whose mean has a
    variance of at most epsilon.
    """
    return max(1, math.ceil(noise**2 / epsilon))


@ranges.validate("seconds.sgd_step")
def sgd_step(*, smoothness: float, variance: float, epsilon: float) -> float:
    r"""Returns $\gamma = 1 / (L + \frac{Lv}\epsilon)$.

    Args:
        smoothness: L.
        variance: v, of the gradient of a step.
        epsilon: the accuracy.
    """
    return 1 / (smoothness * (1 + variance / epsilon))


@ranges.validate("seconds.sgd_steps")
def sgd_steps(*, gap: float, smoothness: float, variance: float, epsilon: float) -> int:
    r"""Returns $\lceil \frac{2LD}\epsilon (1 + \frac v\epsilon) \rceil$, the number of steps of
    size `sgd_step` to the accuracy.

    Args:
        gap: D = f(x_1) - f*.
        smoothness, variance, epsilon: as above.
    """
    return max(1, math.ceil(2 * smoothness * gap / epsilon * (1 + variance / epsilon)))


@ranges.validate("seconds.ringleader_step")
def ringleader_step(
    *, smoothness: float, noise: float, epsilon: float, times: Sequence[float]
) -> float:
    r"""Returns $\min(\frac1{8NL}, \frac{\epsilon B}{10L\sigma^2})$, see `ringleader_seconds`."""
    N, slowest = len(times), max(times)
    inverses = sum(1 / max(1, math.ceil(slowest / h) - 2) for h in times) / N  # 1 / B
    return 1 / (smoothness * max(8 * N, 10 * noise**2 / epsilon * inverses))


@ranges.validate("seconds.largest_delay")
def largest_delay(*, times: Sequence[float]) -> int:
    r"""Returns $\sum_j (\lfloor h_N/h_j \rfloor + 1) - 2$, a bound on the delays of asynchronous
    SGD.
    """
    slowest = max(times)
    return sum(math.floor(slowest / h) + 1 for h in times) - 2


def _fastest(gradients: float, times: Sequence[float], each: int) -> float:
    """Returns min_m (gradients + each m) / sum_{i <= m} 1 / h_i."""
    m = np.arange(1, len(times) + 1)
    return float(np.min((gradients + each * m) / np.cumsum(1 / np.sort(times))))


def _steps(gap: float, smoothness: float, epsilon: float) -> int:
    return sgd_steps(gap=gap, smoothness=smoothness, variance=epsilon, epsilon=epsilon)
