"""Means over seeds with intervals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

LEVEL = 0.95


class Estimate(NamedTuple):
    """A mean, and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


def estimate(values: np.ndarray) -> Estimate:
    """Returns the mean over seeds with Student's interval; for one seed without an interval.

    Args:
        values: `[seeds]`.
    """
    mean = float(values.mean())
    half = _half(values)
    return Estimate(mean, mean - half, mean + half)


def positive_estimate(values: np.ndarray) -> Estimate:
    """Returns the mean over seeds of positive numbers, with an interval of the same width as
    Student's interval of their logarithms.

    Args:
        values: `[seeds]`, above 0 or infinite.
    """
    mean = float(values.mean())
    with np.errstate(divide="ignore"):  # a target that is reached before the first round
        factor = float(np.exp(_half(np.log(values))))
    return Estimate(mean, mean / factor, mean * factor)


def _half(values: np.ndarray) -> float:
    from scipy.stats import t  # noqa: PLC0415 (takes a second to import)

    if len(values) < 2 or not np.isfinite(values).all():
        return 0.0
    error = values.std(ddof=1) / np.sqrt(len(values))
    return float(t.ppf((1 + LEVEL) / 2, len(values) - 1) * error)
