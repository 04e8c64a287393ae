"""Means over seeds with intervals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

LEVEL = 0.95


class Estimate(NamedTuple):
    """An estimate, and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


def estimate(values: np.ndarray, spacing: np.ndarray) -> Estimate:
    """Returns the mean over seeds with Student's interval; without an interval for one seed, or if
    a value is infinite.

    A value is known up to its spacing, so the seeds have at least the standard deviation of a
    uniform distribution over it: values of few seeds that are equal do not have an interval of
    length zero.

    Args:
        values: `[seeds]`.
        spacing: distance of each value from that of the record before, `[seeds]`.
    """
    mean = float(values.mean())
    half = _half(values, spacing)
    return Estimate(mean, mean - half, mean + half)


def positive_estimate(values: np.ndarray, spacing: np.ndarray) -> Estimate:
    """Returns the mean over seeds of numbers that are not negative. The ends of the interval are
    the mean divided and multiplied by the width that Student's interval has for their logarithms.

    Args:
        values: `[seeds]`, at least 0, or infinite.
        spacing: as in `estimate`.
    """
    if not (values > 0).all():
        value, low, high = estimate(values, spacing)
        return Estimate(value, max(low, 0.0), high)
    mean = float(values.mean())
    factor = float(np.exp(_half(np.log(values), spacing / values)))
    return Estimate(mean, mean / factor, mean * factor)


def share_estimate(happened: np.ndarray) -> Estimate:
    """Returns the share of seeds for which an event happened, with the interval of Clopper and
    Pearson.

    Args:
        happened: `[seeds]`.
    """
    from scipy.stats import beta  # noqa: PLC0415 (takes a second to import)

    count, seeds, tail = int(happened.sum()), len(happened), (1 - LEVEL) / 2
    low = beta.ppf(tail, count, seeds - count + 1) if count else 0.0
    high = beta.ppf(1 - tail, count + 1, seeds - count) if count < seeds else 1.0
    return Estimate(count / seeds, float(low), float(high))


def is_within_error(one: np.ndarray, other: np.ndarray, spacing: np.ndarray) -> bool:
    """Returns whether the interval of the mean difference of two results contains 0.

    Args:
        one, other: results with the same seeds, `[seeds]`.
        spacing: as in `estimate`, of the differences.
    """
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return False
    return bool(abs((one - other).mean()) <= _half(one - other, spacing))


def _half(values: np.ndarray, spacing: np.ndarray) -> float:
    from scipy.stats import t  # noqa: PLC0415 (takes a second to import)

    if len(values) < 2 or not np.isfinite(values).all():
        return 0.0
    deviation = max(values.std(ddof=1), spacing.mean() / np.sqrt(12))
    return float(t.ppf((1 + LEVEL) / 2, len(values) - 1) * deviation / np.sqrt(len(values)))
