"""Links with changing bandwidths, in numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from dsgd import clusters


@dataclass(frozen=True)
class Sinusoids:
    r"""$f_n (\eta \sin^2(\theta t) + \delta)$ bits per second."""

    factors: tuple[float, ...]
    eta: float
    theta: float
    delta: float

    def amount(self, n: int, t: float, seconds: float) -> float:
        """Returns the bits sent in the given seconds from t on."""
        waves = (np.sin(2 * self.theta * (t + seconds)) - np.sin(2 * self.theta * t)) / (
            4 * self.theta
        )
        return self.factors[n] * (self.eta * (seconds / 2 - waves) + self.delta * seconds)

    def seconds(self, n: int, t: float, bits: float) -> float:
        """Returns the seconds of a message that starts at t."""
        longest = bits / (self.factors[n] * self.delta)
        return (
            float(brentq(lambda seconds: self.amount(n, t, seconds) - bits, 0, longest, xtol=1e-14))
            if bits
            else 0.0
        )

    def mean(self, n: int, t: float, seconds: float) -> float:
        """Returns the mean bandwidth in a window, bits per second."""
        return self.amount(n, t, seconds) / seconds

    @property
    def quantity(self) -> clusters.Quantity:
        """Returns the same bandwidth as a quantity of `dsgd.clusters`."""
        found = clusters.sinusoid(self.eta, self.theta, self.delta)
        for n, factor in enumerate(self.factors):
            found = clusters.slow(found, [n], factor)
        return found
