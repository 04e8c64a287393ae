"""Convergence rates at tuned step sizes, and the number of iterations to reach a given accuracy."""

from __future__ import annotations

import math
from typing import NamedTuple

from dsgd import checks

_MOST = 10**300  # within the range of float64


class Rate(NamedTuple):
    r"""A bound at its recommended step size, as a function of the number of steps.

    $$ \frac1T \sum_t E|f'(x_t)|^2 \le \frac{a}{T} + \frac{b}{\sqrt T} + \frac{c}{T^{2/3}} $$

    Args:
        inverse: a, the cost with exact gradients.
        root: b, the cost of noise.
        two_thirds: c, the cost of compression errors or heterogeneity.
    """

    inverse: float
    root: float = 0.0
    two_thirds: float = 0.0

    def __call__(self, steps: float) -> float:
        """Returns the right side after this number of steps."""
        return (
            self.inverse / steps + self.root / math.sqrt(steps) + self.two_thirds / steps ** (2 / 3)
        )

    def iterations(self, epsilon: float) -> int:
        r"""Returns the smallest T for which the right side is at most epsilon: $O(a/\epsilon +
        b^2/\epsilon^2 + (c/\epsilon)^{3/2})$.

        Raises:
            ValueError: if epsilon is not positive, or parts of the rate are not finite.
        """
        if not all(0 <= part < math.inf for part in self):
            raise ValueError(f"{self}: expected finite parts, at least 0")
        if not checks.is_number(epsilon) or not 0 < epsilon < math.inf:
            raise ValueError(
                f"iterations: epsilon = {checks.show(epsilon)}; expected a positive number"
            )
        high = 1
        while self(high) > epsilon:
            high *= 2
            if high > _MOST:
                raise ValueError(
                    f"iterations: epsilon = {epsilon}; expected one that {self} reaches within "
                    f"{_MOST:.0e} iterations"
                )
        low = high // 2  # not enough, or 0
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self(middle) <= epsilon else (middle, high)
        return high

    def terms(self, epsilon: float) -> tuple[float, float, float]:
        r"""Returns $a/\epsilon$, $b^2/\epsilon^2$ and $(c/\epsilon)^{3/2}$: the iterations that
        each part alone would take.
        """
        return (
            self.inverse / epsilon,
            (self.root / epsilon) ** 2,
            (self.two_thirds / epsilon) ** 1.5,
        )
