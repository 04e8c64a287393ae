"""`dsgd.plan` compared with runs on the cluster itself."""

from __future__ import annotations

import itertools
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from dsgd import Candidate, clusters, compressors, problems
from dsgd.engine import programs
from dsgd.planning import forecasts, networks, training

N, STEPS, SEEDS, RATES = 4, 48, 2, (0.1, 0.3)
FRESH = 10 * SEEDS
KEY = jax.random.key(0)
CLUSTER = clusters.Cluster(
    clusters.constant(0.01) + clusters.exponential(0.002),
    up=clusters.constant(1e5),
    down=clusters.constant(3e4),
    latency=1e-3,
)
PROBLEM = problems.random_quadratic(N, 64, noise=0.02)
SIGN = compressors.sign
NEEDS_ALL = Candidate("EC-SGD", algorithms.error_compensated_sgd, (SIGN, SIGN))
CANDIDATES = (
    Candidate("mini-batch SGD", algorithms.minibatch_sgd),
    Candidate("local SGD", algorithms.local_sgd, ("H",), {"H": (2, 7)}),
    Candidate("asynchronous SGD", algorithms.asynchronous_sgd),
    Candidate("Rennala", algorithms.rennala_sgd, ("B",), {"B": (2, 6)}),
    NEEDS_ALL,
)
ONE_GRADIENT = {"asynchronous SGD", "Rennala"}  # a round


def make_plan(candidates=CANDIDATES, cluster=CLUSTER, **options) -> dsgd.Plan:
    given = {"key": KEY, "steps": STEPS, "seeds": SEEDS, "learning_rates": RATES, "mesh": 1}
    return dsgd.plan(candidates, PROBLEM, cluster, **given | options)


def direct(candidate: Candidate, cluster=CLUSTER, **values) -> dict[str, np.ndarray]:
    """Returns the history of a candidate with all step sizes on the cluster itself, with the seeds
    that do not choose settings.
    """
    updates = N if candidate.name in ONE_GRADIENT else 1
    return dsgd.sweep(
        lambda learning_rate: candidate.build(optax.sgd(learning_rate), N, **values),
        PROBLEM,
        steps=STEPS * updates,
        key=jax.random.fold_in(KEY, 1),
        seeds=FRESH,
        cluster=cluster,
        record_every=updates,
        mesh=1,
        learning_rate=RATES,
    ).history


def next_exchange(records: np.ndarray, period: int) -> np.ndarray:
    """Returns the numbers of the records at the next exchange, which may be after the run."""
    return -(-records // period) * period


def seconds_to(history: dict[str, np.ndarray], target: float, period: int = 1) -> np.ndarray:
    """Returns the seconds until the loss is at most the target and the workers have exchanged their
    models, `[points, seeds]`.
    """
    reached = history["loss"] <= target
    at = next_exchange(reached.argmax(axis=-1), period)
    first = np.take_along_axis(history["clock"], np.minimum(at, STEPS)[..., None], axis=-1)
    return np.where(reached.any(axis=-1) & (at <= STEPS), first[..., 0], np.inf)


def reads_the_clock(optimizer):
    """Returns a synchronous method whose iterates depend on the cluster."""
    of = algorithms.minibatch_sgd(optimizer)

    def update(state, gradients, round):
        slow = jnp.where(round.clock > 0.1, 0.5, 1.0)
        return of.update(state, jax.tree.map(lambda leaf: slow * leaf, gradients), round)

    return of._replace(update=update)


def all_settings() -> list[tuple[Candidate, dict[str, Any]]]:
    return [
        (each, dict(zip(each.swept, values, strict=True)))
        for each in CANDIDATES
        for values in itertools.product(*each.swept.values())
    ]


@pytest.fixture(scope="module")
def histories():
    return [(each, values, direct(each, **values)) for each, values in all_settings()]


@pytest.fixture(scope="module")
def target(histories):
    """A loss that all methods reach after some rounds."""
    start = histories[0][-1]["loss"].flat[0]
    least = max(h["loss"].max(axis=1).min() for *_, h in histories)
    return float(least + 0.1 * (start - least))


@pytest.fixture(scope="module")
def plan(target):
    return make_plan(target=target)


def test_seconds_and_ranking_are_those_of_runs_on_the_cluster(plan, histories, target):
    best = {}
    for each, values, history in histories:
        found = seconds_to(history, target, values.get("H", 1)).mean(axis=-1)
        best[each.name] = min(found.min(), best.get(each.name, np.inf))
    assert [row.method for row in plan.rows] == sorted(best, key=best.__getitem__)
    for row in plan.rows:
        np.testing.assert_allclose(row.seconds.value, best[row.method], 1e-6, err_msg=row.method)
        assert row.seconds.low <= row.seconds.value <= row.seconds.high
        assert row.metric.value <= target


def test_rounds_and_bits_are_those_until_the_target(plan, histories, target):
    for row in plan.rows:
        (history,) = (
            h
            for each, values, h in histories
            if each.name == row.method and values.items() <= row.values.items()
        )
        point = RATES.index(row.values["learning_rate"])
        first = (history["loss"][point] <= target).argmax(axis=-1)
        at = next_exchange(first, int(row.values.get("H", 1)))
        updates = N if row.method in ONE_GRADIENT else 1
        assert row.rounds == pytest.approx((history["step"][at] / updates).mean())
        assert row.bits == pytest.approx(history["bits"][point, range(FRESH), at].mean())
        assert row.at_edge == ""  # of two step sizes


def test_seconds_on_another_network_are_those_of_runs_there(plan, target):
    """With a hundredth of the bandwidth, and with a hundred times the latency."""
    networks = plan.networks
    rows = {row.method: row for row in plan.rows}
    for bandwidth, latency in ((0.01, 1.0), (1.0, 100.0)):
        (at,) = np.flatnonzero(
            np.isclose(networks.bandwidth, bandwidth) & np.isclose(networks.latency, latency)
        )
        there = clusters.Cluster(
            CLUSTER.compute,
            up=clusters.constant(1e5 * bandwidth),
            down=clusters.constant(3e4 * bandwidth),
            latency=1e-3 * latency,
        )
        found = seconds_to(direct(CANDIDATES[0], there), target).mean(axis=-1).min()
        np.testing.assert_allclose(rows["mini-batch SGD"].elsewhere[at], found, 1e-5)
    assert np.isnan(rows["asynchronous SGD"].elsewhere[1:]).all()


def test_messages_of_a_model_take_as_long_as_on_a_network_that_is_as_much_slower(target):
    """Also for a method whose rounds depend on the cluster, and on other networks."""
    simple = CANDIDATES[:3]  # the size of their messages is proportional to that of the model
    model = {"kernel": jax.ShapeDtypeStruct((64, 5), jnp.float32)}
    slower = forecasts.scale(CLUSTER, 0.2)
    large = make_plan(simple, target=target, model=model)
    small = make_plan(simple, slower, target=target)
    for row, other in zip(large.rows, small.rows, strict=True):
        assert (row.method, row.values, row.rounds) == (other.method, other.values, other.rounds)
        np.testing.assert_allclose(row.seconds, other.seconds, rtol=1e-5)
        np.testing.assert_allclose(row.bits, 5 * other.bits, rtol=1e-3)
        np.testing.assert_allclose(row.elsewhere, other.elsewhere, rtol=1e-5)


def test_changes_are_networks_on_which_another_method_is_better(plan):
    rows = {row.method: row for row in plan.rows}
    replayed = [row for row in plan.rows if row.method not in ONE_GRADIENT]
    networks = plan.networks
    assert plan.changes
    for change in plan.changes:
        (at,) = np.flatnonzero(np.isclose(getattr(networks, change.axis), change.factor))
        assert change.result == rows[change.method].elsewhere[at]
        assert change.result == min(row.elsewhere[at] for row in replayed)
        assert change.before == replayed[0].elsewhere[at]


@pytest.mark.parametrize(
    ("candidate", "rounds"),
    [
        (CANDIDATES[0], (1, 1, False)),
        (CANDIDATES[1], (2, 1, False)),
        (Candidate("one sample", algorithms.sgd), (1, N, False)),
        (CANDIDATES[3], (1, N, True)),
        (Candidate("gossip", algorithms.asynchronous_gossip_sgd, (topologies.ring,)), (1, N, True)),
        (Candidate("reads the clock", reads_the_clock), (1, 1, True)),
    ],
    ids=str,
)
def test_a_round_is_one_gradient_of_each_worker(candidate, rounds):
    """The period of the exchanges, the number of rounds with N gradients, and whether they depend
    on the cluster.
    """
    values = {name: grid[0] for name, grid in candidate.swept.items()}
    assert training.rounds_of(candidate, optax.sgd(0.1), PROBLEM, CLUSTER, values) == rounds


def test_all_runs_of_a_candidate_are_one_program():
    """Those of three points with four seeds, in two blocks, equal a sweep; other points, seeds and
    numbers of rounds are not compiled again.
    """
    setting = training.Setting(PROBLEM, CLUSTER, KEY, 4, 1, optax.sgd, 2, None)
    all_points, _ = training.all_points(setting, CANDIDATES[0], (0.1, 0.3, 0.9), 8)
    found, swept = (
        train(setting, all_points, 8, "") for train in (training.train_in_blocks, training.train)
    )
    np.testing.assert_array_equal(found.history["step"], swept.history["step"])
    np.testing.assert_allclose(found.history["loss"], swept.history["loss"], 1e-5)
    around = networks.vary(CLUSTER, 1)
    seconds = [around.seconds(each) for each in (found, swept)]
    assert seconds[0].shape == (5, 3, 4, 5)
    np.testing.assert_allclose(seconds[0], seconds[1], 1e-6)
    count = programs.count_compiled()
    others = setting._replace(key=jax.random.key(1), seeds=5)
    again = training.train_in_blocks(others, all_points.take([2, 0]), 11, "")
    assert again.history["loss"].shape[:2] == (2, 5)
    assert programs.count_compiled() == count


@pytest.mark.long
def test_the_same_call_resumes_from_finished_runs(tmp_path, target):
    """Only the runs whose checkpoint was removed are made again."""
    first = make_plan(CANDIDATES[:1], target=target, checkpoint=tmp_path)
    folders = sorted(path.parent for path in tmp_path.rglob("dsgd-run.npz"))
    before = [(path / "dsgd-run.npz").stat().st_mtime_ns for path in folders]
    shutil.rmtree(folders[0])
    again = make_plan(CANDIDATES[:1], target=target, checkpoint=tmp_path)
    after = [(path / "dsgd-run.npz").stat().st_mtime_ns for path in folders]
    assert [one < other for one, other in zip(before, after, strict=True)] == [
        path == folders[0] for path in folders
    ]
    for one, other in zip(first.rows, again.rows, strict=True):
        assert one.expression == other.expression
        assert one.seconds == other.seconds


@pytest.mark.long
def test_candidates_run_elsewhere_with_the_same_results(plan, target):
    """The executor copies what it sends and returns."""
    with ThreadPoolExecutor(1) as executor:
        again = make_plan(target=target, on=executor)
    assert repr(again) == repr(plan)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": 1.0, "on": "slum"}, "plan: on = 'slum'; expected None, 'processes', 'ray'"),
        ({}, "plan: none of target, seconds and bits given; expected exactly one"),
        ({"target": 1.0, "bits": 1e6}, "plan: target, bits given; expected exactly one"),
        ({"seconds": 0.0}, "plan: seconds = 0.0; expected a finite number > 0"),
        ({"target": np.inf}, "plan: target = inf; expected a finite number"),
        ({"target": 1.0, "metric": "accuracy"}, "plan: metric = 'accuracy' is not in the history"),
        ({"target": 1.0, "metric": "mine"}, "plan: metric = 'mine', for which the better"),
        ({"target": 1.0, "steps": 0}, "plan: steps = 0"),
        ({"target": -0.1, "learning_rates": (1e6,)}, "plan: every candidate diverges"),
        ({"target": 9.0}, "plan: target = 9.0 is reached before the first round; expected a small"),
    ],
)
def test_invalid_plans_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        make_plan(CANDIDATES[:1], **options)


def test_the_default_metric_of_a_problem_with_a_regularizer_contains_it():
    """f is the smallest at the start, (1, 1, 1); f + r is not."""
    quadratic = problems.quadratic(np.ones((2, 3)), np.ones((2, 3)), start=np.ones(3))
    found = dsgd.plan(
        [Candidate("proximal SGD", algorithms.proximal_sgd)],
        problems.regularized(quadratic, problems.l1(0.9)),
        clusters.Cluster(clusters.constant(3.0)),
        key=KEY,
        seconds=24.0,
        steps=8,
        seeds=1,
        learning_rates=[1e-6, 0.1],
        optimizer=lambda rate: rate,
        mesh=1,
    )
    assert found.goal.metric == "objective"
    assert found.rows[0].values == {"learning_rate": 0.1}


def test_candidates_that_the_cluster_excludes_are_refused_before_the_first_run():
    half = clusters.Cluster(clusters.constant(0.01), present=clusters.sampled(2, of=N))
    chosen = (CANDIDATES[0], NEEDS_ALL)
    found = make_plan(chosen, half, target=-0.1, learning_rates=(0.3,))
    assert [row.method for row in found.rows] == ["mini-batch SGD"]
    assert np.isfinite(found.rows[0].seconds.value)
    (reason,) = found.refused.items()
    assert reason[0] == "EC-SGD, sign"
    assert "participat" in reason[1]
    words = "plan: no candidate accepts the cluster and steps = 48: EC-SGD, sign: .*participat"
    with pytest.raises(ValueError, match=words):
        make_plan(chosen[1:], half, target=0.0)


def test_candidates_that_exchange_less_often_than_the_rounds_are_left_out():
    words = r"steps = 1: local SGD, H = 2: it exchanges every 2 rounds, but steps = 1; local SGD, H"
    with pytest.raises(ValueError, match=words):
        make_plan(CANDIDATES[1:2], target=-0.1, steps=1)


def failing(what):
    def update(state, gradients, round):
        raise what

    return lambda optimizer: algorithms.minibatch_sgd(optimizer)._replace(update=update)


def wrong(optimizer):
    return optimizer.learning_rate


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (wrong, "plan: candidate mine: AttributeError: .*has no attribute 'learning_rate'"),
        (failing(KeyError("x")), "plan: candidate mine: .* raised KeyError: 'x'"),
        (lambda optimizer: 3, "plan: candidate mine: .*3"),
    ],
)
def test_mistakes_of_a_users_function_name_the_candidate(function, words):
    with pytest.raises(ValueError, match=words):
        make_plan([CANDIDATES[0], Candidate("mine", function)], target=0.0)
