"""The real clock: a worker's stopwatch, training with it in one process and in two, and processes that end together."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from algorithms import dropcompute, optimizers
from algorithms.dropcompute import processes, stopping
from dsgd import problems, work, workers

RATE = 0.1
SLOW, FAST, M, ROUNDS, STEPS = 0.03, 0.005, 4, 3, 9  # seconds of a micro-batch in each of two processes
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


@pytest.mark.parametrize("seed", range(8))
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


def simulated(problem, steps, key):
    """What `train` is without a threshold: mini-batch SGD, of M micro-batches each."""
    everything = work.micro_batches(np.ones((problem.workers, M), bool))
    method = algorithms.unequal_work(algorithms.minibatch_sgd(optax.sgd(RATE)), everything)
    return dsgd.run(method, problem, steps=steps, key=key, mesh=1, train_loss=True)


def test_one_process_is_plain_sgd_where_nothing_is_dropped(key):
    problem = problems.random_quadratic(1, 5, heterogeneity=0.0, noise=0.3)
    found = dropcompute.train_processes(problem, optax.sgd(RATE), math.inf, M, steps=3, key=key)
    expected = simulated(problem, 3, key)
    np.testing.assert_allclose(found.params, expected.params, rtol=1e-5)
    np.testing.assert_allclose(found.history["loss"], expected.history["train_loss"][1:], rtol=1e-5)
    assert np.isinf(found.history["threshold"]).all()
    assert not found.history["dropped"].any()
    assert found.history["latencies"].shape == (3, 1, M)


@pytest.mark.parametrize(("tau", "computed"), [(0.0, 1), (math.inf, M)])
@pytest.mark.parametrize(("correction", "factor"), [("none", 1 / M), ("stochastic", None), ("local", None), (0.5, 0.5 / M)])
def test_the_correction_says_what_the_computed_ones_count(correction, factor, tau, computed, key):
    """On a quadratic of one variable, without noise. A threshold of 0 leaves one micro-batch, an infinite one leaves all."""
    found = dropcompute.train_processes(ONE, SGD, tau, M, steps=2, key=key, correction=correction)
    x = start = ONE.init(jax.random.split(key)[0])
    data = jax.tree.map(lambda leaf: leaf[0], ONE.data)
    for _ in range(2):
        x -= RATE * (factor or 1 / computed) * computed * jax.grad(ONE.loss)(x, ONE.sample(key, data))
    assert x != start
    np.testing.assert_allclose(found.params, x, rtol=1e-6)
    np.testing.assert_array_equal(found.history["dropped"], 1 - computed / M)
    np.testing.assert_array_equal(np.isnan(found.history["latencies"]), [[computed * [False] + (M - computed) * [True]]] * 2)


def test_what_a_step_takes_besides_is_the_least_of_what_workers_waited():
    """And a step is as long as on the process where it is longest."""
    rows = np.array([[[1.0, 2.0, 4.5], [0.5, np.nan, 4.0]], [[1.0, np.nan, 3.0], [2.0, 0.25, 2.5]]])
    times = processes._Times.of(rows, 2)
    np.testing.assert_array_equal(times.latencies, rows[..., :2])
    np.testing.assert_array_equal(times.communication, [1.5, 0.25])
    np.testing.assert_array_equal(times.seconds, [4.5, 3.0])


@pytest.mark.parametrize("correction", ["none", "stochastic", "local", 0.75])
def test_corrections_of_unequal_workers(correction):
    """On a mesh of two devices in the place of two processes; the loss is the mean over micro-batches."""
    computed, slopes, losses = np.array([3.0, 1.0]), np.array([[6.0, 2.0], [1.0, -4.0]]), np.array([9.0, 5.0])
    weights = {"none": [1 / 8] * 2, "stochastic": [1 / 4] * 2, "local": [1 / 6, 1 / 2], 0.75: [0.75 / 8] * 2}[correction]
    sgd = optax.sgd(0.5)
    model = optimizers.start(sgd, jnp.array([1.0, 2.0]))
    total = jnp.float32(losses), jnp.float32(slopes)
    after, loss = processes._combine(sgd, correction, 4, workers.mesh(2), model, total, jnp.float32(computed))
    np.testing.assert_allclose(after.params, [1.0, 2.0] - 0.5 * np.array(weights) @ slopes, rtol=1e-6)
    assert loss == pytest.approx(14 / 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"problem": problems.random_quadratic(3, 2)},
            "a problem of 3 workers in 1 process: need one worker a process",
        ),
        ({"micro_batches": 0}, "train_processes: micro_batches = 0: need an integer, at least 1"),
        ({"steps": 0}, "train_processes: steps = 0"),
        ({"threshold": -1.0}, "train_processes: threshold = -1: need seconds, at least 0"),
        ({"threshold": math.nan}, "threshold = nan"),
        ({"threshold": dropcompute.chosen_after(2)}, "chosen after 2 of 2 steps: need more steps"),
        ({"correction": -1.0}, "train_processes: correction = -1.0: need a word, or a finite number >= 0"),
        ({"delay": lambda step, m: -1.0}, r"delay\(0, 0\) = -1.0: need finite seconds >= 0"),
    ],
)
def test_refusals(arguments, message, key):
    good = {"problem": ONE, "optimizer": optax.sgd(RATE), "threshold": 1.0, "micro_batches": 2, "steps": 2, "key": key}
    with pytest.raises(ValueError, match=message):
        dropcompute.train_processes(**{**good, **arguments})


def test_refusals_of_the_parts():
    with pytest.raises(ValueError, match="accumulate: no micro-batches; need at least one"):
        dropcompute.accumulate(lambda params, batch: batch, 0, [], 1.0)
    with pytest.raises(ValueError, match="accumulate: threshold = nan: need seconds, at least 0"):
        dropcompute.accumulate(lambda params, batch: batch, 0, [1], math.nan)


def test_two_processes_train_as_one_and_the_slow_one_drops_more(key):
    """All that needs real processes, which are started once."""
    seconds = {"slow": SLOW, "fast": FAST, "M": M, "rounds": ROUNDS, "steps": STEPS, "rate": RATE}

    def both():
        problem, key, optimizer = problems.random_quadratic(2, 5, noise=0.3), jax.random.key(0), optax.sgd(seconds["rate"])
        pause = seconds["slow"] if jax.process_index() == 1 else seconds["fast"]
        whole = dropcompute.train_processes(problem, optimizer, math.inf, seconds["M"], steps=3, key=key)
        options = {"steps": seconds["steps"], "key": key, "delay": lambda step, m: pause}
        return whole, dropcompute.train_processes(problem, optimizer, dropcompute.chosen_after(seconds["rounds"]), seconds["M"], **options)

    (whole, first), (again, second) = dsgd.loopback(2, both, timeout=60)
    expected = simulated(problems.random_quadratic(2, 5, noise=0.3), 3, key)
    np.testing.assert_allclose(whole.params, expected.params, rtol=1e-5)
    np.testing.assert_allclose(whole.history["loss"], expected.history["train_loss"][1:], rtol=1e-5)
    for one, other in ((whole, again), (first, second)):
        np.testing.assert_array_equal(one.params, other.params)
        assert all(np.array_equal(one.history[name], other.history[name], equal_nan=True) for name in one.history)

    history = first.history
    measured = history["latencies"][:ROUNDS], history["communication"][:ROUNDS]
    tau = dropcompute.threshold(*measured, stop="between")
    assert tau < M * SLOW
    np.testing.assert_array_equal(history["threshold"], ROUNDS * [math.inf] + (STEPS - ROUNDS) * [tau])
    dropped = np.isnan(history["latencies"])
    assert not dropped[:ROUNDS].any()
    fast, slow = dropped[ROUNDS:].mean(axis=(0, 2))
    assert slow > fast
    np.testing.assert_array_equal(history["dropped"], dropped.mean(axis=(1, 2)))

    spent = np.nancumsum(history["latencies"], axis=-1)
    begun = np.concatenate([np.zeros((STEPS, 2, 1)), spent[..., :-1]], axis=-1)
    np.testing.assert_array_equal(begun <= history["threshold"][:, None, None], ~dropped)
    assert (history["latencies"][:, 1][~dropped[:, 1]] >= SLOW).all()
    assert (history["communication"] > 0).all()
    slowest = spent[..., -1].max(axis=1)
    assert (history["seconds"] >= slowest + history["communication"] - 1e-9).all()
    assert history["seconds"][ROUNDS:].mean() < history["seconds"][:ROUNDS].mean()
