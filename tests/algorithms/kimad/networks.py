"""A star in numpy: what messages take on links whose bandwidths change, and what monitors make of that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import brentq

from dsgd import clusters
from theory_checks.recursions.kimad import Budgets, Round


@dataclass(frozen=True)
class Sinusoids:
    r"""$f_n (\eta \sin^2(\theta t) + \delta)$ bits per second."""

    factors: tuple[float, ...]
    eta: float
    theta: float
    delta: float

    def amount(self, n: int, t: float, seconds: float) -> float:
        """Bits in so many seconds from t on."""
        waves = (np.sin(2 * self.theta * (t + seconds)) - np.sin(2 * self.theta * t)) / (4 * self.theta)
        return self.factors[n] * (self.eta * (seconds / 2 - waves) + self.delta * seconds)

    def seconds(self, n: int, t: float, bits: float) -> float:
        """Of a message that begins at t."""
        longest = bits / (self.factors[n] * self.delta)
        return float(brentq(lambda seconds: self.amount(n, t, seconds) - bits, 0, longest, xtol=1e-14)) if bits else 0.0

    def mean(self, n: int, t: float, seconds: float) -> float:
        """Bits per second in a window."""
        return self.amount(n, t, seconds) / seconds

    @property
    def quantity(self) -> clusters.Quantity:
        """The project's own."""
        found = clusters.sinusoid(self.eta, self.theta, self.delta)
        for n, factor in enumerate(self.factors):
            found = clusters.slow(found, [n], factor)
        return found


Monitor = Callable[[Sequence[np.ndarray]], np.ndarray]  # the rates of all rounds so far [N] -> estimates [N]


def last(rates: Sequence[np.ndarray]) -> np.ndarray:
    return rates[-1]


def exponential_average(weight: float) -> Monitor:
    def estimate(rates):
        average = rates[0]
        for rate in rates[1:]:
            average = (1 - weight) * average + weight * rate
        return average

    return estimate


def harmonic_mean(window: int) -> Monitor:
    return lambda rates: 1 / np.mean([1 / rate for rate in rates[-window:]], axis=0)


@dataclass
class Star:
    """A server with a link to each worker.

    Args:
        up, down: of the links.
        computing: seconds of each worker's gradient, `[N]`.
        latency: of a message.
        period: gradients from one message to the next.
        ready: when each worker was done with the last round.
        ends: when all were, after each round.
        rates_up, rates_down: bits per second of each round's messages.
        seconds_up: what those of the workers took.
    """

    up: Sinusoids
    down: Sinusoids
    computing: np.ndarray
    latency: float = 0.0
    period: int = 1
    ready: np.ndarray = field(default_factory=lambda: np.zeros(0))
    ends: list[float] = field(default_factory=lambda: [0.0])
    rates_up: list[np.ndarray] = field(default_factory=list)
    rates_down: list[np.ndarray] = field(default_factory=list)
    seconds_up: list[np.ndarray] = field(default_factory=list)

    @property
    def N(self) -> int:
        return len(self.computing)

    def carry(self, round: Round) -> None:
        """Workers compute and send; when the last message is there, the server sends to all."""
        begin = (self.ready if self.ready.size else np.zeros(self.N)) + self.period * self.computing
        up = np.array([self.up.seconds(n, begin[n], round.up[n]) for n in range(self.N)])
        answer = np.max(begin + self.latency + up) + self.latency
        down = np.array([self.down.seconds(n, answer, round.down) for n in range(self.N)])
        self.ready = answer + down
        self.ends.append(float(self.ready.max()))
        self.rates_up.append(round.up / up)
        self.rates_down.append(round.down / down)
        self.seconds_up.append(up)


def budgets(star: Star, monitor: Monitor, round_time: float, congestion: float, known: bool, shown: list) -> Budgets:
    """Equation 2, of what a monitor estimates.

    Args:
        monitor: of the rates of all rounds.
        known: whether the seconds of a gradient are known before the first one.
        shown: is appended the estimates of each round, up and down `[N]`.
    """

    def bits(rounds: Sequence[Round]) -> tuple[np.ndarray, float]:
        if rounds:
            star.carry(rounds[-1])
        computing = star.period * star.computing * (known or bool(rounds) or star.period > 1)
        up_seconds = (round_time - computing) / (1 + congestion)
        down_seconds = congestion * (round_time - computing.max()) / (1 + congestion)
        if not rounds:
            up = down = np.full(star.N, np.inf)
        else:
            up, down = monitor(star.rates_up), monitor(star.rates_down)
        shown.append((up, down))
        return up * up_seconds, min(down) * down_seconds

    return bits
