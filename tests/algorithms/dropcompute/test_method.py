"""Methods whose workers stop at a time limit. `theory_checks` compares them with their recursions
round by round; here is the rest.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import algorithms
import dsgd
from algorithms import drop_compute, dropcompute, unequal_work
from algorithms.dropcompute import method as own
from algorithms.dropcompute import thresholds
from algorithms.dropcompute.stopping import completions, stopped
from dsgd import clusters, communication, compressors, problems, work
from dsgd.engine import loop
from theory_checks.recursions import dropcompute as papers

N, M, STEPS, TAU = 8, 4, 8, 2.6
SGD = optax.sgd(0.05, momentum=0.5)
KEY = jax.random.key(3)
SECONDS = clusters.constant(0.45) + clusters.exponential(0.225)
CLUSTER = clusters.Cluster(SECONDS, up=clusters.constant(1e4), latency=0.01)
METHOD = algorithms.minibatch_sgd(optax.sgd(1.0))


@cache
def ones() -> dsgd.Problem:
    """Each worker's gradient is 1 in an element of its own, so that x adds up the weights of what
    has been computed.
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
    """Seconds of all micro-batches of the run, as its rounds draw them, `[STEPS, N, M]`."""
    rounds, whole = loop.split(KEY)[1], work.micro_batches(np.ones((N, M), bool))

    def of(step):
        return CLUSTER.latencies(
            dsgd.Round(step, N, loop.round_keys(rounds, step)[0], work=whole), jnp.arange(N)
        )

    return np.asarray(jax.jit(jax.vmap(of))(jnp.arange(STEPS)))


def counts(threshold: float, stop: str) -> np.ndarray:
    """How many micro-batches each worker computes, `[STEPS, N]`."""
    rule = papers.Rule(threshold, M, stop)
    return np.array(
        [[papers.until(rule, takes, 0.0)[0] for takes in of_round] for of_round in latencies()]
    )


def test_without_drops_it_is_the_method():
    """Bit for bit, on the clock, too."""
    method = algorithms.ef21(SGD, compressors.top_k(0.5), compressors.top_k(0.5))
    whole = work.micro_batches(np.ones((N, M), bool))
    ours, theirs = (
        run(drop_compute(method, np.inf, M), robust()),
        run(unequal_work(method, whole), robust()),
    )
    np.testing.assert_array_equal(ours.history["loss"], theirs.history["loss"])
    np.testing.assert_allclose(ours.history["clock"], theirs.history["clock"], rtol=1e-6)
    np.testing.assert_array_equal(ours.history["dropped"][1:], 0)


@pytest.mark.parametrize("stop", ["preempt", "between"])
def test_late_in_a_period_seconds_are_those_of_the_micro_batches(stop):
    """To the last bit: by less than that a micro-batch would not have been measured to its end."""
    times = np.random.default_rng(0).exponential(size=(50, M)).astype(np.float32)
    done, seconds = stopped(times, np.inf, stop, np.float32(1000.0))
    assert done.all()
    np.testing.assert_array_equal(seconds, completions(times)[..., -1])


def test_workers_that_do_not_participate_compute_nothing_and_lose_nothing():
    """Means are of those that participate: each worker's share of what was computed is what moves
    x.
    """
    away = clusters.Cluster(SECONDS, present=clusters.bernoulli(0.7, 1.0))
    found = run(drop_compute(METHOD, TAU, M, redraw=True, correction="stochastic"), cluster=away)
    samples, present = found.history["samples"][1:], found.history["present"][1:]
    np.testing.assert_allclose(
        found.params, -(samples / samples.sum(axis=1, keepdims=True)).sum(axis=0), rtol=1e-5
    )
    np.testing.assert_allclose((samples > 0).mean(axis=1), present)
    np.testing.assert_array_equal(found.state.server.drawn, samples.sum(axis=0))
    np.testing.assert_allclose(
        found.history["dropped"][1:], 1 - samples.sum(axis=1) / (M * N * present), rtol=1e-5
    )


def test_it_is_under_the_contract(long):
    dsgd.check(
        drop_compute(METHOD, dropcompute.chosen_after(2), M, redraw=True), robust(), cluster=CLUSTER
    ).require()


# --- A threshold that is chosen.


def test_latencies_to_plan_with_are_those_of_rounds():
    """Of the same keys, and of the samples of a micro-batch."""
    cluster = clusters.Cluster(clusters.exponential(1.0), per_sample=clusters.constant(0.5))
    found = dropcompute.latencies(cluster, 2, 3, iterations=2, key=KEY, batch_size=4)
    for key, of_round in zip(jax.random.split(KEY, 2), found, strict=True):
        whole = work.local_batches(jnp.array([12, 12]), batch_size=4, micro_batches=3)
        np.testing.assert_allclose(
            of_round,
            cluster.latencies(dsgd.Round(jnp.int32(0), 2, key, work=whole), np.arange(2)),
            rtol=1e-6,
        )


def test_a_threshold_is_chosen_of_what_was_measured_in_two_stages():
    """The second one's clock begins again, and the times of the round before are lost: all others
    count.
    """
    method = drop_compute(METHOD, dropcompute.chosen_after(5), M, stop="between")
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


# --- A rule and a threshold round by round, of three workers whose micro-batches take half a
# second, one and two; two in a round.

FEW, PAIR, SHORT = 3, 2, 1.25
EACH = np.array([0.5, 1.0, 2.0])
CONSTANT = clusters.Cluster(clusters.constant(EACH))
NOBODY = np.zeros((FEW, PAIR), bool)


def a_round(
    done: np.ndarray = NOBODY, step: int = 0, present: list[bool] | None = None
) -> dsgd.Round:
    now = dsgd.Now(CONSTANT, present=None if present is None else jnp.array(present))
    return dsgd.Round(
        jnp.int32(step),
        FEW,
        KEY,
        now,
        dsgd.Work(jnp.asarray(done, jnp.int32), jnp.ones((FEW, PAIR))),
    )


def updated(
    method: dsgd.Algorithm, present: jax.Array | None = None, **server: Any
) -> tuple[dsgd.State, communication.Statistics]:
    """The state after one round, and what it recorded; of a server's state with these fields before
    it.
    """

    def update(present):
        state, now = method.init(jnp.zeros(2), FEW), dsgd.Now(CONSTANT, present=present)
        state = state._replace(server=state.server._replace(**server))
        this = a_round()._replace(now=now)
        this = this._replace(work=method.query(state, this).work)
        after, record = communication.communicate(method, state, jnp.ones((FEW, 2)), this, KEY)
        return after, record.statistics(FEW)

    return jax.jit(jax.shard_map(update, mesh=dsgd.workers.mesh(1), in_specs=P(), out_specs=P()))(
        present
    )


def rule(period: int = 1, threshold: float = SHORT, stop: str = "preempt") -> own.Rule:
    return own.Rule(threshold, PAIR, stop, period)


def one(n: int) -> np.ndarray:
    """Only the first micro-batch of worker n is computed."""
    done = NOBODY.copy()
    done[n, 0] = True
    return done


def test_idle_rounds_are_counted_until_a_micro_batch_is_computed():
    """Rounds without participation do not count; after the first micro-batch no round does."""
    every, none, last = [True] * FEW, [False] * FEW, [False, False, True]
    rounds = [
        (NOBODY, None, 1),
        (NOBODY, every, 2),
        (NOBODY, none, 2),
        (NOBODY, last, 3),
        (one(2), None, -1),
        (NOBODY, None, -1),
    ]
    server = rule().first_server((), FEW, redraw=False)
    assert server.idle == 0
    for done, present, idle in rounds:
        server = rule().after(server, a_round(done, present=present), jnp.zeros(FEW))
        assert server.idle == idle


@pytest.mark.parametrize("all_dropped", ["error", "warn"])
def test_a_run_is_refused_from_ten_idle_rounds_on(all_dropped):
    """With the threshold, within which no micro-batch ends."""
    method = drop_compute(METHOD, 0.25, PAIR, all_dropped=all_dropped)
    for before, tau in ((8, np.nan), (9, 0.25), (12, 0.25), (-1, np.nan)):
        _, found = updated(method, idle=jnp.int32(before))
        kept, other = (
            (found.refusals, found.warnings)
            if all_dropped == "error"
            else (found.warnings, found.refusals)
        )
        ((words, number),) = kept.items()
        assert "in 10 rounds or more" in words
        np.testing.assert_array_equal(number, tau)
        assert not other


def test_seconds_of_a_period_add_up_until_its_last_round():
    server, in_rounds = (
        rule(period=3).first_server((), FEW, redraw=True),
        np.array([0.5, 0.25, 0.0]),
    )
    np.testing.assert_array_equal(server.spent, np.zeros(FEW))
    for step, times in enumerate((1, 2, 0, 1, 2, 0)):
        server = rule(period=3).after(
            server, a_round(one(step % FEW), step), jnp.asarray(in_rounds)
        )
        np.testing.assert_array_equal(server.spent, times * in_rounds)
        np.testing.assert_array_equal(
            server.drawn, np.bincount(np.arange(step + 1) % FEW, minlength=FEW)
        )
    assert rule().first_server((), FEW, redraw=False).spent == ()
    assert rule().first_server((), FEW, redraw=False).drawn == ()


def test_workers_that_do_not_participate_are_charged_no_seconds():
    """The others as long as they compute."""
    method = drop_compute(algorithms.local_sgd(optax.sgd(0.1), 4), SHORT, PAIR, period=4)
    for present in ([True, False, True], [False] * FEW):
        state, found = updated(method, jnp.array(present))
        for seconds in (found.compute, state.server.spent):
            np.testing.assert_allclose(seconds, np.where(present, [1.0, 1.25, 1.25], 0))
        assert (found.metrics["idle"], found.metrics["threshold"]) == (0, np.float32(SHORT))


def test_the_share_that_is_dropped_is_of_the_workers_that_participate():
    done = np.array([[True, True], [True, False], [False, False]])
    assert own.dropped(a_round(done), PAIR) == pytest.approx(3 / 6)
    assert own.dropped(
        a_round(done * np.array([[1], [0], [1]], bool), present=[True, False, True]), PAIR
    ) == pytest.approx(2 / 4)
    assert own.dropped(a_round(present=[False] * FEW), PAIR) == 0


# --- A threshold that is chosen.


@pytest.mark.parametrize(("period", "seed"), [(1, 63), (2, 8)])
def test_a_threshold_is_chosen_after_the_last_round_that_is_measured(period, seed):
    """Of I periods, each as one row of its rounds' micro-batches, whose seconds are those from its
    beginning to its end. With these seeds it is another one where communication is what a round
    takes besides a worker that is not the slowest, or is 0, or workers preempt."""
    rounds, rng = 3, np.random.default_rng(seed)
    times = rng.integers(1, 9, (rounds * period, FEW, PAIR)) / 8
    ends = np.cumsum(times.sum(axis=2).max(axis=1) + rng.integers(1, 5, rounds * period) / 4)
    known = thresholds.nothing_measured(rounds, FEW, period * PAIR)
    none = jnp.zeros(FEW)

    @jax.jit
    def observed(known, step, clock, compute):
        seen = dsgd.Measured(compute, none, none, none, none)
        return thresholds.observed(
            known, dsgd.Round(step, FEW, KEY, dsgd.Now(CONSTANT, clock, seen)), period, "between"
        )

    for step in range(rounds * period + 3):
        last = min(max(step - 1, 0), rounds * period - 1)
        known = observed(
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


# --- Refusals.

AT_ONCE = clusters.Cluster(clusters.constant(1.0), at_once=True)
AWAY = clusters.Cluster(SECONDS, present=clusters.bernoulli(0.7, 1.0))
WHOLE = unequal_work(METHOD, work.micro_batches(np.ones((N, M), bool)))
CHOSEN = dropcompute.chosen_after(3)
REFUSED = [
    (lambda: run(drop_compute(METHOD, TAU, M), cluster=None), "the run has no cluster"),
    (
        lambda: run(drop_compute(METHOD, TAU, M), cluster=AT_ONCE),
        "micro-batches as one batch; expected a cluster with",
    ),
    (
        lambda: dropcompute.latencies(AT_ONCE, N, M, iterations=1, key=KEY),
        "dropcompute.latencies: the cluster's workers compute",
    ),
    (
        lambda: run(drop_compute(algorithms.asynchronous_sgd(SGD), TAU, M)),
        "one by one; expected a synchronous method",
    ),
    (
        lambda: run(drop_compute(algorithms.gradient_descent(SGD), TAU, M)),
        "uses exact gradients",
    ),
    (lambda: run(drop_compute(WHOLE, TAU, M)), "set the local work themselves"),
    (
        lambda: run(drop_compute(algorithms.backup_workers_sgd(SGD, 2), TAU, M)),
        "seconds of the round, which another call has already set",
    ),
    (lambda: run(drop_compute(METHOD, CHOSEN, M), cluster=AWAY), "pass a threshold in seconds"),
    (
        lambda: run(
            drop_compute(METHOD, TAU, M, redraw=True), batches=[jnp.ones((N, M, N))] * STEPS
        ),
        "draws batches again",
    ),
    (
        lambda: jax.eval_shape(
            lambda H: drop_compute(METHOD, CHOSEN, 1, period=H).init(jnp.zeros(2), 2), 2
        ),
        "the period is swept",
    ),
    (lambda: drop_compute(METHOD, float("nan"), M), "threshold = nan; expected seconds >= 0"),
    (lambda: drop_compute(METHOD, TAU, M, correction=-0.5), "correction = -0.5"),
    (lambda: dropcompute.extra_steps(10, 1.0), r"drop_rate = 1.0; expected a share in \[0, 1\)"),
]


def test_what_cannot_be_is_refused():
    for call, words in REFUSED:
        with pytest.raises(ValueError, match=words):
            call()


def test_what_makes_up_for_drops():
    """A tenth of 11% more is as much again: section 4.5."""
    assert [
        dropcompute.extra_steps(steps, rate) for steps, rate in ((900, 0.1), (7038, 0.1), (5, 0.0))
    ] == [100, 782, 0]
    assert [dropcompute.larger_batch(size, rate) for size, rate in ((9, 0.1), (5, 0.0))] == [10, 5]
