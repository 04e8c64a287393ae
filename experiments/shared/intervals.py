"""How sure a mean is."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

import dsgd


def half_interval(values: np.ndarray) -> float:
    """Half of the mean's 95 % interval, by Student's t, of one number a run; infinite of a single one."""
    if len(values) < 2:
        return math.inf
    return float(stats.t.ppf(0.975, len(values) - 1) * dsgd.mean_and_error(values)[1])


def within(values: np.ndarray, digits: int = 2) -> str:
    """The mean over runs, and half its 95 % interval where there are several."""
    half = half_interval(values)
    return f"{values.mean():.{digits}f}" + (f" ± {half:.{digits}f}" if math.isfinite(half) else "")
