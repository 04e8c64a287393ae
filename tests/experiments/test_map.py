"""`python -m experiments.map` with a tiny budget: its seconds, its winners and its files."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import jax
import numpy as np
import optax
import pytest
import scripts

import algorithms
import dsgd
from dsgd import clusters, network
from experiments import map as the_map
from experiments.planning import plane
from experiments.planning.plane import Best
from experiments.shared import tuning


@pytest.fixture(scope="module")
def map_run(tmp_path_factory, long):
    args = the_map.Args(
        methods=("local_sgd", "error_compensated_sgd"),
        partitions=("by-label",),
        delays=(0.0,),
        participations=(1.0, 0.5),
        workers=4,
        points=3,
        steps=64,
        seeds=2,
        learning_rates=(0.3, 1.0),
        out=tmp_path_factory.mktemp("map"),
        progress=False,
    )
    scripts.ran(the_map.main, args)
    return args


def test_it_writes_the_winner_on_each_network(map_run):
    rows = scripts.rows(map_run.out / "map.csv")
    assert [row["participation"] for row in rows] == 9 * ["1.0"] + 9 * ["0.5"]
    assert scripts.figures(map_run.out) == {"figure"}
    assert all(float(row["speedup"]) >= 1 for row in rows)
    slowest, fastest = rows[0], rows[2]  # of the smallest latency: 1 Mbit/s and 10 Gbit/s
    assert slowest["method"] == "error_compensated_sgd"
    assert float(slowest["speedup"]) > 4 > float(fastest["speedup"])


@pytest.fixture(scope="module")
def small():
    args = the_map.Args(
        workers=4, points=2, steps=40, seeds=2, learning_rates=(1.0,), compute=0.1, size=65_000
    )
    return args, tuning.logistic_regression(args, 4, "iid")


BASELINE = the_map.SYNCHRONOUS[0]


@pytest.fixture(scope="module", params=[None, 2], ids=["all", "2 of 4"])
def baseline(request, small):
    """Mini-batch SGD, with all workers or two of four."""
    args, problem = small
    return plane.train(args, problem, BASELINE, request.param)


def test_seconds_of_minibatch_sgd_are_those_of_the_all_reduce(small, baseline):
    """Its rounds to the target times the seconds of a gradient and of the closed form, of 650
    elements on a link that is slower by 650 / size, between the workers that participate.
    """
    args, problem = small
    (trained,) = baseline
    (chosen,) = plane.choose(trained, 0.8)
    assert (chosen.rounds > 0).all()
    _, best = the_map.locate(args, problem, 0.0, [BASELINE.name], [chosen], [], 0.8)
    workers = 2 if trained.participation else 4
    for i, latency in enumerate(the_map.axis(args, args.latencies)):
        for j, bandwidth in enumerate(the_map.axis(args, args.bandwidths)):
            transfer = 32 * 65_000 / bandwidth
            exchange = network.cost(network.ring_all_reduce, workers, latency, transfer)
            expected = chosen.rounds * (0.1 + exchange)
            np.testing.assert_allclose(best.mean[0, i, j], expected.mean(), 1e-3)


def test_asynchronous_methods_run_on_each_network(small):
    """With the seconds of a run on it, whose rounds are gradients of one worker."""
    args, problem = small
    name, target = "ringmaster_sgd", 0.8
    (candidate,) = (each for each in algorithms.CANDIDATES if each.name == name)
    candidate = dataclasses.replace(candidate, grids={"threshold": (2, 5)})
    (method,) = plane.train(args, problem, candidate)
    assert isinstance(method, plane.OnEach)
    chosen, best = the_map.locate(args, problem, 0.5, [BASELINE.name, name], [], [method], target)
    assert np.isinf(best.mean[0]).all()
    latencies, bandwidths = (the_map.axis(args, x) for x in (args.latencies, args.bandwidths))
    cluster = clusters.Cluster(
        clusters.constant(args.compute) + clusters.exponential(0.5 * args.compute),
        up=clusters.constant(650 / args.size * bandwidths[0]),
        latency=latencies[1],
    )
    threshold = chosen[int(best.choice[1, 1, 0])].settings["threshold"]
    history = dsgd.sweep(
        lambda rate: algorithms.ringmaster_sgd(optax.sgd(rate), int(threshold)),
        problem,
        steps=4 * args.steps,
        key=jax.random.key(args.seed),
        seeds=args.seeds,
        cluster=cluster,
        record_every=4 * args.every,
        rate=args.learning_rates,
    ).history
    expected = np.where(history["loss"] <= target, history["clock"], np.inf).min(axis=-1)
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(best.mean[1, 1, 0], expected.mean(), 1e-5)
    assert (best.mean[1, :, 0] > best.mean[1, :, 1]).all()


def test_a_model_counts_after_the_next_exchange(small):
    """The loss is that of the mean model, which the workers have after rounds 8, 16 and so on."""
    args, problem = small
    (local,) = (each for each in the_map.SYNCHRONOUS if each.name == "local_sgd")
    candidate = dataclasses.replace(local, grids={"H": (1, 8)})
    (runs,) = plane.replayed(plane.train(args, problem, candidate))
    history = runs.trained.history
    target = float(history["loss"][1].max(axis=0)[3])  # at round 12
    often, seldom = plane.choose(runs, target)
    first = history["step"][np.argmax(history["loss"] <= target, axis=-1)]
    np.testing.assert_array_equal(often.rounds, first[0])
    np.testing.assert_array_equal(seldom.rounds, 8 * np.ceil(first[1] / 8))
    assert (seldom.rounds > first[1]).any()


def test_the_default_target_is_that_of_the_first_participation_if_it_is_reached(small, baseline):
    args, _ = small
    (trained,), runs = baseline, {BASELINE: baseline}
    default = plane.default_target(trained.trained.history)
    assert the_map.choose(args, "iid", runs, None)[1] == default
    (chosen,), target = the_map.choose(args, "iid", runs, 1.0)
    assert target == 1.0
    np.testing.assert_array_equal(chosen.rounds, plane.choose(trained, 1.0)[0].rounds)
    assert the_map.choose(args, "iid", runs, 1e-9)[1] == default
    with pytest.raises(ValueError, match="--target 1e-09: minibatch_sgd does not reach it"):
        the_map.choose(replace(args, target=1e-9), "iid", runs, 1e-9)


def test_a_network_is_undecided_within_two_standard_errors_of_the_difference():
    mean = np.array([[4.0, 4.0, 4.0], [2.0, 3.5, np.inf], [3.0, 3.4, 1.0]])[..., None]
    error = np.array([[0.1, 0.1, 0.1], [0.3, 0.06, 0.0], [0.4, 0.08, 0.0]])[..., None]
    best = Best(mean, error, np.zeros(mean.shape, int), np.ones((1, 3, 1), bool))
    first, speedup, undecided = (each[:, 0] for each in the_map.winners(best))
    np.testing.assert_array_equal(first, [1, 2, 2])
    np.testing.assert_allclose(speedup, [2.0, 4 / 3.4, 4.0])
    np.testing.assert_array_equal(undecided, [False, True, False])


def test_each_network_has_the_settings_with_the_fewest_seconds():
    """Of a method that reaches the target only with one of its settings, and of one with two."""

    def settings(method):
        candidate = dataclasses.replace(the_map.SYNCHRONOUS[0], name=method)
        return plane.Chosen(candidate, {}, None, np.zeros(2))  # pyright: ignore[reportArgumentType] (no result)

    chosen = [settings("one"), settings("two"), settings("two")]
    found = [np.array([[[1.0, 3.0]]]), np.array([[[5.0, 7.0]]]), np.array([[[4.0, 4.0]]])]
    best = plane.best_of_each(["none", "one", "two"], chosen, found)
    np.testing.assert_array_equal(best.mean[:, 0, 0], [np.inf, 2.0, 4.0])
    np.testing.assert_array_equal(best.error[:, 0, 0], [0.0, 1.0, 0.0])
    np.testing.assert_array_equal(best.choice[:, 0, 0], [-1, 0, 2])


def test_settings_that_are_not_significantly_slower_with_the_same_seeds_are_tied():
    """Over four seeds, Student's quantile is 3.18: the second setting is slower by 0.2 with the
    standard error 0.1, the third by 0.4, and the last one never arrives with a seed.
    """
    method, other = (
        dataclasses.replace(the_map.SYNCHRONOUS[0], name=name) for name in ("mine", "other")
    )
    deviations = np.sqrt(0.03) * np.array([1.0, -1.0, 1.0, -1.0])
    first = np.array([40.0, 10.0, 25.0, 90.0])
    seconds = {
        "second": first + 0.2 + deviations,
        "first": first,
        "third": first + 0.4 + deviations,
        "never": [*first[:3], np.inf],
    }
    chosen = [plane.Ran(method, {name: 7.0}) for name in seconds]
    chosen.append(plane.Ran(other, {"other": 7.0}))
    found = [np.array([[each]]) for each in (*seconds.values(), first)]
    best = plane.best_of_each(["other", "mine"], chosen, found)
    (one,) = plane.tied(best, chosen, (1, 0, 0))
    assert dict(one.settings) == {"second": 7.0}
    assert plane.tied(best, chosen, (0, 0, 0)) == []
