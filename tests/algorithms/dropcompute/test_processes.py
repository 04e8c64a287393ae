"""The real clock: a worker's stopwatch, training with it in one process and in two, and processes
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

RATE = 0.1
# seconds of a micro-batch in each of two processes
SLOW, FAST, M, ROUNDS, STEPS = 0.03, 0.005, 4, 3, 9
SGD = optax.sgd(RATE)
ONE = problems.quadratic(np.float32([[2.0]]), np.float32([[3.0]]))


class FakeClock:
    """Goes on only by what each micro-batch takes."""

    def __init__(self) -> None:
        self.now = 1024.0

    def __call__(self) -> float:
        return self.now

    def gradient(self, params, batch):
        value, seconds = batch
        self.now += seconds
        return {"gradient": params * value, "loss": jax.numpy.float32(value)}


@pytest.mark.parametrize("seed", range(3))
def test_a_stopwatch_stops_where_known_times_say(seed):
    """Also where a micro-batch ends at the threshold to the bit: then it goes on."""
    rng = np.random.default_rng(seed)
    latencies = rng.integers(0, 9, 5) / 4
    thresholds = {0.0, *np.cumsum(latencies), *(np.cumsum(latencies) + 0.125), 0.125, math.inf}
    values = np.arange(5, dtype=np.float32) + 1
    params = jax.numpy.float32([1.0, -2.0])
    for tau in thresholds:
        clock = FakeClock()
        given = list(zip(values.tolist(), latencies.tolist(), strict=True))
        found = dropcompute.accumulate(clock.gradient, params, given, tau, clock=clock)
        expected = stopping.stopped(latencies, tau, "between")
        assert found.computed == expected.done.sum() >= 1
        np.testing.assert_array_equal(found.seconds, np.where(expected.done, latencies, np.nan))
        assert np.nansum(found.seconds) == expected.seconds
        total = values[expected.done].sum()
        np.testing.assert_array_equal(found.total["gradient"], [total, -2 * total])
        assert found.total["loss"] == total


def test_what_a_step_takes_besides_is_the_least_of_what_workers_waited():
    """And a step is as long as on the process where it is longest."""
    rows = np.array([[[1.0, 2.0, 4.5], [0.5, np.nan, 4.0]], [[1.0, np.nan, 3.0], [2.0, 0.25, 2.5]]])
    times = processes._Times.of(rows, 2)
    np.testing.assert_array_equal(times.latencies, rows[..., :2])
    np.testing.assert_array_equal(times.communication, [1.5, 0.25])
    np.testing.assert_array_equal(times.seconds, [4.5, 3.0])


@pytest.mark.parametrize("correction", ["none", "stochastic", "local", 0.75])
def test_corrections_of_unequal_workers(correction):
    """Two of four micro-batches each; the loss is the mean over micro-batches."""
    computed, slopes, losses = (
        np.array([3.0, 1.0]),
        np.array([[6.0, 2.0], [1.0, -4.0]]),
        np.array([9.0, 5.0]),
    )
    weights = {
        "none": [1 / 8] * 2,
        "stochastic": [1 / 4] * 2,
        "local": [1 / 6, 1 / 2],
        0.75: [0.75 / 8] * 2,
    }[correction]
    sgd = optax.sgd(0.5)
    model = optimizers.start(sgd, jnp.array([1.0, 2.0]))
    mine = np.array([processes.weight_of(correction, 4, 2, int(count)) for count in computed])
    sums = [jnp.float32(each) for each in (losses.sum(), mine @ slopes, computed.sum())]
    after, loss = processes._stepped(sgd, correction == "stochastic", model, *sums)
    np.testing.assert_allclose(
        after.params, [1.0, 2.0] - 0.5 * np.array(weights) @ slopes, rtol=1e-6
    )
    assert loss == pytest.approx(14 / 4)


@pytest.mark.parametrize(("correction", "factor"), [("none", 1 / M), ("local", 1.0)])
def test_one_process_is_one_worker(correction, factor, key):
    """On a quadratic of one variable, without noise. A threshold of 0 leaves one micro-batch."""
    found = dropcompute.train_processes(ONE, SGD, 0.0, M, steps=2, key=key, correction=correction)
    x = ONE.init(jax.random.split(key)[0])
    data = jax.tree.map(lambda leaf: leaf[0], ONE.data)
    for _ in range(2):
        x -= RATE * factor * jax.grad(ONE.loss)(x, ONE.sample(key, data))
    np.testing.assert_allclose(found.params, x, rtol=1e-6)
    np.testing.assert_array_equal(found.history["dropped"], 1 - 1 / M)


REFUSED = [
    (
        {"problem": problems.random_quadratic(3, 2)},
        "1 process for 3 workers; expected one process per worker",
    ),
    ({"threshold": math.nan}, "threshold = nan; expected seconds >= 0"),
    ({"threshold": dropcompute.chosen_after(2)}, "chosen after 2 of 2 steps; expected more steps"),
    (
        {"correction": -1.0},
        "train_processes: correction = -1.0; expected a word, or a finite number >= 0",
    ),
    ({"delay": lambda step, m: -1.0}, r"delay\(0, 0\) = -1.0; expected finite seconds >= 0"),
]


def test_refusals(key):
    good = {
        "problem": ONE,
        "optimizer": SGD,
        "threshold": 1.0,
        "micro_batches": 2,
        "steps": 2,
        "key": key,
    }
    for arguments, message in REFUSED:
        with pytest.raises(ValueError, match=message):
            dropcompute.train_processes(**{**good, **arguments})
    for batches, threshold, message in (
        ([], 1.0, r"batches = \[\]; expected at least one"),
        ([1], math.nan, "threshold = nan; expected seconds"),
    ):
        with pytest.raises(ValueError, match=f"accumulate: {message}"):
            dropcompute.accumulate(lambda params, batch: batch, 0, batches, threshold)
