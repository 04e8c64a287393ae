"""Statements: hypotheses with names, random instances that satisfy them, and the outcome of an
instance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from dsgd.base import Algorithm

Method = Callable[..., Algorithm]  # as a user calls it: `algorithms.sgd`

STANDARD_ERRORS = 5.0  # by which a measurement with sampling noise may exceed its bound
ROUNDING = 1e-9  # by which any measurement may exceed its bound, relative to the bound


class Condition(NamedTuple):
    """A hypothesis, evaluated for an instance.

    Args:
        text: as in the theorem, `gamma <= 1/L`.
        holds: whether it holds.
        given: the numbers, `gamma = 0.3, 1/L = 0.25`.
    """

    text: str
    holds: bool
    given: str


def need(where: str, conditions: Sequence[Condition]) -> None:
    """Raises a ValueError that names the first hypothesis that does not hold, if there is one."""
    for condition in conditions:
        if not condition.holds:
            raise ValueError(f"{where}: {condition.given}; expected {condition.text}")


class Outcome(NamedTuple):
    """The outcome of an instance.

    Args:
        measured: the left side.
        bound: the right side.
        error: standard error of the left side; 0 if it is exact.
        case: the instance in words.
        equality: whether the statement is an equation.
        scale: size of the numbers that rounding is relative to, if the sides are small differences
            of large numbers.
    """

    measured: float
    bound: float
    error: float = 0.0
    case: str = ""
    equality: bool = False
    scale: float = 0.0

    @property
    def ratio(self) -> float:
        """Returns measured / bound; 0 if both are 0, up to rounding."""
        if abs(self.bound) <= ROUNDING * self.scale:
            return 0.0 if self.holds else np.inf
        return self.measured / self.bound

    @property
    def deviation(self) -> float:
        """Returns the difference of both sides of an equation: in standard errors if the measured
        side has a standard error, otherwise relative to the size of the bound.
        """
        size = abs(self.bound) + self.scale
        return abs(self.measured - self.bound) / (
            self.error + ROUNDING * size / STANDARD_ERRORS if self.error else size or 1.0
        )

    @property
    def badness(self) -> tuple[bool, float]:
        """Returns the key by which outcomes are sorted, largest for the worst; outcomes that do not
        hold or are not finite rank first.
        """
        size = (
            self.deviation * (1 if self.error else STANDARD_ERRORS / ROUNDING)
            if self.equality
            else self.ratio
        )
        return not self.holds, math.inf if math.isnan(size) else size

    @property
    def holds(self) -> bool:
        """Whether the statement holds, up to rounding and `STANDARD_ERRORS` of sampling noise."""
        room = ROUNDING * (abs(self.bound) + self.scale) + STANDARD_ERRORS * self.error
        if not np.isfinite([self.measured, self.bound, self.error]).all():
            return False
        return (
            abs(self.measured - self.bound) <= room
            if self.equality
            else self.measured <= self.bound + room
        )


class Draws(Protocol):
    """Source of the random numbers of instances: a generator, or a property test."""

    def integer(self, low: int, high: int) -> int:
        """Returns an integer from low to high, both included."""
        ...

    def real(self, low: float, high: float) -> float:
        """Returns a real number from low to high."""
        ...

    def choice(self, options: Sequence[Any]) -> Any:
        """Returns one of the options."""
        ...


class Statement(NamedTuple):
    """A theorem, lemma or fact that is checked against the code.

    Args:
        name: its subject.
        reference: its source.
        hypotheses: in words, for the table.
        trial: draws -> outcomes of one or several random instances that satisfy the hypotheses.
        extremes: instances built to come as near to the bound as possible, or to reveal a known
            mistake; each is a function without arguments, so that one that raises does not hide the
            others.
    """

    name: str
    reference: str
    hypotheses: str
    trial: Callable[[Draws], list[Outcome]]
    extremes: Sequence[Callable[[], list[Outcome]]] = ()


class Misprint(NamedTuple):
    """A formula that fails as printed.

    Args:
        reference: where it is printed.
        printed, corrected: the two formulas in words.
        example: the instance.
        compare: () -> the outcomes of the printed and of the corrected formula on it, both with the
            same left side.
    """

    reference: str
    printed: str
    corrected: str
    example: str
    compare: Callable[[], tuple[Outcome, Outcome]]


def both(
    measured: float, printed: float, corrected: float, *, equality: bool = False
) -> tuple[Outcome, Outcome]:
    """Returns the result of `Misprint.compare` for one left side."""
    return Outcome(measured, printed, equality=equality), Outcome(
        measured, corrected, equality=equality
    )
