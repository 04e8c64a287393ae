"""What is measured, and at which models."""

from __future__ import annotations

from typing import Literal, get_args

Measure = Literal["gap", "gradient", "distance", "consensus"]
Over = Literal["last", "mean", "best"]
MEASURES, OVER = get_args(Measure), get_args(Over)


def rounds_of(measure: Measure, over: Over, steps: int, gap: bool, path: bool) -> set[int]:
    """Returns the rounds before which the functions are evaluated at the model.

    Args:
        measure, over: what is measured.
        steps: T.
        gap: whether the start is bounded by its gap.
        path: whether the heterogeneity along the path is bounded.
    """
    rounds = measured_rounds(over, steps) if measure in ("gap", "gradient") else []
    return {*rounds, *([0] if gap else []), *(range(steps) if path else [])}


def measured_rounds(over: Over, steps: int) -> list[int]:
    """Returns the rounds before which the measure is taken."""
    return {"last": [steps], "mean": list(range(steps)), "best": list(range(steps + 1))}[over]
