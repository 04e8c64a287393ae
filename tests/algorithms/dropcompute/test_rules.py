"""What DropCompute carries from round to round and combines at its end, step by step; and where its planner's search ends."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P
from scipy.special import ndtr

import algorithms
from algorithms import dropcompute, optimizers
from algorithms.dropcompute import method as own
from algorithms.dropcompute import processes, thresholds
from algorithms.dropcompute.stopping import stopped
from dsgd import Measured, Round, Work, clusters, workers

N, M, TAU = 3, 2, 1.25
EACH = np.array([0.5, 1.0, 2.0])  # seconds of a micro-batch
CLUSTER = clusters.Cluster(clusters.constant(EACH))
KEY = jax.random.key(0)
NOBODY = np.zeros((N, M), bool)


def a_round(done: np.ndarray = NOBODY, step: int = 0, present: list[bool] | None = None) -> Round:
    there = None if present is None else jnp.array(present)
    return Round(jnp.int32(step), N, KEY, CLUSTER, present=there, work=Work(jnp.asarray(done, jnp.int32), jnp.ones((N, M))))


def rule(period: int = 1, threshold: float = TAU, stop: str = "preempt") -> own.Rule:
    return own.Rule(threshold, M, stop, period)


def one(n: int) -> np.ndarray:
    """Only the first micro-batch of worker n is computed."""
    done = NOBODY.copy()
    done[n, 0] = True
    return done


def test_idle_rounds_are_counted_until_anybody_has_computed_anything():
    """Rounds from which all workers are away do not count; after the first micro-batch nothing does."""
    everybody, nobody, last = [True] * N, [False] * N, [False, False, True]
    rounds = [(NOBODY, None, 1), (NOBODY, everybody, 2), (NOBODY, nobody, 2), (NOBODY, last, 3), (one(2), None, -1), (NOBODY, None, -1)]
    server = rule().start((), N, redraw=False)
    assert server.idle == 0
    for done, present, idle in rounds:
        server = rule().after(server, a_round(done, present=present), jnp.zeros(N))
        assert server.idle == idle


def test_a_run_is_refused_from_ten_idle_rounds_on():
    def records(*idle):
        return {"idle": np.array(idle), "threshold": np.array([0.5, 0.25, 0.125][: len(idle)])}

    assert own.nothing_done(records(9, 0, 9)) == ""
    assert "in 10 rounds or more" in own.nothing_done(records(10))
    assert "within 0.25 s" in own.nothing_done(records(10, 11, 9)), "of the runs that are idle, the smallest threshold"


def test_seconds_of_a_period_add_up_until_its_last_round():
    server, in_rounds = rule(period=3).start((), N, redraw=True), np.array([0.5, 0.25, 0.0])
    np.testing.assert_array_equal(server.spent, np.zeros(N))
    for step, times in enumerate((1, 2, 0, 1, 2, 0)):
        server = rule(period=3).after(server, a_round(one(step % N), step), jnp.asarray(in_rounds))
        np.testing.assert_array_equal(server.spent, times * in_rounds)
        np.testing.assert_array_equal(server.drawn, np.bincount(np.arange(step + 1) % N, minlength=N))
    assert rule().start((), N, redraw=False).spent == ()
    assert rule().start((), N, redraw=False).drawn == ()


def test_seconds_that_are_spent_count_in_a_period_only():
    spent = jnp.array([0.5, 1.0, 1.5])
    server = rule(period=2).start((), N, redraw=False)._replace(spent=spent)
    within = rule(period=2).computed(server, a_round())
    expected = stopped(np.repeat(EACH[:, None], M, axis=1), TAU, "preempt", np.asarray(spent))
    np.testing.assert_array_equal(within.done, expected.done)
    np.testing.assert_allclose(within.seconds, [0.75, 0.25, 0.0])
    alone = rule().computed(rule().start((), N, redraw=False), a_round())
    np.testing.assert_allclose(alone.seconds, [1.0, 1.25, 1.25])
    np.testing.assert_array_equal(alone.done, [[True, True], [True, False], [False, False]])


@pytest.mark.parametrize("period", [1, 4])
def test_workers_that_do_not_participate_are_charged_no_seconds(period):
    """The others as long as they compute."""
    base = algorithms.minibatch_sgd(optax.sgd(0.1)) if period == 1 else algorithms.local_sgd(optax.sgd(0.1), period)
    method = algorithms.drop_compute(base, TAU, M, period=period)
    params = jnp.zeros(2)

    def update(present):
        state, now = method.init(params, N), a_round(present=[True] * N)._replace(present=present)
        query = method.query(state, now)
        return method.update(KEY, state, jnp.ones((N, 2)), now._replace(work=query.work))

    on_one = jax.jit(jax.shard_map(update, mesh=workers.mesh(1), in_specs=P(), out_specs=P()))
    for present in ([True, False, True], [True] * N, [False] * N):
        state, info = on_one(jnp.array(present))
        seconds = np.where(present, [1.0, 1.25, 1.25], 0)
        np.testing.assert_allclose(info.compute, seconds)
        if period > 1:
            np.testing.assert_allclose(state.server.spent, seconds)
        assert info.metrics["idle"] == 0
        assert info.metrics["threshold"] == np.float32(TAU)


def test_the_share_that_is_dropped_is_of_those_who_are_there():
    done = np.array([[True, True], [True, False], [False, False]])
    assert own.dropped(a_round(done), M) == pytest.approx(3 / 6)
    assert own.dropped(a_round(done * np.array([[1], [0], [1]], bool), present=[True, False, True]), M) == pytest.approx(2 / 4)
    assert own.dropped(a_round(present=[False] * N), M) == 0


# --- A threshold that is chosen.


@pytest.mark.parametrize("period", [1, 2])
def test_a_threshold_is_chosen_after_the_last_round_that_is_measured(period):
    """Of I periods, each as one row of its rounds' micro-batches, whose seconds are those from its beginning to its end."""
    rounds, rng = 3, np.random.default_rng(period)
    times = rng.integers(1, 9, (rounds * period, N, M)) / 8
    ends = np.cumsum(times.sum(axis=2).max(axis=1) + rng.integers(1, 5, rounds * period) / 4)
    known = thresholds.start(rounds, N, period * M)
    none = jnp.zeros(N)

    @jax.jit
    def observed(known, step, clock, compute):
        seen = Measured(compute, none, none, none, none)
        return thresholds.observed(known, Round(step, N, KEY, CLUSTER, clock, seen), period, "between")

    for step in range(rounds * period + 3):
        last = min(max(step - 1, 0), rounds * period - 1)
        known = observed(known, jnp.int32(step), jnp.float32(ends[last]), jnp.asarray(times[last], jnp.float32))
        if step < rounds * period:
            assert known.threshold == np.inf
    rows = times.reshape(rounds, period, N, M).transpose(0, 2, 1, 3).reshape(rounds, N, period * M)
    seconds = np.diff(ends[period - 1 :: period], prepend=0)
    np.testing.assert_array_equal(known.latencies, rows)
    np.testing.assert_allclose(known.seconds, seconds)
    expected = dropcompute.threshold(rows, seconds - rows.sum(axis=2).max(axis=1), "between")
    assert known.threshold == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("mean", "std", "M", "communication"),
    [(1.0, 0.3, 4, 0.5), (1.0, 0.3, 4, 2.0), (0.45, 0.2, 12, 0.3), (0.45, 0.1, 3, 0.05), (2.0, 0.5, 8, 1.0), (1.0, 0.05, 2, 3.0)],
)
def test_the_planned_threshold_is_that_of_a_search_ten_thousand_times_as_fine(mean, std, M, communication):
    """It may lie on either side of the best of the planner's grid, whose points are a quarter of a standard deviation apart."""

    def rate(tau):
        m = np.arange(1, M + 1)[:, None]
        return ndtr((tau - m * mean) / (np.sqrt(m) * std)).sum(axis=0) / (tau + communication)

    low, high = M * mean / 2, M * mean + 10 * np.sqrt(M) * std
    for _ in range(8):
        taus = np.linspace(low, high, 2001)
        best = int(np.argmax(rate(taus)))
        low, high = taus[max(best - 1, 0)], taus[min(best + 1, 2000)]
    found = dropcompute.expected_threshold(mean, std, M, communication)
    assert found == pytest.approx(taus[best], abs=1e-5 * std)


# --- Real processes.


def test_what_a_step_takes_besides_is_the_least_of_what_workers_waited():
    """And a step is as long as on the process where it is longest."""
    rows = np.array([[[1.0, 2.0, 4.5], [0.5, np.nan, 4.0]], [[1.0, np.nan, 3.0], [2.0, 0.25, 2.5]]])
    times = processes._Times.of(rows, M)
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
