"""Search for hard instances: the numbers drawn by a trial are perturbed as long as the instance
comes closer to the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from theory_checks.machinery.statement import Draws, Outcome

# Share of the unit interval that is mapped to each end of a range, where bounds are often tight.
_EDGES = 0.1
_NEAR = 0.1  # standard deviation of a perturbation, on the unit interval


class ReplayableDraws:
    """`Draws` from a recorded sequence of numbers in [0, 1], which can be replayed. A fifth of the
    real numbers are ends of their range.

    Args:
        rng: generator of the numbers that follow `numbers`, and of perturbations.
        numbers: the numbers of an earlier tape, which are replayed first.
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

    def perturb(self) -> ReplayableDraws:
        """Returns a tape with one or two numbers replaced, by near ones or by random ones."""
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
        return ReplayableDraws(self._rng, numbers)


def hill_climb(
    trial: Callable[[Draws], list[Outcome]],
    tried: Sequence[tuple[ReplayableDraws, list[Outcome]]],
    steps: int,
) -> list[Outcome]:
    """Perturbs the worst of some instances repeatedly.

    Args:
        trial: draws -> outcomes; it must not raise.
        tried: instances, as tapes with their outcomes.
        steps: number of further instances.

    Returns:
        The outcomes of all steps.
    """
    found: list[Outcome] = []
    best, height = max(
        ((tape, _badness(outcomes)) for tape, outcomes in tried), key=lambda one: one[1]
    )
    for _ in range(steps):
        tape = best.perturb()
        outcomes = trial(tape)
        found.extend(outcomes)
        if _badness(outcomes) >= height:  # ties are accepted, to leave plateaus
            best, height = tape, _badness(outcomes)
    return found


def _badness(outcomes: Sequence[Outcome]) -> tuple[bool, float]:
    return max(outcome.badness for outcome in outcomes)
