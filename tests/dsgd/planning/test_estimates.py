"""Intervals of means over seeds contain the mean as often as they say.

The distributions are known: the share is summed over all outcomes, or counted over draws and
compared with Student's, which is exact for normal numbers.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dsgd.planning.estimates import estimate, is_within_error, positive_estimate, share_estimate

SEEDS, DRAWS = 30, 2000
ERROR = 4 * np.sqrt(0.95 * 0.05 / DRAWS)  # four standard errors of a share


def coverage(function, draws, spacing, mean):
    """Returns the share of the draws, `[draws, seeds]`, whose interval contains the mean."""
    found = [function(each, np.full(each.shape, spacing)) for each in draws]
    return np.mean([one.low <= mean <= one.high for one in found])


@pytest.mark.parametrize("seeds", [3, 10])
def test_an_interval_of_normal_numbers_has_exactly_its_level(seeds):
    """A tenth of that would also be seen: with two thirds of the width, 0.79 of them contain it."""
    draws = np.random.default_rng(3).normal(7.0, 0.5, (DRAWS, seeds))
    assert coverage(estimate, draws, 0.0, 7.0) == pytest.approx(0.95, abs=ERROR)
    # exp(x) - 1 > x: the interval's ends are the mean times exp(+-x)
    assert coverage(positive_estimate, draws, 0.0, 7.0) == pytest.approx(0.95, abs=ERROR)


@pytest.mark.parametrize("rare", [0.1, 0.3, 0.9])
@pytest.mark.parametrize("function", [estimate, positive_estimate])
def test_runs_that_arrive_after_one_or_two_exchanges(function, rare):
    """Of 4 s each: summed over the number of late ones. Because of the spacing, shares of late ones
    near 0 and 1 are contained more often.
    """
    late = np.arange(SEEDS + 1)
    for spacing, most in ((0.0, 0.97), (4.0, 1.0)):
        found = [
            function(np.where(np.arange(SEEDS) < k, 8.0, 4.0), np.full(SEEDS, spacing))
            for k in late
        ]
        contains = [one.low <= 4 + 4 * rare <= one.high for one in found]
        assert 0.92 < stats.binom.pmf(late, SEEDS, rare)[contains].sum() < most


@pytest.mark.parametrize("most", [0.02, 0.1])
def test_equal_values_are_known_up_to_their_spacing(most):
    """If all 30 seeds arrive after 2 exchanges, the share of later ones may be up to a tenth."""
    found = positive_estimate(np.full(SEEDS, 8.0), np.full(SEEDS, 4.0))
    assert found.low < 8 + 4 * most < found.high
    assert not found.low < 8 + 4 * 0.15 < found.high


def test_geometric_and_exponential_seconds():
    """Skewed, so that Student's interval is no longer exact. The standard deviation of logarithms
    is 1.28 times the relative one of exponential numbers, and 0.7 times that of these geometric
    ones, with which the shares are 0.98 and 0.87.
    """
    rng = np.random.default_rng(4)
    exponential = rng.exponential(5.0, (DRAWS, SEEDS))
    assert 0.92 < coverage(positive_estimate, exponential, 0.0, 5.0) < 0.96
    geometric = rng.geometric(0.7, (DRAWS, SEEDS)).astype(float)
    assert 0.9 < coverage(positive_estimate, geometric, 0.1, 1 / 0.7) < 0.96


@pytest.mark.parametrize("truth", [0.03, 0.5, 0.8])
def test_shares_are_contained_at_least_as_often(truth):
    """Clopper and Pearson: at least 0.95, summed over all counts."""
    count = np.arange(SEEDS + 1)
    found = [share_estimate(np.arange(SEEDS) < k) for k in count]
    contains = [one.low <= truth <= one.high for one in found]
    assert 0.95 <= stats.binom.pmf(count, SEEDS, truth)[contains].sum() < 0.995


def test_equal_methods_are_tied_in_95_of_100_plans():
    """Seeds that both share cancel: the difference has the deviation 0.3, each of them 2."""
    rng = np.random.default_rng(5)
    seed = rng.normal(9.0, 2.0, (DRAWS, 2, SEEDS))[:, :1]
    one, other = np.moveaxis(seed + rng.normal(0, 0.3 / np.sqrt(2), (DRAWS, 2, SEEDS)), 1, 0)
    none = np.zeros(SEEDS)
    tied = np.mean([is_within_error(*pair, none) for pair in zip(one, other, strict=True)])
    assert tied == pytest.approx(0.95, abs=ERROR)
    # 0.15 is 2.7 standard errors of the difference
    apart = np.mean([is_within_error(x, y + 0.15, none) for x, y in zip(one, other, strict=True)])
    assert 0.1 < apart < 0.4
