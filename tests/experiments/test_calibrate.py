"""`python -m experiments.calibrate`: fits of known switches, their predictions, and a calibration
of two processes.
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
import scripts

from dsgd import clusters, network
from dsgd.base import Round
from dsgd.machines.links import Rate
from experiments import asynchrony, calibrate, compare, complexity_table
from experiments.shared import commands, tuning
from experiments.survey import calibrate_measuring as measuring
from experiments.survey import calibrate_switch as switch

LATENCY, BANDWIDTH, N = 2e-4, 1e9, 3
SIZES = [float(4**k) for k in range(5, 12)]
COSTS = {name: each.cost(N) for name, each in measuring.COLLECTIVES.items()}


def times(name, noise, seed, repeats=15):
    """Returns times of a switch with this latency and bandwidth."""
    rng, cost = np.random.default_rng(seed), COSTS[name]
    return {
        size: (cost.latencies * LATENCY + cost.vectors * 8 * size / BANDWIDTH)
        * np.exp(noise * rng.normal(size=repeats))
        for size in SIZES
    }


def test_a_fit_recovers_latency_and_bandwidth_within_its_interval():
    inside = []
    for name in COSTS:
        exact = switch.fit_line({name: times(name, 0.0, 0)}, COSTS)
        np.testing.assert_allclose(exact.alpha, LATENCY, rtol=1e-3)
        np.testing.assert_allclose(exact.beta, 8 / BANDWIDTH, rtol=1e-3)
        for seed in range(2):
            fit = switch.fit_line({name: times(name, 0.1, seed)}, COSTS, seed)
            inside += [
                fit.alpha.low <= LATENCY <= fit.alpha.high,
                fit.beta.low <= 8 / BANDWIDTH <= fit.beta.high,
            ]
            assert fit.alpha.high - fit.alpha.low < LATENCY
    assert np.mean(inside) > 0.7


def test_predictions_are_gradient_and_codec_and_messages():
    link = switch.Line(switch.Estimate(LATENCY, 0, 1), switch.Estimate(8 / BANDWIDTH, 0, 1))
    d = 1000
    parts = measuring.Parts(d, 0.25, 0.5, 2 * (N - 1) / N * 32 * d, 3, np.ones(3))
    messages = 2 * (N - 1) * (3 * LATENCY + 32 * d / N / BANDWIDTH)
    assert switch.predict_round("minibatch_sgd", parts, N, link) == pytest.approx(0.75 + messages)
    assert switch.predict_round("compressed_sgd", parts, N, link) == pytest.approx(0.75 + messages)
    assert switch.predict_round(
        "decentralized_sgd", parts._replace(bits=2 * 32 * d), N, link
    ) == pytest.approx(0.75 + 2 * (3 * LATENCY + 32 * d / BANDWIDTH))


def test_crossovers_lie_where_lines_meet():
    sizes = [1.0, 10.0, 100.0, 1000.0]
    assert switch.crossovers(sizes, sizes, [3.0, 3.0, 3.0, 3.0]) == [pytest.approx(3.0)]
    assert switch.crossovers(sizes, [1, 1, 1, 1], [2, 0.5, 0.5, 2]) == [
        pytest.approx(10**0.5),
        pytest.approx(10**2.5),
    ]
    assert switch.crossovers(sizes, sizes, [2, 20, 200, 2000]) == []


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("30mbit", (30e6,)),
        ("30mbit:10mbit", (30e6, 10e6)),
        ("1.5gbit", (1.5e9,)),
        ("200Kbit", (200e3,)),
    ],
)
def test_shapes(text, bits):
    assert calibrate.parse(text, 4.0) == Rate(pytest.approx(bits), 4.0)


@pytest.fixture
def cluster_file(tmp_path):
    path = tmp_path / "cluster.json"
    clusters.save(path, clusters.Hardware(2e-3, 5e7, compute=1e-3, per_sample=1e-5))
    return path


def test_experiments_take_the_numbers_of_a_cluster(cluster_file):
    args = commands.apply_cluster(compare.Args(cluster=cluster_file, batch_size=50))
    assert (args.latency, args.bandwidth, args.compute) == (
        2e-3,
        5e7,
        pytest.approx((1e-3 + 50e-5) / 50),
    )
    made, like = tuning.make_cluster(args), clusters.load(cluster_file)
    assert made.latency == like.latency
    assert commands.apply_cluster(
        asynchrony.Args(cluster=cluster_file, batch_size=50)
    ).compute == pytest.approx(1.5e-3), "of a gradient there"
    args = commands.apply_cluster(complexity_table.Args(cluster=cluster_file))
    assert (args.latency, args.bandwidth) == (2e-3, 5e7)
    without = compare.Args()
    assert commands.apply_cluster(without) is without


def test_numbers_in_the_cluster_and_in_flags_are_refused(cluster_file):
    with pytest.raises(
        ValueError,
        match=r"--latency 1 and --cluster .*: both set it; pass only one of the two",
    ):
        commands.apply_cluster(compare.Args(cluster=cluster_file, latency=1.0))


def test_commands_take_unequal_workers_of_a_file_or_refuse_them(tmp_path):
    path = tmp_path / "cluster.json"
    group = clusters.Group(2, compute=4e-3, bandwidth=2e7)
    groups = (clusters.Group(3), group)
    clusters.save(path, clusters.Hardware(2e-3, 5e7, 1e-3, groups=groups, bucket=8e3))
    args = commands.apply_cluster(compare.Args(cluster=path, workers=5))
    at = Round(0, 5, jax.random.key(0))
    made = tuning.make_cluster(args)
    np.testing.assert_allclose(made.seconds(at, np.arange(5)), [1e-3] * 3 + [4e-3] * 2)
    np.testing.assert_allclose(made.bandwidths(at, np.arange(5))[0], [5e7] * 3 + [2e7] * 2)
    slower = tuning.workers_of_file(args, 5, scale=0.5)
    np.testing.assert_allclose(slower.bandwidths(at, np.arange(5))[0], [2.5e7] * 3 + [1e7] * 2)
    assert slower.bucket == 4e3
    with pytest.raises(ValueError, match="has 5 workers, but the problem has 7; pass --workers 5"):
        tuning.make_cluster(dataclasses.replace(args, workers=7))
    with pytest.raises(ValueError, match="the file has 2 groups of workers; expected equal"):
        commands.apply_cluster(asynchrony.Args(cluster=path))


@pytest.fixture(scope="module")
def ran(tmp_path_factory, long):
    """A calibration of two processes with a tiny budget."""
    args = calibrate.Args(
        sizes=(1024, 65536),
        widths=(4,),
        batch_size=4,
        repeats=3,
        longest=0.2,
        out=tmp_path_factory.mktemp("calibrate"),
        progress=False,
    )
    return args, scripts.ran(calibrate.main, args)


def test_predictions_of_a_calibration_use_its_cluster(ran):
    args, _ = ran
    cluster = clusters.load(args.out / "cluster.json")
    assert cluster.latency > 0
    rows = {
        row["method"]: {name: float(row[name]) for name in row if name != "method"}
        for row in scripts.rows(args.out / "rounds.csv")
    }
    plain = rows["minibatch_sgd"]
    expected = plain["compute"] + network.round_seconds(
        network.ring_all_reduce,
        2,
        plain["bits"],
        latency=4 * cluster.latency,
        bandwidth=cluster.bandwidth,
    )
    assert plain["arrays"] == 4, "two layers' weights and biases"
    assert plain["predicted"] == pytest.approx(expected, rel=1e-4)
    assert plain["bits"] == 8 * plain["bytes"] == rows["decentralized_sgd"]["bits"]
    assert rows["error_compensated_sgd"]["bits"] < rows["ef21"]["bits"] < plain["bits"]
    assert all(row["low"] <= row["measured"] <= row["high"] for row in rows.values())


def test_costs_are_those_of_the_patterns():
    """An all-reduce is that of a ring; all-to-all and all-gather together are a round of N servers;
    on a ring, a permute is half of a round.
    """
    for latency, transfer in ((1.0, 0.0), (0.0, 1.0)):

        def of(name, latency=latency, transfer=transfer):
            return COSTS[name].latencies * latency + COSTS[name].vectors * transfer

        assert of("all-reduce") == pytest.approx(
            network.cost(network.ring_all_reduce, N, latency, transfer)
        )
        assert of("all-gather") + of("all-to-all") == pytest.approx(
            network.cost(network.multi_server, N, latency, transfer)
        )
        assert of("collective-permute") == latency + transfer
