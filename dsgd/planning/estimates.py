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
    """Returns the mean over seeds of numbers that are not negative. The ends of the interval are
    the mean divided and multiplied by the width that Student's interval has for their logarithms.

    Args:
        values: `[seeds]`, at least 0, or infinite.
    """
    mean = float(values.mean())
    factor = float(np.exp(_half(np.log(values)))) if (values > 0).all() else 1.0
    return Estimate(mean, mean / factor, mean * factor)


def _half(values: np.ndarray) -> float:
    from scipy.stats import t  # noqa: PLC0415 (takes a second to import)

    if len(values) < 2 or not np.isfinite(values).all():
        return 0.0
    error = values.std(ddof=1) / np.sqrt(len(values))
    return float(t.ppf((1 + LEVEL) / 2, len(values) - 1) * error)
