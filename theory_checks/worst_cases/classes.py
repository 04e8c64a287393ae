"""The classes of functions for which worst cases are computed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dsgd import checks
from theory_checks.worst_cases.measures import Measure

Where = Literal["optimum", "path", "average"]


@checks.arguments
@dataclass(frozen=True)
class Smooth:
    r"""Smooth functions $f_1, \dots, f_N$ with $f = \frac1N \sum_n f_n$, a start and a bound on
    their heterogeneity.

    Each $f_n$ is L-smooth, and $f_n - \frac{\mu}{2} |x|^2$ is convex. With $\mu = -L$ this is every
    L-smooth function. In the convex classes, $\mu \ge 0$, $x^\star$ is a minimizer of f; in the
    others, $f^\star = \inf f$.

    Args:
        L: smoothness, positive.
        mu: strong convexity, in [-L, L).
        distance: D, with $|x_0 - x^\star| \le D$, for convex classes; None: no bound.
        gap: $\Delta$, with $f(x_0) - f^\star \le \Delta$; None: no bound. It is sufficient alone if
            mu is not 0, and required if mu is negative.
        heterogeneity: $\varsigma$, at least 0, which bounds the squared deviation of the workers'
            gradients $h(x) = \frac1N \sum_n |f_n'(x) - f'(x)|^2$. With 0 at the optimum, all $f_n$
            have a common minimizer. It has no effect with one worker.
        where: where the heterogeneity is bounded. "optimum": $h(x^\star) \le \varsigma^2$, for
            convex classes. "path": $h(\bar x_t) \le \varsigma^2$ at the models before each round,
            and at $x^\star$ in convex classes. "average": $\frac1T \sum_t h(\bar x_t) \le
            \varsigma^2$.

    Raises:
        ValueError: if a number is out of range, or neither bound on the start makes the worst case
            finite.
    """

    L: float
    mu: float = 0.0
    distance: float | None = None
    gap: float | None = None
    heterogeneity: float = 0.0
    where: Where = "optimum"

    def __post_init__(self) -> None:
        checks.number("Smooth: L", self.L, "(0, inf)")
        if not -self.L <= self.mu < self.L:
            raise ValueError(
                f"Smooth: mu = {self.mu}; expected a number in [-L, L) = [{-self.L}, {self.L})"
            )
        checks.number("Smooth: heterogeneity", self.heterogeneity, "[0, inf)")
        for name in ("distance", "gap"):
            if getattr(self, name) is not None:
                checks.number(f"Smooth: {name}", getattr(self, name), "(0, inf)")
        if self.where not in ("optimum", "path", "average"):
            raise ValueError(
                f"Smooth: where = {self.where!r}; expected 'optimum', 'path' or 'average'"
            )
        if self.mu < 0 and self.distance is not None:
            raise ValueError(
                f"Smooth: distance = {self.distance} with mu = {self.mu}; functions that are not "
                "convex need not have a minimizer; expected distance=None and a gap"
            )
        if self.gap is None and (self.mu < 0 or self.distance is None):
            expected = "gap=1.0" if self.mu < 0 else "distance=1.0 or gap=1.0"
            raise ValueError(f"Smooth: no bound on the start; expected {expected}, for example")
        if self.mu == 0 and self.distance is None:
            raise ValueError(
                "Smooth: with mu = 0 a gap does not bound the distance to a minimizer, so that the "
                "worst case may be infinite; expected distance=1.0, for example"
            )

    @property
    def convex(self) -> bool:
        """Whether all functions are convex."""
        return self.mu >= 0

    def unit(self, measure: Measure) -> float:
        """Returns the size that a measure has at the start, up to a constant."""
        length = {"gap": self.L * self.radius**2, "gradient": (self.L * self.radius) ** 2}
        return length.get(measure, self.radius**2)

    @property
    def radius(self) -> float:
        r"""Returns a bound on $|x_0 - x^\star|$; for functions that are not convex, the length
        $\sqrt{2 \Delta / L}$, which serves as unit.
        """
        from_gap = math.inf
        if self.gap is not None:
            from_gap = math.sqrt(2 * self.gap / (self.mu if self.mu > 0 else self.L))
        if self.mu <= 0 and self.distance is not None:
            return self.distance
        return min(self.distance or math.inf, from_gap)
