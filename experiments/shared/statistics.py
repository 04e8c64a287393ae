"""Statistics of histories for tables and figures: means over seeds, their errors, and costs to a
target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

import dsgd

COSTS: dict[str, Callable[[dict[str, np.ndarray]], np.ndarray]] = {
    "rounds": lambda history: history["step"].astype(float),
    "megabits sent and received per worker": lambda history: history["bits"].mean(axis=0) / 1e6,
    "simulated seconds": lambda history: history["clock"].mean(axis=0),
}
"""Quantities for the x axes of figures, `[records]`, from a history with seeds."""


def edge(value: float, grid: Sequence[float]) -> str:
    """Returns a star if the best value is at the edge of its grid, because a value outside may be
    better.
    """
    return "*" * (value in (min(grid), max(grid)))


def format_with_error(values: np.ndarray, digits: int = 1) -> str:
    """Formats the mean over seeds, `[seeds]`, with its standard error if there are several."""
    middle, error = dsgd.history.mean_and_error(values)
    return (
        f"{middle:.{digits}f} ± {error:.{digits}f}" if len(values) > 1 else f"{middle:.{digits}f}"
    )


def runs(seeds: int) -> str:
    """Returns the number of seeds, for titles."""
    return f"{seeds} seeds" if seeds > 1 else "one seed"


def errors(what: str, seeds: int) -> str:
    """Describes bands or error bars, for titles; one seed has none."""
    return f"{what}: standard error over {seeds} seeds" if seeds > 1 else runs(seeds)


def round_up(loss: float) -> float:
    """Rounds a positive number up to two digits."""
    unit = 10.0 ** (math.floor(math.log10(loss)) - 1)
    return math.ceil(loss / unit) * unit


def first_reaching(values: np.ndarray, target: float) -> int | None:
    """Returns the index of the first record whose mean over seeds is at most the target; None if it
    is never reached.
    """
    reached = np.flatnonzero(values.mean(axis=0) <= target)
    return int(reached[0]) if reached.size else None


def crossing(
    x: np.ndarray, losses: np.ndarray, target: float, never: float = math.nan
) -> np.ndarray:
    """Returns where each seed's loss is the target for the first time, linear between records.

    Args:
        x: of the records, `[seeds, records]`.
        losses: `[seeds, records]`.
        target: the loss.
        never: result of seeds that do not reach it.

    Returns:
        x, `[seeds]`.
    """
    found = np.full(len(losses), never)
    for seed, (at, loss) in enumerate(zip(x, losses, strict=True)):
        below = np.flatnonzero(loss <= target)
        if below.size:
            first, before = below[0], max(0, below[0] - 1)
            ends = loss[[first, before]]
            found[seed] = np.interp(target, ends, at[[first, before]])
    return found


def cost_to(history: dict[str, np.ndarray], target: float) -> list[str]:
    """Returns cells with the rounds, the megabits and the seconds to a loss, averaged over seeds;
    "-" if it is not reached.
    """
    at = first_reaching(history["loss"], target)
    if at is None:
        return ["-"] * len(COSTS)
    rounds, megabits, seconds = (cost(history)[at] for cost in COSTS.values())
    return [f"{rounds:,.0f}", f"{megabits:,.3g}", f"{seconds:,.3g}"]


def half_interval(values: np.ndarray) -> float:
    """Returns the half-width of the mean's 95 % interval, by Student's t, with one number per run;
    infinite for a single run.
    """
    if len(values) < 2:
        return math.inf
    return float(stats.t.ppf(0.975, len(values) - 1) * dsgd.history.mean_and_error(values)[1])


def format_with_interval(values: np.ndarray, digits: int = 2) -> str:
    """Formats the mean over runs, with the half-width of its 95 % interval if there are several."""
    half = half_interval(values)
    return f"{values.mean():.{digits}f}" + (f" ± {half:.{digits}f}" if math.isfinite(half) else "")
