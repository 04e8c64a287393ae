"""Methods with workers that stop at a time limit. `tests/methods/drop_compute.py` has their
recursion; other properties are tested here.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from algorithms import drop_compute, dropcompute, with_local_work
from algorithms.dropcompute import method as own
from algorithms.dropcompute import thresholds
from algorithms.dropcompute.stopping import completions, stop_workers
from dsgd import clusters, compressors, problems, work
from dsgd.engine import run_keys
from theory_checks.machinery import batch_sizes

N, M, STEPS, TAU = 8, 4, 8, 2.6
SGD = optax.sgd(0.05, momentum=0.5)
KEY = jax.random.key(3)
SECONDS = clusters.constant(0.45) + clusters.exponential(0.225)
CLUSTER = clusters.Cluster(SECONDS, up=clusters.constant(1e4), latency=0.01)
METHOD = algorithms.minibatch_sgd(optax.sgd(1.0))


@cache
def ones() -> dsgd.Problem:
    """Returns a problem in which each worker's gradient is 1 in its own element, so that x sums the
    weights of the computed micro-batches.
    """
    return dsgd.Problem(
        init=lambda key: jnp.zeros(N),
        loss=lambda x, batch: x @ batch,
        data=jnp.eye(N),
        sample=lambda key, mine: mine,
    )


@cache
def robust() -> dsgd.Problem:
    return problems.robust_regression(N, 3, batch_size=3)


def run(method: dsgd.Algorithm, problem: dsgd.Problem | None = None, **options: Any) -> dsgd.Result:
    return dsgd.run(
        method,
        problem or ones(),
        **{"steps": STEPS, "key": KEY, "cluster": CLUSTER, "mesh": 1, **options},
    )


@cache
def latencies() -> np.ndarray:
    """Returns the seconds of all micro-batches of the run, as drawn in its rounds, `[STEPS, N,
    M]`.
    """
    rounds, whole = run_keys.split(KEY)[1], work.micro_batches(np.ones((N, M), bool))

    def draw(step):
        return CLUSTER.latencies(
            dsgd.Round(step, N, run_keys.round_keys(rounds, step)[0], work=whole), jnp.arange(N)
        )

    return np.asarray(jax.jit(jax.vmap(draw))(jnp.arange(STEPS)))


def counts(threshold: float, stop: str) -> np.ndarray:
    """Returns the number of micro-batches that each worker computes, `[STEPS, N]`."""
    return batch_sizes.counts(latencies(), threshold, stop)


def test_without_drops_it_equals_the_wrapped_method():
    """Bit for bit, including the clock."""
    method = algorithms.ef21(SGD, compressors.top_k(0.5), compressors.top_k(0.5))
    whole = work.micro_batches(np.ones((N, M), bool))
    ours, theirs = (
        run(drop_compute(method, np.inf, M), robust()),
        run(with_local_work(method, whole), robust()),
    )
    np.testing.assert_array_equal(ours.history["loss"], theirs.history["loss"])
    np.testing.assert_allclose(ours.history["clock"], theirs.history["clock"], rtol=1e-6)
    np.testing.assert_array_equal(ours.history["dropped"][1:], 0)


@pytest.mark.parametrize("stop", ["preempt", "between"])
def test_late_in_a_period_seconds_are_those_of_the_micro_batches(stop):
    """To the last bit; with smaller differences a micro-batch would not have been measured to its
    end.
    """
    times = np.random.default_rng(0).exponential(size=(50, M)).astype(np.float32)
    done, seconds = stop_workers(times, np.inf, stop, np.float32(1000.0))
    assert done.all()
    np.testing.assert_array_equal(seconds, completions(times)[..., -1])


def test_workers_that_do_not_participate_compute_nothing_and_lose_nothing():
    """Means are over participating workers: x moves by each worker's share of the computed
    micro-batches.
    """
    away = clusters.Cluster(SECONDS, present=clusters.bernoulli(0.7, 1.0))
    found = run(
        drop_compute(METHOD, TAU, M, resample_dropped=True, correction="stochastic"), cluster=away
    )
    samples, present = found.history["samples"][1:], found.history["present"][1:]
    np.testing.assert_allclose(
        found.params, -(samples / samples.sum(axis=1, keepdims=True)).sum(axis=0), rtol=1e-5
    )
    np.testing.assert_allclose((samples > 0).mean(axis=1), present)
    np.testing.assert_array_equal(found.state.server.drawn, samples.sum(axis=0))
    np.testing.assert_allclose(
        found.history["dropped"][1:], 1 - samples.sum(axis=1) / (M * N * present), rtol=1e-5
    )


def test_a_worker_that_does_not_participate_spends_none_of_its_periods_time():
    """Worker 0 is absent in the first of the two rounds of a period of 3.5 s, and has all its time
    in the second one: two micro-batches of 1.5 s. Each other worker computes two of 1 s, then one
    and a half.
    """

    def worker_quantity(first, others, positive):
        return clusters.Quantity(
            lambda key, clock, worker: jnp.where(worker == 0, first(clock), others),
            "by worker",
            positive=positive,
        )

    cluster = clusters.Cluster(
        worker_quantity(lambda clock: jnp.full_like(clock, 1.5), 1.0, True),
        present=worker_quantity(lambda clock: jnp.where(clock > 0, 1.0, 0.0), 1.0, False),
    )
    method = drop_compute(algorithms.local_sgd(optax.sgd(1.0), 2), 3.5, 2, period=2)
    history = run(method, cluster=cluster, steps=2).history
    np.testing.assert_array_equal(history["samples"][1:], [[0] + [2] * 7, [2] + [1] * 7])
    np.testing.assert_array_equal(history["clock"], [0, 2, 5])


def test_it_satisfies_the_contract(long):
    dsgd.check(
        drop_compute(METHOD, dropcompute.auto_threshold(2), M, resample_dropped=True),
        robust(),
        cluster=CLUSTER,
    ).require()


def test_a_threshold_is_chosen_from_measurements_of_two_stages():
    """The clock of the second stage starts again, and the times of the round before it are lost;
    all others are used.
    """
    method = drop_compute(METHOD, dropcompute.auto_threshold(5), M, stop="between")
    begun = run(method, steps=3)
    found = run(method, steps=5, start=begun)
    history = {
        name: np.concatenate([stage.history[name][1:] for stage in (begun, found)])
        for name in ("threshold", "samples")
    }
    known = [0, 1, 3, 4]
    seconds = np.concatenate([np.diff(stage.history["clock"]) for stage in (begun, found)])[known]
    times = latencies()[known]
    tau = found.state.server.measuring.threshold
    np.testing.assert_allclose(
        tau,
        dropcompute.threshold(times, seconds - times.sum(axis=2).max(axis=1), "between"),
        rtol=1e-5,
    )
    np.testing.assert_array_equal(history["threshold"], [np.inf] * 6 + [tau] * 2)
    np.testing.assert_array_equal(
        history["samples"],
        np.where(np.arange(STEPS)[:, None] < 6, M, counts(float(tau), "between")),
    )
    assert history["samples"].min() < M


# --- Rounds in which nothing is computed.

FEW, PAIR = 3, 2
CONSTANT = clusters.Cluster(clusters.constant(1.0))


def test_idle_rounds_are_counted_until_a_micro_batch_is_computed():
    """Rounds without participation do not count; after the first computed micro-batch no round
    counts.
    """
    rule = own.Rule(1.25, PAIR, "preempt", 1)
    server = rule.first_server((), FEW, resample_dropped=False)
    assert server.idle == 0
    for done, present, idle in (
        (False, None, 1),
        (False, [True] * FEW, 2),
        (False, [False] * FEW, 2),
        (False, [False, False, True], 3),
        (True, None, -1),
        (False, None, -1),
    ):
        now = dsgd.Now(CONSTANT, present=None if present is None else jnp.array(present))
        computed = dsgd.LocalWork(
            jnp.zeros((FEW, PAIR), jnp.int32).at[2, 0].set(done), jnp.ones(PAIR)
        )
        server = rule.next_state(
            server, dsgd.Round(jnp.int32(0), FEW, KEY, now, computed), jnp.zeros(FEW)
        )
        assert server.idle == idle


def test_a_run_is_refused_from_ten_idle_rounds_on():
    """With a threshold within which no micro-batch ends; otherwise there is a warning."""
    short = drop_compute(METHOD, 0.25, M)
    np.testing.assert_array_equal(run(short, steps=9).history["idle"][1:], np.arange(1, 10))
    with pytest.raises(ValueError, match="in 10 rounds or more"):
        run(short, steps=10)
    with pytest.warns(UserWarning, match="in 10 rounds or more"):
        run(drop_compute(METHOD, 0.25, M, all_dropped="warn"), steps=10)


# --- A threshold that is chosen.


def test_a_threshold_is_chosen_after_the_last_round_that_is_measured():
    """The threshold is chosen from I periods, each as one row of its rounds' micro-batches, whose
    seconds run from its start to its end. With this seed it would differ if the communication time
    were that of a worker that is not the slowest, or 0, or if workers were preempted.
    """
    rounds, period, rng = 3, 2, np.random.default_rng(8)
    times = rng.integers(1, 9, (rounds * period, FEW, PAIR)) / 8
    ends = np.cumsum(times.sum(axis=2).max(axis=1) + rng.integers(1, 5, rounds * period) / 4)
    known = thresholds.nothing_measured(rounds, FEW, period * PAIR)
    none = jnp.zeros(FEW)

    @jax.jit
    def observe(known, step, clock, compute):
        seen = dsgd.Timings(compute, none, none, none, none)
        return thresholds.record_timings(
            known, dsgd.Round(step, FEW, KEY, dsgd.Now(CONSTANT, clock, seen)), period, "between"
        )

    for step in range(rounds * period + 3):
        last = min(max(step - 1, 0), rounds * period - 1)
        known = observe(
            known, jnp.int32(step), jnp.float32(ends[last]), jnp.asarray(times[last], jnp.float32)
        )
        if step < rounds * period:
            assert known.threshold == np.inf
    rows = (
        times.reshape(rounds, period, FEW, PAIR)
        .transpose(0, 2, 1, 3)
        .reshape(rounds, FEW, period * PAIR)
    )
    seconds = np.diff(ends[period - 1 :: period], prepend=0)
    np.testing.assert_array_equal(known.latencies, rows)
    np.testing.assert_allclose(known.seconds, seconds)
    expected = dropcompute.threshold(rows, seconds - rows.sum(axis=2).max(axis=1), "between")
    assert known.threshold == pytest.approx(expected, rel=1e-6)


# --- Invalid arguments.

SINGLE_BATCH = clusters.Cluster(clusters.constant(1.0), single_batch=True)
AWAY = clusters.Cluster(SECONDS, present=clusters.bernoulli(0.7, 1.0))
WHOLE = with_local_work(METHOD, work.micro_batches(np.ones((N, M), bool)))
CHOSEN = dropcompute.auto_threshold(3)
BATCHES = [jnp.ones((N, M, N))] * STEPS
# a method, further arguments of `drop_compute`, and of `run`
REFUSED = [
    (METHOD, {}, {"cluster": None}, "has no cluster"),
    (METHOD, {}, {"cluster": SINGLE_BATCH}, "as one batch"),
    (algorithms.asynchronous_sgd(SGD), {}, {}, "expected a synchronous"),
    (algorithms.gradient_descent(SGD), {}, {}, "uses exact gradients"),
    (WHOLE, {}, {}, "set the local work themselves"),
    (algorithms.backup_workers_sgd(SGD, 2), {}, {}, "seconds.*, which another call"),
    (METHOD, {"threshold": CHOSEN}, {"cluster": AWAY}, "pass a threshold in seconds"),
    (METHOD, {"resample_dropped": True}, {"batches": BATCHES}, "draws batches"),
    (METHOD, {"threshold": float("nan")}, {}, "threshold = nan"),
    (METHOD, {"correction": -0.5}, {}, "correction"),
]


@pytest.mark.parametrize(("method", "arguments", "options", "words"), REFUSED)
def test_invalid_arguments_are_refused(method, arguments, options, words):
    with pytest.raises(ValueError, match=words):
        run(drop_compute(method, **{"threshold": TAU, "micro_batches": M} | arguments), **options)


def test_impossible_plans_are_refused():
    def swept(H):
        return drop_compute(METHOD, CHOSEN, 1, period=H).init(jnp.zeros(2), 2)

    with pytest.raises(ValueError, match="period is swept"):
        jax.eval_shape(swept, 2)
    with pytest.raises(ValueError, match=r"dropcompute.latencies: .*as one batch"):
        dropcompute.latencies(SINGLE_BATCH, N, M, iterations=1, key=KEY)
    with pytest.raises(ValueError, match="drop_rate"):
        dropcompute.extra_steps(10, 1.0)


def test_compensations_for_drops():
    """With a drop rate of 10%, 11% more steps or micro-batches give the same number: section
    4.5.
    """
    assert [
        dropcompute.extra_steps(steps, rate) for steps, rate in ((900, 0.1), (7038, 0.1), (5, 0.0))
    ] == [100, 782, 0]
    assert [dropcompute.larger_batch(size, rate) for size, rate in ((9, 0.1), (5, 0.0))] == [10, 5]
