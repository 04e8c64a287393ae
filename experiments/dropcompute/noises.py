"""Durations of micro-batches in DropCompute's experiments: distributions, and samplers for
clusters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import stats

from algorithms import dropcompute
from dsgd import clusters

ACCUMULATION = 0.45  # seconds of a micro-batch without noise (C.3)
MEAN = 0.225  # mean of C.3's noises
LEAST = ACCUMULATION / 10  # minimal seconds of a micro-batch with normal noise
# parameters of B.1: beta, the maximal delay in accumulations, and alpha
MOST, ALPHA = 5.5, 2 * math.exp(4.5)
DELAY = ACCUMULATION * math.exp(4) / ALPHA  # seconds of the median delay
# relative standard deviations, over workers and over one worker's micro-batches, without added
# noise
OWN_MEANS, WITHIN = 0.03, 0.05


class Noise(NamedTuple):
    """Seconds of a micro-batch.

    Args:
        name: name for tables.
        seconds: the seconds, as drawn by a cluster.
        below: P(t <= x), for an array x of seconds.
        longest: b, the maximum.
        mean, std: mean and standard deviation of t.
    """

    name: str
    seconds: clusters.Quantity
    below: Callable[[np.ndarray], np.ndarray]
    longest: float
    mean: float
    std: float


def add_noise(name: str, noise: clusters.Quantity, of: Any, longest: float = math.inf) -> Noise:
    """Returns 0.45 s plus a noise.

    Args:
        name: name for tables.
        noise: seconds, as drawn by a cluster.
        of: its distribution in scipy.
        longest: maximal seconds of the noise.
    """
    seconds = clusters.constant(ACCUMULATION) + noise
    return Noise(
        name,
        seconds,
        lambda x: of.cdf(x - ACCUMULATION),
        ACCUMULATION + longest,
        ACCUMULATION + of.mean(),
        of.std(),
    )


def delays() -> Noise:
    r"""Returns the delays of B.1: $0.45\,\epsilon$ s with $\epsilon = \min(Z / \alpha, \beta)$, Z
    from LogNormal(4, 1), $\alpha = 2 e^{4.5}$.
    """
    most, whole = ACCUMULATION * MOST, delays_unbounded()
    mean, square = (cut_moment(power, most) for power in (1, 2))
    return Noise(
        "B.1",
        clusters.constant(ACCUMULATION)
        + clusters.bounded(ACCUMULATION / ALPHA * clusters.lognormal(4.0, 1.0), most),
        lambda x: np.where(x >= ACCUMULATION + most, 1.0, whole.below(x)),
        ACCUMULATION + most,
        ACCUMULATION + mean,
        math.sqrt(square - mean**2),
    )


def delays_unbounded() -> Noise:
    """Returns the delays of B.1 without their bound."""
    return add_noise(
        "B.1, unbounded",
        ACCUMULATION / ALPHA * clusters.lognormal(4.0, 1.0),
        stats.lognorm(1.0, scale=DELAY),
    )


def cut_moment(power: int, most: float) -> float:
    r"""Returns $E \min(Z, \beta)^k$ of B.1: $z^k$ times the density of a lognormal distribution is
    proportional to that of one whose $\mu$ is larger by $k \sigma^2$.
    """
    of, moved = stats.lognorm(1.0, scale=DELAY), stats.lognorm(1.0, scale=DELAY * math.exp(power))
    return float(of.moment(power) * moved.cdf(most) + most**power * of.sf(most))


def lognormal(variance: float) -> Noise:
    """Returns the lognormal noise of C.3 with its mean and variance; the parameters printed there
    are these, rounded.
    """
    sigma = math.sqrt(math.log1p(variance / MEAN**2))
    mu = math.log(MEAN) - sigma**2 / 2
    return add_noise(
        f"LN({mu:.2f}, {sigma:.2f})",
        clusters.lognormal(mu, sigma),
        stats.lognorm(sigma, scale=math.exp(mu)),
    )


def exponential(rate: float) -> Noise:
    """Returns the exponential noise of C.3, with the printed rate, 1/s."""
    return add_noise(f"exp({rate})", clusters.exponential(1 / rate), stats.expon(scale=1 / rate))


def gamma(rate: float) -> Noise:
    """Returns the gamma noise of C.3, with the printed rate, 1/s; with its shape, 1, it is
    exponential.
    """
    return add_noise(
        f"gamma(1, {rate})", clusters.gamma(1.0, 1 / rate), stats.gamma(1.0, scale=1 / rate)
    )


def bernoulli() -> Noise:
    """Returns the Bernoulli noise of C.3: 0.45 s, or 0."""
    of = stats.rv_discrete(values=((0, ACCUMULATION), (0.5, 0.5)))()
    return add_noise(
        "0.45 Br(0.5)", clusters.bernoulli(0.5, ACCUMULATION), of, longest=ACCUMULATION
    )


def normal(variance: float = 0.05) -> Noise:
    """Returns the normal noise of C.3, with the sum of accumulation and noise truncated below at a
    tenth of an accumulation; one micro-batch in 400 would be shorter, and some negative.

    If micro-batches could take no time and T^c is 0, the best threshold would be next to 0, at
    which almost nothing is computed in almost no time (assumption C.3).
    """
    middle, sigma = ACCUMULATION + MEAN, math.sqrt(variance)
    of, least = stats.norm(middle, sigma), (LEAST - ACCUMULATION - MEAN) / sigma
    # moments of max(z, least) with z from N(0, 1)
    density, below = stats.norm.pdf(least), stats.norm.cdf(least)
    first, second = density + least * below, least**2 * below + (1 - below) + least * density
    seconds = clusters.constant(LEAST) + clusters.normal(middle - LEAST, sigma)
    name, mean, std = (
        f"N({MEAN:.3g}, {sigma:.2g}²)",
        float(middle + sigma * first),
        sigma * math.sqrt(second - first**2),
    )
    return Noise(name, seconds, lambda x: np.where(x < LEAST, 0.0, of.cdf(x)), math.inf, mean, std)


def natural(
    iterations: int, workers: int, micro_batches: int, *, alike: bool
) -> Callable[[int], np.ndarray]:
    """Returns the substitute for a cluster without added noise, as a function of a seed: lognormal
    micro-batches around each worker's own constant mean.

    Args:
        iterations, workers, micro_batches: I, N, M.
        alike: all workers have the same mean, and micro-batches have the sum of both variances.
    """
    sigma = math.sqrt(math.log1p(WITHIN**2 + (OWN_MEANS**2 if alike else 0)))
    draw = drawing(
        clusters.lognormal(math.log(ACCUMULATION) - sigma**2 / 2, sigma),
        iterations,
        workers,
        micro_batches,
    )

    def seconds(seed: int) -> np.ndarray:
        own = 1 + (0 if alike else OWN_MEANS) * np.random.default_rng(seed).standard_normal(workers)
        return own[:, None] * draw(seed)

    return seconds


def drawing(
    seconds: clusters.Quantity, iterations: int, workers: int, micro_batches: int
) -> Callable[[int], np.ndarray]:
    """Returns a function of a seed: seconds `[I, N, M]`, drawn as in a run on that cluster."""
    cluster = clusters.Cluster(seconds)
    return lambda seed: dropcompute.latencies(
        cluster, workers, micro_batches, iterations=iterations, key=jax.random.key(seed)
    )
