"""The terms of a bound, from which its recommended step size and its convergence rate follow, and
the number of iterations to reach a given accuracy.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from dsgd import checks
from theory_checks.machinery import ranges

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


class Terms(NamedTuple):
    r"""The terms of a theorem's bound. At the recommended step size the bound is at most

    $$ f \Big( \frac{a}{\gamma T} + w \gamma b + \gamma^2 c \Big), \qquad \frac1\gamma = s +
    \sqrt{\frac{bT}{a}} + \Big( \frac{2cT}{a} \Big)^{1/3}, $$

    where each part of $1/\gamma$ belongs to the step size that is best for one of the terms.

    Args:
        start: a, the cost of the distance from the start.
        inverse: s, the inverse of the step size without noise and drift.
        noise: b.
        drift: c, of compression errors or of disagreement.
        share: w; it is below 1 if the bound counts less of the noise than b.
        factor: f.
    """

    start: float
    inverse: float
    noise: float = 0.0
    drift: float = 0.0
    share: float = 1.0
    factor: float = 1.0

    def step_size(self, steps: float) -> float:
        r"""Returns the recommended step size: $\frac1\gamma = s + \sqrt{\frac{bT}{a}} + \big(
        \frac{2cT}{a} \big)^{1/3}$.
        """
        time = steps / self.start
        return 1 / (
            self.inverse + math.sqrt(self.noise * time) + (2 * self.drift * time) ** (1 / 3)
        )

    def rate(self) -> Rate:
        r"""Returns the rate at the recommended step size: $f \big( \frac{as}T + (1 + w)
        \sqrt{\frac{ab}T} + 3 c^{1/3} \big( \frac{a}{2T} \big)^{2/3} \big)$.
        """
        a, f = self.start, self.factor
        return Rate(
            f * a * self.inverse,
            f * (1 + self.share) * math.sqrt(a * self.noise),
            f * 3 * self.drift ** (1 / 3) * (a / 2) ** (2 / 3),
        )

    def total(self, learning_rate: float, steps: float) -> float:
        r"""Returns $\frac{a}{\gamma T} + w \gamma b + \gamma^2 c$ at any step size."""
        return (
            self.start / (learning_rate * steps)
            + self.share * learning_rate * self.noise
            + learning_rate**2 * self.drift
        )

    def bound_of_sgd(self, learning_rate: float, steps: float) -> float:
        r"""Returns $\frac{1}{2 - \gamma s} \big( \frac{a}{\gamma T} + \gamma b \big)$, the bound
        for steps along unbiased gradients. At $1/\gamma = s + q$, $q = \sqrt{bT/a}$, it is at most
        $\frac{a}{\gamma T}$, because $\frac{(s + q)^2 + q^2}{s + 2q} \le s + q$.
        """
        total = self._replace(share=1.0).total(learning_rate, steps)
        return total / (2 - learning_rate * self.inverse)


def step_size_and_rate(
    where: str, terms: Callable[..., Terms], time: str = "steps"
) -> tuple[Callable[..., float], Callable[..., Rate]]:
    """Returns the functions `step_size` and `rate` of a theorem.

    Args:
        where: beginning of the messages about invalid arguments.
        terms: the theorem's terms as a function of numbers, which are the arguments of `rate`.
        time: name of the number of steps, a further argument of `step_size`.
    """
    signature = inspect.signature(terms)
    numbers = [*signature.parameters.values()]
    steps = inspect.Parameter(time, inspect.Parameter.KEYWORD_ONLY, annotation="float")

    def step_size(**given: Any) -> float:
        T = given.pop(time)
        return terms(**given).step_size(T)

    def rate(**given: Any) -> Rate:
        return terms(**given).rate()

    found = []
    for function, parameters, returned in (
        (step_size, [*numbers, steps], "float"),
        (rate, numbers, "Rate"),
    ):
        name = function.__name__
        function.__doc__ = getattr(Terms, name).__doc__
        function.__signature__ = signature.replace(
            parameters=parameters, return_annotation=returned
        )
        found.append(ranges.validate(f"{where}.{name}")(function))
    return found[0], found[1]
