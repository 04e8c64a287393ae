"""Methods whose workers stop when their time is over: of which samples they have gradients, how long that takes, when tau is chosen."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from budgets import briefly
from jax.sharding import PartitionSpec as P

import algorithms
import dsgd
import topologies
from algorithms import drop_compute, dropcompute, unequal_work
from algorithms.dropcompute import method as own
from algorithms.dropcompute import thresholds
from algorithms.dropcompute.stopping import completions, stopped
from dsgd import clusters, communication, compressors, problems, work
from dsgd.engine import loop

N, M, D, STEPS = 8, 4, 3, 12
SGD = optax.sgd(0.05, momentum=0.5)
KEY = jax.random.key(3)
CLUSTER = clusters.Cluster(clusters.constant(0.45) + clusters.exponential(0.225), up=clusters.constant(1e4), latency=0.01)
TAU = 2.6
METHOD = algorithms.minibatch_sgd(optax.sgd(1.0))


@cache
def draws() -> dsgd.Problem:
    """A worker's batch is a number, and that number is the gradient: what has been computed adds up in x."""
    return dsgd.Problem(
        init=lambda key: jnp.zeros(N),
        loss=lambda x, batch: x @ batch,
        data=jnp.eye(N),
        sample=lambda key, mine: mine * jax.random.uniform(key),
    )


@cache
def latencies(micro_batches: int = M) -> np.ndarray:
    """Seconds of all micro-batches of the run, as its rounds draw them, `[STEPS, N, micro_batches]`."""
    rounds, whole = loop.split(KEY)[1], work.micro_batches(np.ones((N, micro_batches), bool))

    def of(step):
        return CLUSTER.latencies(dsgd.Round(step, N, loop.round_keys(rounds, step)[0], work=whole), jnp.arange(N))

    return np.asarray(jax.jit(jax.vmap(of))(jnp.arange(STEPS)))


def in_periods(rounds: int) -> np.ndarray:
    """Of rounds with one micro-batch each, `[periods, N, rounds]`."""
    return latencies(1).reshape(-1, rounds, N).transpose(0, 2, 1)


def one_by_one(times: np.ndarray, stop: str, threshold: float = TAU) -> tuple[np.ndarray, np.ndarray]:
    """Workers that look at a clock, in plain Python: how many micro-batches each has, and after how many seconds, `[rounds, N]`."""
    counts, seconds = np.zeros(times.shape[:2], int), np.zeros(times.shape[:2])
    for i, n in np.ndindex(times.shape[:2]):
        elapsed = 0.0
        for t in times[i, n]:
            if stop == "between" and elapsed > threshold:
                break
            if stop == "preempt" and elapsed + t >= threshold:
                elapsed = threshold
                break
            elapsed += t
            counts[i, n] += 1
        seconds[i, n] = elapsed
    return counts, seconds


def run(method: dsgd.Algorithm, problem: dsgd.Problem | None = None, mesh: int = 1, **options: Any) -> dsgd.Result:
    given = {"steps": STEPS, "key": KEY, "cluster": CLUSTER, **options}
    return dsgd.run(method, problem or draws(), mesh=mesh, **given)


@pytest.mark.parametrize("stop", ["preempt", "between"])
def test_workers_compute_until_their_time_is_over(stop):
    """And the round ends with the last of them, and its messages."""
    found = run(drop_compute(METHOD, TAU, M, stop=stop))
    counts, seconds = one_by_one(latencies(), stop)
    assert len(np.unique(counts)) > 1
    np.testing.assert_array_equal(found.history["samples"][1:], counts)
    np.testing.assert_allclose(found.history["dropped"][1:], 1 - counts.mean(axis=1) / M, rtol=1e-6)
    messages = 2 * (N - 1) * (0.01 + 32 * N / N / 1e4)
    np.testing.assert_allclose(np.diff(found.history["clock"]), seconds.max(axis=1) + messages, rtol=1e-5)


def drawn(key: jax.Array, n: int) -> float:
    return float(jax.random.uniform(jax.random.fold_in(key, n)))


def test_without_more_it_is_the_sum_over_m_n():
    """Of a round's own draws, the first of each worker."""
    found = run(drop_compute(METHOD, TAU, M), steps=2)
    counts, _ = one_by_one(latencies()[:2], "preempt")
    expected = np.zeros(N)
    for step in range(2):
        key = loop.round_keys(loop.split(KEY)[1], jnp.int32(step))[1]
        for n in range(N):
            for m in range(counts[step, n]):
                expected[n] -= drawn(key if m == 0 else jax.random.fold_in(key, np.uint32(2**31 + m)), n) / (N * M)
    np.testing.assert_allclose(found.params, expected, rtol=1e-5)


@pytest.mark.parametrize("mesh", [1, 8])
def test_what_was_dropped_is_drawn_again(mesh):
    """Each worker computes the first of its stream, whatever rounds they come in."""
    found = run(drop_compute(METHOD, TAU, M, redraw=True), mesh=mesh)
    counts, _ = one_by_one(latencies(), "preempt")
    stream = jax.random.fold_in(loop.split(KEY)[1], np.uint32(2**32 - 1))
    expected = [-sum(drawn(jax.random.fold_in(stream, k), n) for k in range(total)) / (N * M) for n, total in enumerate(counts.sum(axis=0))]
    np.testing.assert_allclose(found.params, expected, rtol=1e-5)
    np.testing.assert_array_equal(found.state.server.drawn, counts.sum(axis=0))


CORRECTIONS = {
    "none": lambda done: np.full(N, 1 / M),
    0.8: lambda done: np.full(N, 0.8 / M),
    "stochastic": lambda done: np.full(N, N / done.sum()),
    "local": lambda done: 1 / np.maximum(done, 1),
}


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_corrections(correction):
    """Gradients that are all 1: what each worker's part of x moves by is the sum of its weights."""
    ones = draws()._replace(sample=lambda key, mine: mine)
    found = run(drop_compute(METHOD, TAU, M, correction=correction), ones)
    counts, _ = one_by_one(latencies(), "preempt")
    moved = -sum(CORRECTIONS[correction](done) * done / N for done in counts)
    np.testing.assert_allclose(found.params, moved, rtol=1e-5)


METHODS = {
    "compressed": algorithms.compressed_sgd(SGD, compressors.random_quantization(4)),
    "error-compensated": algorithms.error_compensated_sgd(SGD, compressors.sign, compressors.sign),
    "EF21": algorithms.ef21(SGD, compressors.top_k(0.5), compressors.top_k(0.5)),
    "decentralized": algorithms.decentralized_sgd(SGD, topologies.ring(N)),
    "local": algorithms.local_sgd(SGD, 2),
}


@cache
def robust() -> dsgd.Problem:
    return problems.robust_regression(N, D, batch_size=3)


@pytest.mark.parametrize("name", briefly(METHODS, {"error-compensated", "local"}))
def test_any_method_goes_on_with_what_there_is(name):
    """As where it is told beforehand what each worker computes."""
    counts = jnp.asarray(one_by_one(latencies(), "preempt")[0])

    def known(state, round):
        done = jnp.arange(M)[None] < counts[round.step][:, None]
        return dsgd.Work(done, jnp.full((N, M), 1 / M))

    ours = run(drop_compute(METHODS[name], TAU, M), robust())
    theirs = run(unequal_work(METHODS[name], known), robust())
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), ours.state.workers, theirs.state.workers)
    np.testing.assert_allclose(ours.history["loss"], theirs.history["loss"], rtol=1e-5)


def test_without_drops_it_is_the_method():
    """Bit for bit, on the clock, too."""
    whole = work.micro_batches(np.ones((N, M), bool))
    ours, theirs = run(drop_compute(METHODS["EF21"], np.inf, M), robust()), run(unequal_work(METHODS["EF21"], whole), robust())
    np.testing.assert_array_equal(ours.history["loss"], theirs.history["loss"])
    np.testing.assert_allclose(ours.history["clock"], theirs.history["clock"], rtol=1e-6)
    np.testing.assert_array_equal(ours.history["dropped"][1:], 0)


# --- Local steps.


@pytest.mark.parametrize("method", [algorithms.local_sgd(SGD, M), algorithms.scaffold(optax.sgd(0.05), M)], ids=["local SGD", "SCAFFOLD"])
def test_the_time_goes_on_through_a_period(method):
    """Rounds are steps: who has no time left makes no more of them, until models are averaged. Then everybody has the same seconds."""
    found = run(drop_compute(method, TAU, 1, period=M), robust())
    counts, seconds = one_by_one(in_periods(M), "preempt")
    samples = found.history["samples"][1:].reshape(STEPS // M, M, N) / 3
    np.testing.assert_array_equal(samples.sum(axis=1), counts)
    np.testing.assert_array_equal(samples, np.arange(M)[None, :, None] < counts[:, None])
    vectors = 1 if "local" in method.name else 2
    messages = 2 * (N - 1) * (0.01 + vectors * 32 * D / N / 1e4)
    ends = found.history["clock"][M::M]
    np.testing.assert_allclose(np.diff(ends, prepend=0), seconds.max(axis=1) + messages, rtol=2e-2)


@pytest.mark.parametrize("stop", ["preempt", "between"])
def test_late_in_a_period_seconds_are_those_of_the_micro_batches(stop):
    """To the last bit: by less than that a micro-batch would not have been measured to its end."""
    times = latencies()
    done, seconds = stopped(times, np.inf, stop, np.float32(1000.0))
    assert done.all()
    np.testing.assert_array_equal(seconds, completions(times)[..., -1])


@pytest.mark.filterwarnings("ignore:.*nothing is sent")
@pytest.mark.parametrize("base", [algorithms.local_sgd, algorithms.scaffold])
def test_who_computes_nothing_makes_no_step(base):
    """Momentum would move it, and SCAFFOLD's correction; all that it has stays."""
    idle = jnp.arange(N)[:, None] % 2 == 1

    def half(state, round):
        return dsgd.Work((round.step == 0) | ~idle, jnp.ones((N, 1)))

    method = unequal_work(base(SGD, 100), half)
    first, later = (run(method, robust(), steps=steps, cluster=None).state.workers for steps in (1, 4))
    for before, after in zip(jax.tree.leaves(first), jax.tree.leaves(later), strict=True):
        np.testing.assert_array_equal(before[1::2], after[1::2])
    assert (np.abs(first.params[::2] - later.params[::2]) > 0).all()


# --- A threshold that is chosen.


def test_latencies_to_plan_with_are_those_of_rounds():
    """Of the same keys."""
    keys = jax.random.split(KEY, 2)
    found = dropcompute.latencies(CLUSTER, N, M, iterations=2, key=KEY)
    whole = work.micro_batches(np.ones((N, M), bool))
    for key, of_round in zip(keys, found, strict=True):
        np.testing.assert_allclose(of_round, CLUSTER.latencies(dsgd.Round(jnp.int32(0), N, key, work=whole), np.arange(N)), rtol=1e-6)
    per_sample = clusters.Cluster(clusters.constant(1.0), per_sample=clusters.constant(0.5))
    np.testing.assert_array_equal(dropcompute.latencies(per_sample, 2, 3, iterations=1, key=KEY, batch_size=4), np.full((1, 2, 3), 3.0))


@pytest.mark.parametrize(("stop", "mesh"), [("preempt", 1), ("between", 8)])
def test_the_threshold_is_chosen_of_what_was_measured(stop, mesh):
    history = run(drop_compute(METHOD, dropcompute.chosen_after(5), M, stop=stop), mesh=mesh).history
    measured = latencies()[:5]
    communication = np.diff(history["clock"])[:5] - measured.sum(axis=2).max(axis=1)
    expected = dropcompute.threshold(measured, communication, stop)
    assert np.isinf(history["threshold"][1:7]).all()
    np.testing.assert_allclose(history["threshold"][7:], expected, rtol=1e-5)
    counts, _ = one_by_one(latencies(), stop, np.inf)
    later, _ = one_by_one(latencies(), stop, history["threshold"][-1])
    np.testing.assert_array_equal(history["samples"][1:], np.concatenate([counts[:6], later[6:]]))
    assert history["dropped"][7:].max() > 0


def test_a_stage_that_begins_while_times_are_measured():
    """Its clock begins anew, and the times of the round before are lost: all others count."""
    method = drop_compute(METHOD, dropcompute.chosen_after(5), M, stop="between")
    begun = run(method, steps=3)
    found = run(method, steps=6, start=begun)
    known = [0, 1, 3, 4]
    seconds = np.concatenate([np.diff(stage.history["clock"]) for stage in (begun, found)])[known]
    times = latencies()[known]
    expected = dropcompute.threshold(times, seconds - times.sum(axis=2).max(axis=1), "between")
    np.testing.assert_allclose(found.state.server.measuring.threshold, expected, rtol=1e-5)
    np.testing.assert_array_equal(np.isinf(found.history["threshold"][1:]), [True] * 3 + [False] * 3)


def test_of_a_period_all_rounds_are_measured():
    """Of local steps, as one row."""
    method = drop_compute(algorithms.local_sgd(SGD, 2), dropcompute.chosen_after(3), 1, period=2)
    found = run(method, robust())
    measuring, times = found.state.server.measuring, in_periods(2)[:3]
    np.testing.assert_allclose(measuring.latencies, times, rtol=1e-6)
    np.testing.assert_allclose(measuring.seconds, np.diff(found.history["clock"][:7:2]), rtol=1e-4)
    communication = measuring.seconds - times.sum(axis=2).max(axis=1)
    np.testing.assert_allclose(measuring.threshold, dropcompute.threshold(times, np.asarray(communication)), rtol=1e-5)


# --- A rule and a threshold round by round, of three workers whose micro-batches take half a second, one and two; two in a round.

FEW, PAIR, SHORT = 3, 2, 1.25
EACH = np.array([0.5, 1.0, 2.0])
CONSTANT = clusters.Cluster(clusters.constant(EACH))
NOBODY = np.zeros((FEW, PAIR), bool)


def a_round(done: np.ndarray = NOBODY, step: int = 0, present: list[bool] | None = None) -> dsgd.Round:
    now = dsgd.Now(CONSTANT, present=None if present is None else jnp.array(present))
    return dsgd.Round(jnp.int32(step), FEW, KEY, now, dsgd.Work(jnp.asarray(done, jnp.int32), jnp.ones((FEW, PAIR))))


def updated(method: dsgd.Algorithm, present: jax.Array | None = None, **server: Any) -> tuple[dsgd.State, communication.Statistics]:
    """The state after one round, and what it recorded; of a server's state with these fields before it."""

    def update(present):
        state, now = method.init(jnp.zeros(2), FEW), dsgd.Now(CONSTANT, present=present)
        state = state._replace(server=state.server._replace(**server))
        this = a_round()._replace(now=now)
        this = this._replace(work=method.query(state, this).work)
        after, record = communication.communicate(method, state, jnp.ones((FEW, 2)), this, KEY)
        return after, record.statistics(FEW)

    return jax.jit(jax.shard_map(update, mesh=dsgd.workers.mesh(1), in_specs=P(), out_specs=P()))(present)


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
    rounds = [(NOBODY, None, 1), (NOBODY, every, 2), (NOBODY, none, 2), (NOBODY, last, 3), (one(2), None, -1), (NOBODY, None, -1)]
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
        kept, other = (found.refusals, found.warnings) if all_dropped == "error" else (found.warnings, found.refusals)
        ((words, number),) = kept.items()
        assert "in 10 rounds or more" in words
        np.testing.assert_array_equal(number, tau)
        assert not other


def test_seconds_of_a_period_add_up_until_its_last_round():
    server, in_rounds = rule(period=3).first_server((), FEW, redraw=True), np.array([0.5, 0.25, 0.0])
    np.testing.assert_array_equal(server.spent, np.zeros(FEW))
    for step, times in enumerate((1, 2, 0, 1, 2, 0)):
        server = rule(period=3).after(server, a_round(one(step % FEW), step), jnp.asarray(in_rounds))
        np.testing.assert_array_equal(server.spent, times * in_rounds)
        np.testing.assert_array_equal(server.drawn, np.bincount(np.arange(step + 1) % FEW, minlength=FEW))
    assert rule().first_server((), FEW, redraw=False).spent == ()
    assert rule().first_server((), FEW, redraw=False).drawn == ()


def test_seconds_that_are_spent_count_in_a_period_only():
    spent = jnp.array([0.5, 1.0, 1.5])
    server = rule(period=2).first_server((), FEW, redraw=False)._replace(spent=spent)
    within = rule(period=2).computed(server, a_round())
    expected = stopped(np.repeat(EACH[:, None], PAIR, axis=1), SHORT, "preempt", np.asarray(spent))
    np.testing.assert_array_equal(within.done, expected.done)
    np.testing.assert_allclose(within.seconds, [0.75, 0.25, 0.0])
    alone = rule().computed(rule().first_server((), FEW, redraw=False), a_round())
    np.testing.assert_allclose(alone.seconds, [1.0, 1.25, 1.25])
    np.testing.assert_array_equal(alone.done, [[True, True], [True, False], [False, False]])


@pytest.mark.parametrize("period", [1, 4])
def test_workers_that_do_not_participate_are_charged_no_seconds(period):
    """The others as long as they compute."""
    base = algorithms.minibatch_sgd(optax.sgd(0.1)) if period == 1 else algorithms.local_sgd(optax.sgd(0.1), period)
    method = drop_compute(base, SHORT, PAIR, period=period)
    for present in ([True, False, True], [True] * FEW, [False] * FEW):
        state, found = updated(method, jnp.array(present))
        seconds = np.where(present, [1.0, 1.25, 1.25], 0)
        np.testing.assert_allclose(found.compute, seconds)
        if period > 1:
            np.testing.assert_allclose(state.server.spent, seconds)
        assert found.metrics["idle"] == 0
        assert found.metrics["threshold"] == np.float32(SHORT)


def test_the_share_that_is_dropped_is_of_the_workers_that_participate():
    done = np.array([[True, True], [True, False], [False, False]])
    assert own.dropped(a_round(done), PAIR) == pytest.approx(3 / 6)
    assert own.dropped(a_round(done * np.array([[1], [0], [1]], bool), present=[True, False, True]), PAIR) == pytest.approx(2 / 4)
    assert own.dropped(a_round(present=[False] * FEW), PAIR) == 0


# --- A threshold that is chosen.


@pytest.mark.parametrize(("period", "seed"), [(1, 63), (2, 8)])
def test_a_threshold_is_chosen_after_the_last_round_that_is_measured(period, seed):
    """Of I periods, each as one row of its rounds' micro-batches, whose seconds are those from its beginning to its end. With these seeds
    it is another one where communication is what a round takes besides a worker that is not the slowest, or is 0, or workers preempt."""
    rounds, rng = 3, np.random.default_rng(seed)
    times = rng.integers(1, 9, (rounds * period, FEW, PAIR)) / 8
    ends = np.cumsum(times.sum(axis=2).max(axis=1) + rng.integers(1, 5, rounds * period) / 4)
    known = thresholds.nothing_measured(rounds, FEW, period * PAIR)
    none = jnp.zeros(FEW)

    @jax.jit
    def observed(known, step, clock, compute):
        seen = dsgd.Measured(compute, none, none, none, none)
        return thresholds.observed(known, dsgd.Round(step, FEW, KEY, dsgd.Now(CONSTANT, clock, seen)), period, "between")

    for step in range(rounds * period + 3):
        last = min(max(step - 1, 0), rounds * period - 1)
        known = observed(known, jnp.int32(step), jnp.float32(ends[last]), jnp.asarray(times[last], jnp.float32))
        if step < rounds * period:
            assert known.threshold == np.inf
    rows = times.reshape(rounds, period, FEW, PAIR).transpose(0, 2, 1, 3).reshape(rounds, FEW, period * PAIR)
    seconds = np.diff(ends[period - 1 :: period], prepend=0)
    np.testing.assert_array_equal(known.latencies, rows)
    np.testing.assert_allclose(known.seconds, seconds)
    expected = dropcompute.threshold(rows, seconds - rows.sum(axis=2).max(axis=1), "between")
    assert known.threshold == pytest.approx(expected, rel=1e-6)


# --- Thresholds as an axis, the contract, refusals.


def test_thresholds_are_swept():
    thresholds = [2.0, TAU, 100.0]
    build = partial(drop_compute, METHOD, micro_batches=M)
    swept = dsgd.sweep(build, draws(), steps=STEPS, key=KEY, cluster=CLUSTER, mesh=1, threshold=thresholds)
    rates = swept.history["dropped"][:, 0, 1:].mean(axis=1)
    assert rates[0] > rates[1] > rates[2] == 0


def test_it_is_under_the_contract():
    method = drop_compute(METHODS["EF21"], dropcompute.chosen_after(2), M, redraw=True)
    dsgd.check(method, robust(), cluster=CLUSTER).require()


AWAY = clusters.Cluster(clusters.constant(0.45) + clusters.exponential(0.225), present=clusters.bernoulli(0.7, 1.0))


def test_who_is_away_computes_nothing_and_loses_nothing():
    """And means are of those who are there: of gradients that are all 1, each worker's share of what was computed is what moves."""
    ones = draws()._replace(sample=lambda key, mine: mine)
    found = run(drop_compute(METHOD, TAU, M, redraw=True, correction="stochastic"), ones, cluster=AWAY)
    samples, present = found.history["samples"][1:], found.history["present"][1:]
    np.testing.assert_allclose(found.params, -(samples / samples.sum(axis=1, keepdims=True)).sum(axis=0), rtol=1e-5)
    np.testing.assert_allclose((samples > 0).mean(axis=1), present)
    np.testing.assert_array_equal(found.state.server.drawn, samples.sum(axis=0))
    np.testing.assert_allclose(found.history["dropped"][1:], 1 - samples.sum(axis=1) / (M * N * present), rtol=1e-5)


AT_ONCE = clusters.Cluster(clusters.constant(1.0), at_once=True)


def test_nobody_who_computes_anything_is_an_error_or_a_warning():
    """Below the fastest micro-batch of all; not where it comes in a round, nor while nobody is there."""
    with pytest.raises(
        ValueError, match=r"by round 1\d, no worker has .* in 10 rounds or more: .* within 0\.4 s; pass a larger threshold, or all_dropped"
    ):
        run(drop_compute(METHOD, 0.4, M))
    with pytest.warns(
        UserWarning, match=r"no worker has computed anything in 10 rounds or more: .* within 0\.4 s; pass a larger threshold$"
    ):
        found = run(drop_compute(METHOD, 0.4, M, all_dropped="warn"))
    assert (found.params == 0).all()
    assert (found.history["dropped"][1:] == 1).all()
    np.testing.assert_allclose(np.diff(found.history["clock"]), 0.4 + 2 * (N - 1) * (0.01 + 32 / 1e4), rtol=1e-5)
    late = clusters.Cluster(clusters.constant(1.0), present=clusters.trace([0.0, 1.0, 1.0], 1.0))
    assert run(drop_compute(METHOD, 1.5, M), cluster=late).history["idle"][-1] == 0


REFUSED = {
    "no cluster": (lambda: run(drop_compute(METHOD, TAU, M), cluster=None), "without a cluster"),
    "at once": (lambda: run(drop_compute(METHOD, TAU, M), cluster=AT_ONCE), "micro-batches at once: need one by one"),
    "drawn at once": (lambda: dropcompute.latencies(AT_ONCE, N, M, iterations=1, key=KEY), "dropcompute.latencies: a cluster whose"),
    "asynchronous": (lambda: run(drop_compute(algorithms.asynchronous_sgd(SGD), TAU, M)), "one by one; need a synchronous one"),
    "exact": (lambda: run(drop_compute(algorithms.gradient_descent(SGD), TAU, M)), "asks for exact gradients"),
    "its own work": (
        lambda: run(drop_compute(unequal_work(METHOD, work.micro_batches(np.ones((N, M), bool))), TAU, M)),
        "states itself what",
    ),
    "cut twice": (lambda: run(drop_compute(algorithms.backup_workers_sgd(SGD, 2), TAU, M)), "seconds, which another call has given"),
    "away": (lambda: run(drop_compute(METHOD, dropcompute.chosen_after(3), M), cluster=AWAY), "pass a threshold in seconds"),
    "from outside": (
        lambda: run(drop_compute(METHOD, TAU, M, redraw=True), batches=[jnp.ones((N, M, N))] * STEPS),
        "draws batches once more",
    ),
    "negative": (lambda: drop_compute(METHOD, -1.0, M), "threshold = -1.0: need seconds >= 0"),
    "NaN": (lambda: drop_compute(METHOD, float("nan"), M), "need seconds >= 0"),
    "no micro-batches": (lambda: drop_compute(METHOD, TAU, 0), "micro_batches = 0"),
    "a negative factor": (lambda: drop_compute(METHOD, TAU, M, correction=-0.5), "correction = -0.5"),
    "no rounds": (lambda: dropcompute.chosen_after(0), "rounds = 0"),
    "all dropped": (lambda: dropcompute.extra_steps(10, 1.0), r"drop_rate = 1.0: need a share in \[0, 1\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused(name):
    call, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        call()


def test_what_makes_up_for_drops():
    """A tenth of 11% more is as much again: section 4.5."""
    assert dropcompute.extra_steps(900, 0.1) == 100
    assert dropcompute.larger_batch(9, 0.1) == 10
    assert dropcompute.extra_steps(7038, 0.1) == 782
    assert (dropcompute.extra_steps(5, 0.0), dropcompute.larger_batch(5, 0.0)) == (0, 5)
