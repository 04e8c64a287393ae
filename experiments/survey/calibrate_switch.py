r"""The survey's switch as `calibrate` finds it: latency and bandwidth that explain measured
seconds, and rounds predicted from them.

$t = \alpha + \beta b$ of each collective, and one switch for all of them, fitted to the medians
over repeats by robust least squares of $\log((\alpha + \beta b) / t)$: a kilobyte counts as much as
a megabyte, and a size at which the machine was busy with something else does not move the line far.
Intervals are percentiles of a bootstrap over sizes and repeats: a line that sizes do not lie on is
less sure than its repeats.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy import optimize

import dsgd
from dsgd import clusters, network, problems
from experiments.survey.calibrate_measuring import COLLECTIVES, METHODS, Cost, Found, Parts

DRAWS = 200  # of the bootstrap
LEVEL = 0.95
BITS = 8  # of a byte
USUAL = 0.1  # errors up to this, relative ones, count by their squares
LEAST = 1e-4  # with which a part begins that would be 0: of the shortest or the longest time
TINY = float(np.finfo(np.float32).tiny)  # seconds of a byte if bandwidth has no end


class Estimate(NamedTuple):
    """A number, and the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Estimate:
        """So many times it."""
        return Estimate(*(factor * number for number in self))

    def inverse(self, factor: float) -> Estimate:
        """So much over it."""
        value, high, low = (factor / number if number > 0 else np.inf for number in self)
        return Estimate(value, low, high)


class Line(NamedTuple):
    """alpha, seconds, and beta, seconds of a byte."""

    alpha: Estimate
    beta: Estimate


class Calibration(NamedTuple):
    """What was measured, and what the switch makes of it.

    Args:
        N: workers.
        found: what was measured.
        lines: latency and seconds of a byte that explain one collective alone, by name.
        switch: those that explain all of them.
    """

    N: int
    found: Found
    lines: dict[str, Line]
    switch: Line

    @property
    def cluster(self) -> clusters.Equal:
        """Of the fitted numbers."""
        bandwidth = BITS / max(self.switch.beta.value, TINY)
        return clusters.Equal(
            self.switch.alpha.value, bandwidth, self.found.compute, self.found.per_sample
        )

    def explained(self, name: str, size: float) -> float:
        """Seconds of a collective on the switch."""
        cost = COLLECTIVES[name].cost(self.N)
        return (
            cost.latencies * self.switch.alpha.value + cost.vectors * size * self.switch.beta.value
        )


def explain(found: Found, N: int, seed: int) -> Calibration:
    """The fits.

    Args:
        found: what was measured.
        N: workers.
        seed: of the intervals.
    """
    costs = {name: COLLECTIVES[name].cost(N) for name in found.collectives}
    lines = {name: switch({name: times}, costs, seed) for name, times in found.collectives.items()}
    return Calibration(N, found, lines, switch(found.collectives, costs, seed))


def switch(
    times: Mapping[str, Mapping[float, np.ndarray]], costs: Mapping[str, Cost], seed: int = 0
) -> Line:
    r"""One latency l (`alpha`) and one byte's transfer (`beta`) for all: a collective of b bytes
    takes $c\, l + v\, b\, \beta$.

    Args:
        times: seconds of every repeat, by collective and bytes of the vector; each of at least two
            sizes.
        costs: by collective.
        seed: of the bootstrap.

    Raises:
        ValueError: fewer sizes; times that are not positive.
    """
    for name, by_size in times.items():
        if len(by_size) < 2:
            raise ValueError(
                f"a line through the times of {len(by_size)} size{'s' * (len(by_size) != 1)} "
                f"({name}): expected at least two"
            )
        if not all((np.asarray(repeats) > 0).all() for repeats in by_size.values()):
            raise ValueError(f"times of {name}: expected seconds > 0")
    rows = [
        (costs[name].latencies, costs[name].vectors * size, np.asarray(repeats))
        for name, by_size in times.items()
        for size, repeats in by_size.items()
    ]
    whole = _solve(rows)
    rng = np.random.default_rng(seed)
    drawn = np.array([_solve(_resampled(rows, rng)) for _ in range(DRAWS)])
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    alpha, beta = (Estimate(*map(float, numbers)) for numbers in zip(whole, low, high, strict=True))
    return Line(alpha, beta)


def median(seconds: np.ndarray, seed: int = 0) -> Estimate:
    """Of repeats."""
    drawn = np.random.default_rng(seed).choice(seconds, (DRAWS, len(seconds)))
    low, high = np.quantile(np.median(drawn, axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(np.median(seconds)), float(low), float(high))


Row = tuple[float, float, np.ndarray]


def _resampled(rows: list[Row], rng: np.random.Generator) -> list[Row]:
    """As many rows, drawn with replacement, of at least two sizes; and so their repeats."""
    while True:
        chosen = rng.integers(len(rows), size=len(rows))
        if len({rows[i][1] for i in chosen}) > 1:
            return [(*rows[i][:2], rng.choice(rows[i][2], len(rows[i][2]))) for i in chosen]


def _solve(rows: list[Row]) -> np.ndarray:
    """alpha and beta through the medians; no less than 0."""
    medians = np.array([np.median(repeats) for *_, repeats in rows])
    matrix = np.array([row[:2] for row in rows])
    scale = (matrix / medians[:, None]).max(axis=0)
    first = optimize.nnls(matrix / scale / medians[:, None], np.ones(len(rows)))[0]

    def parts(x):
        return matrix * (np.exp(x) / scale)

    def residuals(x):
        return np.log(parts(x).sum(axis=1) / medians)

    def slopes(x):
        return parts(x) / parts(x).sum(axis=1, keepdims=True)

    start = np.log(np.maximum(first, LEAST))
    found = optimize.least_squares(residuals, start, slopes, loss="soft_l1", f_scale=USUAL)  # pyright: ignore[reportArgumentType]
    return np.exp(found.x) / scale


def predicted(name: str, parts: Parts, N: int, link: Line) -> float:
    """Seconds of a round on the switch: the gradient, the codec, and the messages in the method's
    pattern, a latency for each array.

    Args:
        name: of the method.
        parts: of which `seconds` are not looked at.
        N: workers.
        link: latency, and seconds of a byte.
    """
    pattern = _pattern(name, N)
    bandwidth = BITS / max(link.beta.value, TINY)
    latency = parts.arrays * link.alpha.value
    return (
        parts.compute
        + parts.codec
        + network.round_seconds(pattern, N, parts.bits, latency=latency, bandwidth=bandwidth)
    )


@cache
def _pattern(name: str, N: int) -> dsgd.Pattern:
    """Of the method's one exchange in a round; it does not depend on the problem."""
    problem = problems.quadratic(np.ones((N, N)), np.zeros((N, N)))
    (exchange,) = dsgd.exchanges(METHODS[name].build(N), problem)
    return exchange.pattern


def crossovers(
    sizes: Sequence[float], first: Sequence[float], second: Sequence[float]
) -> list[float]:
    """The sizes at which the second method becomes faster than the first, or slower again: where
    the logarithm of the ratio of their seconds, a line between two sizes, is 0.

    Args:
        sizes: rising.
        first, second: seconds of the two at these sizes.
    """
    ratio = np.log(np.asarray(second) / np.asarray(first))
    logs = np.log(np.asarray(sizes, float))
    return [
        float(np.exp(x - a * (y - x) / (b - a)))
        for (x, y), (a, b) in zip(itertools.pairwise(logs), itertools.pairwise(ratio), strict=True)
        if a * b < 0
    ]
