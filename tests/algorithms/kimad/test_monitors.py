"""Estimates of bandwidths from the rates of messages, compared with lists of rates; links without
messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms import kimad

N = 3
# rates of all previous rounds -> the estimate
Monitor = Callable[[Sequence[np.ndarray]], np.ndarray]


def last(rates: Sequence[np.ndarray]) -> np.ndarray:
    return rates[-1]


def exponential_average(rates: Sequence[np.ndarray]) -> np.ndarray:
    return reduce(lambda average, rate: 0.7 * average + 0.3 * rate, rates)


def harmonic_mean(rates: Sequence[np.ndarray]) -> np.ndarray:
    return 1 / np.mean([1 / rate for rate in rates[-3:]], axis=0)


MONITORS = {
    "last": (kimad.last, last),
    "exponential_average": (kimad.exponential_average(0.3), exponential_average),
    "exponential_average(1)": (kimad.exponential_average(1.0), last),
    "harmonic_mean": (kimad.harmonic_mean(3), harmonic_mean),
    "harmonic_mean(1)": (kimad.harmonic_mean(1), last),
}
RATES = st.lists(
    st.lists(st.one_of(st.just(np.nan), st.floats(1, 1e6)), min_size=N, max_size=N),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("name", MONITORS)
@given(rounds=RATES)
def test_estimates_use_the_rates_of_messages_that_were_sent(name, rounds):
    """Each link has its own messages: a round without a message changes nothing, and before the
    first message the bandwidth is unknown.
    """
    monitor, expected = MONITORS[name]
    memory, nowhere = monitor.start(N), np.full(N, np.inf, np.float32)
    for rates in rounds:
        memory = monitor.observe(memory, np.array(rates, np.float32))
    estimates = monitor.estimate(memory, nowhere)
    for n in range(N):
        went = [np.array(rates[n]) for rates in rounds if not np.isnan(rates[n])]
        np.testing.assert_allclose(estimates[n], expected(went) if went else np.nan, rtol=1e-5)


@pytest.mark.parametrize("name", MONITORS)
def test_an_infinite_rate_is_not_kept_forever(name):
    """An infinite rate, of a link that takes no time, followed by finite ones."""
    monitor, nowhere = MONITORS[name][0], np.full(1, np.inf, np.float32)
    memory, estimates = monitor.start(1), []
    for rate in (np.inf, np.inf, 4.0, 4.0, 4.0):
        memory = monitor.observe(memory, np.array([rate], np.float32))
        estimates.append(float(monitor.estimate(memory, nowhere)[0]))
    assert estimates[:2] == [np.inf, np.inf]
    assert estimates[-1] == pytest.approx(4.0)
