"""From random instances to hard ones: what a trial has drawn is changed a little, so long as it
comes nearer to the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from theory_checks.machinery.statement import Draws, Outcome

# the share of the unit interval that stands for each end of a range: bounds are met there
_EDGES = 0.1
_NEAR = 0.1  # standard deviation of a change, on the unit interval


class Tape:
    """`Draws` that are made of numbers in [0, 1], which can be played again. Every fifth real
    number is an end of its range.

    Args:
        rng: draws what comes after `numbers`, and the changes.
        numbers: of an earlier tape, played first.
    """

    def __init__(self, rng: np.random.Generator, numbers: Sequence[float] = ()) -> None:
        self._rng, self._old = rng, list(numbers)
        self.numbers: list[float] = []

    def _next(self) -> float:
        at = len(self.numbers)
        self.numbers.append(self._old[at] if at < len(self._old) else float(self._rng.uniform()))
        return self.numbers[-1]

    def integer(self, low: int, high: int) -> int:
        return min(high, low + int(self._next() * (high - low + 1)))

    def real(self, low: float, high: float) -> float:
        share = (self._next() - _EDGES) / (1 - 2 * _EDGES)
        return float(low + min(1.0, max(0.0, share)) * (high - low))

    def choice(self, options: Sequence[Any]) -> Any:
        return options[self.integer(0, len(options) - 1)]

    def changed(self) -> Tape:
        """One like it: one or two of its numbers are others, near the old ones or anywhere."""
        numbers = list(self.numbers)
        for place in (
            self._rng.integers(len(numbers), size=self._rng.integers(1, 3)) if numbers else ()
        ):
            near = self._rng.uniform() < 0.5
            numbers[place] = float(
                np.clip(numbers[place] + _NEAR * self._rng.normal(), 0, 1)
                if near
                else self._rng.uniform()
            )
        return Tape(self._rng, numbers)


def climb(
    trial: Callable[[Draws], list[Outcome]], tried: Sequence[tuple[Tape, list[Outcome]]], steps: int
) -> list[Outcome]:
    """Goes on from the worst of some instances.

    Args:
        trial: draws -> outcomes, which does not raise.
        tried: what it has drawn, and what came of it.
        steps: how many more instances.

    Returns:
        The outcomes of all steps.
    """
    found: list[Outcome] = []
    best, height = max(
        ((tape, _badness(outcomes)) for tape, outcomes in tried), key=lambda one: one[1]
    )
    for _ in range(steps):
        tape = best.changed()
        outcomes = trial(tape)
        found.extend(outcomes)
        if _badness(outcomes) >= height:  # equal ones, too: to leave a plateau
            best, height = tape, _badness(outcomes)
    return found


def _badness(outcomes: Sequence[Outcome]) -> tuple[bool, float]:
    return max(outcome.badness for outcome in outcomes)
