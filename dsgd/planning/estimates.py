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
    from scipy.stats import t  # noqa: PLC0415 (takes a second to import)

    mean = float(values.mean())
    if len(values) < 2 or not np.isfinite(values).all():
        return Estimate(mean, mean, mean)
    half = t.ppf((1 + LEVEL) / 2, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return Estimate(mean, float(mean - half), float(mean + half))
