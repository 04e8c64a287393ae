"""Rates at tuned step sizes, and the iterations that they take to reach a given accuracy."""

from __future__ import annotations

import math
from typing import NamedTuple

from dsgd import checks

_MOST = 10**300  # what float64 holds


class Rate(NamedTuple):
    r"""A bound at its recommended step size, for every number of steps.

    $$ \frac1T \sum_t E|f'(x_t)|^2 \le \frac{a}{T} + \frac{b}{\sqrt T} + \frac{c}{T^{2/3}} $$

    Args:
        inverse: a, what exact gradients cost.
        root: b, what noise costs.
        two_thirds: c, what compression errors or heterogeneity cost.
    """

    inverse: float
    root: float = 0.0
    two_thirds: float = 0.0

    def __call__(self, steps: float) -> float:
        """The right side after so many steps."""
        return (
            self.inverse / steps + self.root / math.sqrt(steps) + self.two_thirds / steps ** (2 / 3)
        )

    def iterations(self, epsilon: float) -> int:
        r"""The least T at which the right side is at most epsilon:
        $O(a/\epsilon + b^2/\epsilon^2 + (c/\epsilon)^{3/2})$.

        Raises:
            ValueError: epsilon that is not positive, or parts of the rate that are not finite.
        """
        if not all(0 <= part < math.inf for part in self):
            raise ValueError(f"{self}: need finite parts, at least 0")
        if not checks.is_number(epsilon) or not 0 < epsilon < math.inf:
            raise ValueError(f"epsilon = {checks.shown(epsilon)}: need a positive number")
        high = 1
        while self(high) > epsilon:
            high *= 2
            if high > _MOST:
                raise ValueError(
                    f"epsilon = {epsilon}: need one that {self} reaches within {_MOST:.0e} "
                    "iterations"
                )
        low = high // 2  # not enough, or 0
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self(middle) <= epsilon else (middle, high)
        return high

    def terms(self, epsilon: float) -> tuple[float, float, float]:
        r"""$a/\epsilon$, $b^2/\epsilon^2$, $(c/\epsilon)^{3/2}$: what each part alone would
        take.
        """
        return (
            self.inverse / epsilon,
            (self.root / epsilon) ** 2,
            (self.two_thirds / epsilon) ** 1.5,
        )
