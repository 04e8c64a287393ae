"""Means over seeds with intervals."""

from __future__ import annotations

import functools
from collections.abc import Callable
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
    half = float(half_width(values, spacing))
    return Estimate(mean, mean - half, mean + half)


def positive_estimate(values: np.ndarray, spacing: np.ndarray) -> Estimate:
    """Returns the mean over seeds of numbers that are not negative. The ends of the interval are
    the mean divided and multiplied by exp(half the width of Student's interval, relative to it).

    The relative deviation is that of the mean to first order, whatever the distribution. That of
    the logarithms is not: if each of 30 runs takes 1 or, with probability 0.1, 2 rounds, its
    interval contains the mean in 79 % of the cases, this one in 95 %.

    Args:
        values: `[seeds]`, at least 0, or infinite.
        spacing: as in `estimate`.
    """
    if not (values > 0).all():
        value, low, high = estimate(values, spacing)
        return Estimate(value, max(low, 0.0), high)
    mean = float(values.mean())
    factor = float(np.exp(half_width(values, spacing) / mean))
    return Estimate(mean, mean / factor, mean * factor)


def with_restarts(cost: np.ndarray, spent: np.ndarray) -> np.ndarray:
    r"""Returns numbers whose mean over the seeds is the expected cost of reaching a target, if each
    run that does not reach it is followed by one with another seed,

    $$E = \frac{\sum_r c_r}{\sum_r s_r},$$

    where $s_r$ is 1 if run r reaches the target, else 0, and $c_r$ is its cost until then, or that
    of the whole run. The numbers are $E + (c_r - E s_r) / p$ with the share $p$ of the runs that
    reach the target, so that their standard error is that of E by the delta method. They are the
    costs if all runs reach the target, and infinite if none does.

    Args:
        cost: until the target is reached, infinite if it is not, `[..., seeds]`.
        spent: the same; and the cost of the whole run if it is not reached.

    Source: expected running time, Hansen, Auger, Finck and Ros, Real-parameter black-box
        optimization benchmarking 2010: experimental setup, INRIA RR-7215.
    """
    reached = np.isfinite(cost)
    share = reached.mean(axis=-1, keepdims=True)
    until = np.where(reached, cost, spent)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = until.mean(axis=-1, keepdims=True) / share
        found = mean + (until - mean * reached) / share
    return np.where(share == 1, cost, np.where(share > 0, found, np.inf))


def restart_estimate(cost: np.ndarray, spent: np.ndarray, spacing: np.ndarray) -> Estimate:
    """Returns the expected cost of `with_restarts`: the mean of the runs that reach the target, and
    that of the failed ones before the first of them. Both have intervals, the latter from that of
    the share; that of the sum has the root of the sum of their squares on each side, as if they
    were independent (Zou and Donner, Statistics in Medicine 27, 2008). If no run fails, it is the
    interval of the mean.

    Args:
        cost, spent: as in `with_restarts`, `[seeds]`.
        spacing: as in `estimate`.
    """
    reached = np.isfinite(cost)
    if reached.all() or not reached.any():
        return positive_estimate(cost, spacing)
    until, share = positive_estimate(cost[reached], spacing[reached]), share_estimate(reached)
    failed = float(spent[~reached].mean())
    lost, most, least = (failed * (1 / each - 1) for each in share)
    value = until.value + lost
    below = float(np.hypot(until.value - until.low, lost - least))
    above = float(np.hypot(until.high - until.value, most - lost))
    return Estimate(value, value - below, value + above)


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
    return bool(abs((one - other).mean()) <= half_width(one - other, spacing))


def group(count: int, differ: Callable[[int, int], bool]) -> list[list[int]]:
    """Returns rows in groups: the first row of a group is the first one that is in none of the
    groups before, and the others are those that do not differ from it. So each row differs from the
    first rows of the groups before its own.

    Args:
        count: number of rows, the best first.
        differ: numbers of two rows -> whether they differ.
    """
    left, found = list(range(count)), []
    while left:
        found.append([i for i in left if i == left[0] or not differ(left[0], i)])
        left = [i for i in left if i not in found[-1]]
    return found


def half_width(values: np.ndarray, spacing: np.ndarray) -> np.ndarray:
    """Returns half the width of Student's interval of means over seeds; 0 for one seed, or if a
    value is infinite.

    Args:
        values: `[..., seeds]`.
        spacing: as in `estimate`, `[..., seeds]`.
    """
    seeds = values.shape[-1]
    if seeds < 2:
        return np.zeros(values.shape[:-1])
    with np.errstate(invalid="ignore"):  # the deviation of infinite values is NaN
        deviation = np.maximum(values.std(axis=-1, ddof=1), spacing.mean(axis=-1) / np.sqrt(12))
    half = quantile(seeds - 1) * deviation / np.sqrt(seeds)
    return np.where(np.isfinite(values).all(axis=-1), half, 0.0)


@functools.cache
def quantile(freedom: int) -> float:
    """Returns the quantile of Student's distribution with these degrees of freedom."""
    from scipy.stats import t  # noqa: PLC0415 (takes a second to import)

    return float(t.ppf((1 + LEVEL) / 2, freedom))
