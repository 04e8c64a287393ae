"""The real clock: a worker's stopwatch, training with it in one and in two processes, and processes
that end together.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import dropcompute, optimizers
from algorithms.dropcompute import processes, stopping
from dsgd import problems


class FakeClock:
    """A clock that advances only by the time of each micro-batch."""

    def __init__(self) -> None:
        self.now = 1024.0

    def __call__(self) -> float:
        return self.now

    def gradient(self, params, batch):
        value, seconds = batch
        self.now += seconds
        return {"gradient": params * value, "loss": jax.numpy.float32(value)}


@pytest.mark.parametrize("seed", range(3))
def test_a_stopwatch_stops_at_the_time_given_by_known_durations(seed):
    """Also if a micro-batch ends exactly at the threshold: then the worker continues."""
    rng = np.random.default_rng(seed)
    latencies = rng.integers(0, 9, 5) / 4
    thresholds = {0.0, *np.cumsum(latencies), *(np.cumsum(latencies) + 0.125), 0.125, math.inf}
    values = np.arange(5, dtype=np.float32) + 1
    params = jax.numpy.float32([1.0, -2.0])
    for tau in thresholds:
        clock = FakeClock()
        given = list(zip(values.tolist(), latencies.tolist(), strict=True))
        found = dropcompute.accumulate(clock.gradient, params, given, tau, clock=clock)
        expected = stopping.stop_workers(latencies, tau, "between")
        assert found.computed == expected.done.sum() >= 1
        np.testing.assert_array_equal(found.seconds, np.where(expected.done, latencies, np.nan))
        assert np.nansum(found.seconds) == expected.seconds
        total = values[expected.done].sum()
        np.testing.assert_array_equal(found.total["gradient"], [total, -2 * total])
        assert found.total["loss"] == total


def test_the_communication_time_of_a_step_is_the_shortest_wait():
    """A step is as long as on the slowest process."""
    rows = np.array([[[1.0, 2.0, 4.5], [0.5, np.nan, 4.0]], [[1.0, np.nan, 3.0], [2.0, 0.25, 2.5]]])
    times = processes._Times.from_rows(rows, 2)
    np.testing.assert_array_equal(times.latencies, rows[..., :2])
    np.testing.assert_array_equal(times.communication, [1.5, 0.25])
    np.testing.assert_array_equal(times.seconds, [4.5, 3.0])


@pytest.mark.parametrize(
    ("correction", "weights"),
    [
        ("none", [1 / 8] * 2),
        ("stochastic", [1 / 4] * 2),
        ("local", [1 / 6, 1 / 2]),
        (0.75, [0.75 / 8] * 2),
    ],
)
def test_corrections_of_unequal_workers(correction, weights):
    """Two workers, which have computed three and one of four micro-batches; the loss is the mean
    over micro-batches.
    """
    slopes = np.array([[6.0, 2.0], [1.0, -4.0]])
    sgd = optax.sgd(0.5)
    model = optimizers.init(sgd, jnp.array([1.0, 2.0]))
    mine = np.array([processes.weight_of(correction, 4, 2, count) for count in (3, 1)])
    sums = [jnp.float32(each) for each in (14.0, mine @ slopes, 4.0)]
    after, loss = processes._step(sgd, correction == "stochastic", model, *sums)
    expected = [1.0, 2.0] - 0.5 * np.array(weights) @ slopes
    np.testing.assert_allclose(after.params, expected, rtol=1e-6)
    assert loss == pytest.approx(14 / 4)


REFUSED = [
    ({"problem": problems.random_quadratic(3, 2)}, "3 workers"),
    ({"threshold": math.nan}, "threshold = nan"),
    ({"threshold": dropcompute.auto_threshold(2)}, "chosen after 2 of 2 steps"),
    ({"correction": -1.0}, "train_processes: correction"),
    ({"delay": lambda step, m: -1.0}, r"delay\(0, 0\)"),
]


def test_invalid_arguments_are_refused(key):
    one = problems.quadratic(np.float32([[2.0]]), np.float32([[3.0]]))
    good = {
        "problem": one,
        "optimizer": optax.sgd(0.1),
        "threshold": 1.0,
        "micro_batches": 2,
        "steps": 2,
        "key": key,
    }
    for arguments, words in REFUSED:
        with pytest.raises(ValueError, match=words):
            dropcompute.train_processes(**good | arguments)
    for batches, threshold, words in (([], 1.0, r"batches = \[\]"), ([1], math.nan, "threshold")):
        with pytest.raises(ValueError, match=f"accumulate: {words}"):
            dropcompute.accumulate(lambda params, batch: batch, 0, batches, threshold)
