r"""The survey's switch as fitted by `calibrate`: latency and bandwidth from measured seconds, and
rounds predicted from them.

$t = \alpha + \beta b$ for each collective, and one switch for all of them, is fitted to the medians
over repeats by robust least squares of $\log((\alpha + \beta b) / t)$: a kilobyte has the same
weight as a megabyte, and a size that was measured while the machine was busy changes the fit
little. Intervals are percentiles of a bootstrap over sizes and repeats, so that they are wide if
the times do not lie on a line, even if the repeats agree.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

import dsgd
from dsgd import clusters, network, problems
from experiments.survey.calibrate_measuring import (
    COLLECTIVES,
    METHODS,
    Cost,
    Found,
    Parts,
    Times,
)

DRAWS = 200  # bootstrap samples
LEVEL = 0.95
BITS = 8  # bits of a byte
USUAL = 0.1  # relative error up to which the loss is quadratic
LEAST = 1e-4  # start of a coefficient that would be 0, relative to the shortest or longest time
SHORTEST = 1e-9  # seconds of a message if no latency is found
UNEQUAL = 1.1  # ratio of the seconds of a gradient above which machines are unequal
NUMBERS = ("compute", "per_sample", "memory_bandwidth", "memory")  # of a device, in a cluster file
# Seconds of a byte if the bandwidth is infinite, which float32 can represent as its inverse can
TINY = 4 * float(np.finfo(np.float32).tiny)


class Estimate(NamedTuple):
    """A number, and the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Estimate:
        """Returns the estimate multiplied by a factor."""
        return Estimate(*(factor * number for number in self))

    def inverse(self, factor: float) -> Estimate:
        """Returns a factor divided by the estimate."""
        value, high, low = (factor / number if number > 0 else np.inf for number in self)
        return Estimate(value, low, high)


class Line(NamedTuple):
    """A line: alpha, seconds, and beta, seconds per byte."""

    alpha: Estimate
    beta: Estimate


class Fit(NamedTuple):
    """The switch fitted to the collectives among some workers.

    Args:
        N: number of workers of a collective.
        sharing: number of collectives that take place at the same time and share the ports.
        times: the measurements.
        lines: latency and seconds per byte fitted to one collective alone, by name.
        switch: those fitted to all collectives.
    """

    N: int
    sharing: int
    times: Times
    lines: dict[str, Line]
    switch: Line

    def predict(self, name: str, size: float) -> float:
        """Returns the seconds of a collective on the fitted switch."""
        cost = cost_of(name, self.N, self.sharing)
        return (
            cost.latencies * self.switch.alpha.value + cost.vectors * size * self.switch.beta.value
        )

    @property
    def latency(self) -> float:
        """Returns the seconds of a message, of which those of each collective are multiples."""
        return max(self.switch.alpha.value, SHORTEST)

    @property
    def collectives(self) -> clusters.Collectives:
        """Returns latency and transfer time of each collective, relative to those of the switch."""
        alpha = self.switch.alpha._replace(value=self.latency)
        beta = self.switch.beta._replace(value=BITS / self.bandwidth)
        return compare(self.lines, Line(alpha, beta))

    @property
    def bandwidth(self) -> float:
        """Returns the bits per second of a port."""
        return BITS / max(self.switch.beta.value, TINY)


class Calibration(NamedTuple):
    """The measurements, and the switches fitted to them.

    Args:
        found: the measurements.
        whole: the fit of all workers.
        inside: that of the workers of a machine; None: there are not two levels.
        between: that of the machines.
    """

    found: Found
    whole: Fit
    inside: Fit | None = None
    between: Fit | None = None

    @property
    def levels(self) -> dict[str, Fit]:
        """Returns the fits by the workers among which they are."""
        fits = {"all workers": self.whole, "within machines": self.inside}
        fits["between machines"] = self.between
        return {name: fit for name, fit in fits.items() if fit is not None}

    @property
    def hardware(self) -> clusters.Hardware:
        """Returns the numbers of a cluster. Each machine is a group if the seconds of a gradient
        differ by more than `UNEQUAL`, and by more than those of a machine vary.
        """
        cards = self.between or self.whole
        kinds = [{name: getattr(device, name) for name in NUMBERS} for device in self.found.devices]
        groups: tuple[clusters.Group, ...] = ()
        seconds = [median(device.gradients) for device in self.found.devices]
        fastest, slowest = min(seconds), max(seconds)
        if slowest.low > fastest.high and slowest.value > UNEQUAL * fastest.value:
            groups = tuple(clusters.Group(self.found.size, **kind) for kind in kinds)
        return clusters.Hardware(
            cards.latency,
            cards.bandwidth,
            **_mean(kinds),
            groups=groups,
            nodes=self.inside
            and clusters.Nodes(self.found.size, self.inside.bandwidth, self.inside.latency),
            collectives=None if self.inside else self.whole.collectives,  # of one level only
            bucket=0.0,  # as XLA sends the arrays, and as `predict_round` counts
        )


def _mean(kinds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the mean of each number over the machines; None if a machine does not have it."""
    return {
        name: None
        if any(kind[name] is None for kind in kinds)
        else sum(kind[name] for kind in kinds) / len(kinds)
        for name in kinds[0]
    }


def cost_of(name: str, N: int, sharing: int) -> Cost:
    """Returns the cost of several collectives at the same time, whose messages share the ports: the
    messages of one step are sent together, with one latency.
    """
    cost = COLLECTIVES[name].cost(N)
    return cost._replace(vectors=sharing * cost.vectors)


def make_calibration(found: Found, N: int, seed: int) -> Calibration:
    """Fits the switch to each collective alone, and to all of them, at each level.

    Args:
        found: the measurements.
        N: number of workers.
        seed: seed of the intervals.
    """
    inside, between, size = found.inside, found.between, found.size
    return Calibration(
        found,
        fit_switch(found.collectives, N, seed=seed),
        None if inside is None else fit_switch(inside, size, seed=seed),
        None if between is None else fit_switch(between, N // size, size, seed),
    )


def fit_switch(times: Times, N: int, sharing: int = 1, seed: int = 0) -> Fit:
    """Fits the switch to each collective alone, and to all of them.

    Args:
        times, N, sharing: as in `Fit`.
        seed: seed of the intervals.
    """
    costs = {name: cost_of(name, N, sharing) for name in times}
    lines = {name: fit_line({name: each}, costs, seed) for name, each in times.items()}
    return Fit(N, sharing, times, lines, fit_line(times, costs, seed))


def fit_line(
    times: Mapping[str, Mapping[float, np.ndarray]], costs: Mapping[str, Cost], seed: int = 0
) -> Line:
    r"""Fits one latency l (`alpha`) and one transfer time of a byte (`beta`) to all collectives: a
    collective on b bytes takes $c\, l + v\, b\, \beta$.

    Args:
        times: seconds of every repeat, by collective and bytes of the vector; at least two sizes of
            each.
        costs: cost by collective.
        seed: seed of the bootstrap.

    Raises:
        ValueError: if there are fewer sizes, or times that are not positive.
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
    drawn = np.array([_solve(_resample(rows, rng)) for _ in range(DRAWS)])
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    alpha, beta = (Estimate(*map(float, numbers)) for numbers in zip(whole, low, high, strict=True))
    return Line(alpha, beta)


def compare(lines: Mapping[str, Line], common: Line) -> clusters.Collectives:
    """Returns latency and transfer time of each collective, relative to those of the switch.

    Args:
        lines: those fitted to each collective alone, by name.
        common: those fitted to all collectives.
    """
    names = {"collective-permute": "permute"}
    return clusters.Collectives(
        **{
            names.get(name, name.replace("-", "_")): (
                max(line.alpha.value, TINY) / common.alpha.value,
                max(line.beta.value, TINY) / common.beta.value,
            )
            for name, line in lines.items()
        }
    )


def median(seconds: np.ndarray, seed: int = 0) -> Estimate:
    """Returns the median of the repeats with its interval."""
    drawn = np.random.default_rng(seed).choice(seconds, (DRAWS, len(seconds)))
    low, high = np.quantile(np.median(drawn, axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(np.median(seconds)), float(low), float(high))


Row = tuple[float, float, np.ndarray]


def _resample(rows: list[Row], rng: np.random.Generator) -> list[Row]:
    """Draws as many rows with replacement, of at least two sizes, and then their repeats."""
    while True:
        chosen = rng.integers(len(rows), size=len(rows))
        if len({rows[i][1] for i in chosen}) > 1:
            return [(*rows[i][:2], rng.choice(rows[i][2], len(rows[i][2]))) for i in chosen]


def _solve(rows: list[Row]) -> np.ndarray:
    """Returns alpha and beta fitted to the medians; at least 0."""
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


def predict_round(name: str, parts: Parts, N: int, link: Line) -> float:
    """Returns the seconds of a round on the switch: the gradient, the codec, and the messages in
    the method's pattern, with a latency for each array.

    Args:
        name: name of the method.
        parts: the parts of its round; `seconds` is not used.
        N: number of workers.
        link: latency, and seconds per byte.
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
    """Returns the pattern of the method's one exchange in a round; it does not depend on the
    problem.
    """
    problem = problems.quadratic(np.ones((N, N)), np.zeros((N, N)))
    (exchange,) = dsgd.exchanges(METHODS[name].build(N), problem)
    return exchange.pattern


def crossovers(
    sizes: Sequence[float], first: Sequence[float], second: Sequence[float]
) -> list[float]:
    """Returns the sizes at which the second method becomes faster than the first, or slower again:
    the zeros of the logarithm of the ratio of their seconds, interpolated linearly between sizes.

    Args:
        sizes: increasing.
        first, second: seconds of both methods at these sizes.
    """
    ratio = np.log(np.asarray(second) / np.asarray(first))
    logs = np.log(np.asarray(sizes, float))
    return [
        float(np.exp(x - a * (y - x) / (b - a)))
        for (x, y), (a, b) in zip(itertools.pairwise(logs), itertools.pairwise(ratio), strict=True)
        if a * b < 0
    ]
