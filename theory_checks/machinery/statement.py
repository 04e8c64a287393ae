"""What a statement is: hypotheses that can fail by name, instances drawn within them, and what
comes of one instance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from dsgd.base import Algorithm

Method = Callable[..., Algorithm]  # as a user calls it: `algorithms.sgd`

STANDARD_ERRORS = 5.0  # that a measurement with sampling noise may be above its bound
ROUNDING = 1e-9  # that any measurement may be, relative to the bound


class Condition(NamedTuple):
    """One hypothesis, of one instance.

    Args:
        text: as in the theorem, `gamma <= 1/L`.
        holds: whether it does.
        given: the numbers, `gamma = 0.3, 1/L = 0.25`.
    """

    text: str
    holds: bool
    given: str


def need(where: str, conditions: Sequence[Condition]) -> None:
    """Raises a ValueError that names the first hypothesis that fails, where one does."""
    for condition in conditions:
        if not condition.holds:
            raise ValueError(f"{where}: {condition.given}: need {condition.text}")


class Outcome(NamedTuple):
    """What came of one instance.

    Args:
        measured: the left side.
        bound: the right side.
        error: standard error of the left side; 0 where it is exact.
        case: the instance in words.
        equality: the statement is an equation.
        scale: what rounding is relative to, where the sides are small differences of large numbers.
    """

    measured: float
    bound: float
    error: float = 0.0
    case: str = ""
    equality: bool = False
    scale: float = 0.0

    @property
    def ratio(self) -> float:
        """measured / bound; 0 where both are 0, up to rounding."""
        if abs(self.bound) <= ROUNDING * self.scale:
            return 0.0 if self.holds else np.inf
        return self.measured / self.bound

    @property
    def deviation(self) -> float:
        """Of an equation: how far the sides are apart, in standard errors where there are any, else
        relative to their size.
        """
        size = abs(self.bound) + self.scale
        return abs(self.measured - self.bound) / (
            self.error + ROUNDING * size / STANDARD_ERRORS if self.error else size or 1.0
        )

    @property
    def badness(self) -> tuple[bool, float]:
        """By which the worst of several is found; what is not finite before all others."""
        size = (
            self.deviation * (1 if self.error else STANDARD_ERRORS / ROUNDING)
            if self.equality
            else self.ratio
        )
        return not self.holds, math.inf if math.isnan(size) else size

    @property
    def holds(self) -> bool:
        """Whether it does, up to rounding and `STANDARD_ERRORS` of sampling noise."""
        room = ROUNDING * (abs(self.bound) + self.scale) + STANDARD_ERRORS * self.error
        if not np.isfinite([self.measured, self.bound, self.error]).all():
            return False
        return (
            abs(self.measured - self.bound) <= room
            if self.equality
            else self.measured <= self.bound + room
        )


class Draws(Protocol):
    """Where instances come from: random numbers, or a property test's."""

    def integer(self, low: int, high: int) -> int:
        """Between low and high, both included."""
        ...

    def real(self, low: float, high: float) -> float:
        """Between low and high."""
        ...

    def choice(self, options: Sequence[Any]) -> Any:
        """One of them."""
        ...


class Statement(NamedTuple):
    """A theorem, lemma or fact that is held against the code.

    Args:
        name: what it is about.
        reference: where it is from.
        hypotheses: in words, for the table.
        trial: draws -> outcomes of one or several random instances within the hypotheses.
        extremes: instances built to come as near to the bound as any does, or on which a known
            mistake shows; each a function without arguments, so that one that raises does not hide
            the others.
    """

    name: str
    reference: str
    hypotheses: str
    trial: Callable[[Draws], list[Outcome]]
    extremes: Sequence[Callable[[], list[Outcome]]] = ()


class Misprint(NamedTuple):
    """A formula that fails as printed.

    Args:
        reference: where it is.
        printed, corrected: the two in words.
        example: the instance.
        compare: () -> what the printed formula gives on it, and what the corrected one does, beside
            the left side.
    """

    reference: str
    printed: str
    corrected: str
    example: str
    compare: Callable[[], tuple[Outcome, Outcome]]


def both(
    measured: float, printed: float, corrected: float, *, equality: bool = False
) -> tuple[Outcome, Outcome]:
    """What `Misprint.compare` gives, of one left side."""
    return Outcome(measured, printed, equality=equality), Outcome(
        measured, corrected, equality=equality
    )
