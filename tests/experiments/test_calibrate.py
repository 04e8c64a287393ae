"""`python -m experiments.calibrate`: fits of known switches, their predictions, and a calibration
of two processes.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

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
    with pytest.raises(ValueError, match="the file has groups; expected equal workers"):
        commands.apply_cluster(asynchrony.Args(cluster=path))


def switch_times(N, sharing, latency, bandwidth):
    """Returns times of collectives of N workers on a port that `sharing` of them use together."""
    return {
        name: {
            size: np.full(
                3,
                (cost := each.cost(N)).latencies * latency
                + sharing * cost.vectors * 8 * size / bandwidth,
            )
            for size in SIZES
        }
        for name, each in measuring.COLLECTIVES.items()
    }


def of_machine(host, seconds, memory=None, spread=0.01):
    gradients = seconds * np.linspace(1 - spread, 1 + spread, 25)
    return measuring.Device(host, gradients, seconds / 4, seconds / 20, 3e10, memory)


@pytest.mark.parametrize(
    ("slowest", "spread", "unequal"), [(1.05, 0.01, False), (1.5, 0.01, True), (1.5, 0.9, False)]
)
def test_a_file_has_both_levels_and_unequal_machines(slowest, spread, unequal):
    """Three machines of four workers, which share a card of 1 Gbit/s and have ports of 70."""
    devices = [
        of_machine("a", 0.02, None, spread),
        of_machine("b", 0.02, 5e9, spread),
        of_machine("c", 0.02 * slowest, None, spread),
    ]
    found = measuring.Found(
        switch_times(12, 1, 3e-4, 2e9),
        {},
        devices,
        4,
        switch_times(4, 1, 5e-6, 7e10),
        switch_times(3, 4, 2e-4, 1e9),
    )
    result = switch.make_calibration(found, 12, seed=0)
    assert result.whole.bandwidth == pytest.approx(2e9, rel=1e-3)
    hardware = result.hardware
    assert (hardware.latency, hardware.bandwidth) == pytest.approx((2e-4, 1e9), rel=1e-3)
    nodes = hardware.nodes
    assert nodes.size == 4
    assert (nodes.latency, nodes.bandwidth) == pytest.approx((5e-6, 7e10), rel=1e-3)
    assert hardware.collectives is None
    flat = result._replace(inside=None, between=None).hardware
    assert (flat.latency, flat.bandwidth) == pytest.approx((3e-4, 2e9), rel=1e-3)
    factors = np.ravel(dataclasses.astuple(flat.collectives))
    np.testing.assert_allclose(factors, np.ones(8), rtol=1e-3)
    if not unequal:
        assert hardware.workers is None
        assert hardware.compute == pytest.approx(0.02 * (2 + slowest) / 12)
        assert hardware.memory is None
    else:
        compute = [(number, kind.compute) for number, kind in hardware.kinds()]
        assert compute == [(4, 0.005), (4, 0.005), (4, pytest.approx(0.005 * slowest))]
        assert [kind.memory for _, kind in hardware.kinds()] == [None, 5e9, None]


def test_workers_of_a_machine_are_consecutive(monkeypatch):
    """Of six processes that a launcher distributed in turn."""

    devices = [SimpleNamespace(process_index=i, id=10 - i) for i in (4, 1, 5, 0, 3, 2)]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    places = measuring.find_places(["x", "y", "z"] * 2)
    assert places.hosts == ("x", "y", "z")
    at = [[device.process_index for device in row] for row in places.devices]
    assert at == [[0, 3], [1, 4], [2, 5]]
    means = places.means(np.array([1.0, 2.0, 3.0, 5.0, 7.0, 11.0]))
    np.testing.assert_array_equal(means, [3.0, 4.5, 7.0])
    with pytest.raises(ValueError, match="4 on x, 2 on y; expected the same number on each"):
        measuring.find_places(["x", "y", "x", "x", "y", "x"])


def test_processes_of_a_launcher_are_joined_or_detected(monkeypatch):
    """The number of processes is that of local ones, unless the process has a number."""
    joined = []
    monkeypatch.setattr(commands, "launch", lambda main, args, machines: joined.append(machines))
    calibrate.launch(calibrate.Args(processes=4))
    calibrate.launch(calibrate.Args(processes=4, process_id=3, coordinator="node1:12345"))
    assert [each[:3] for each in map(dataclasses.astuple, joined)] == [
        (None, None, None),
        ("node1:12345", 4, 3),
    ]


def test_flags_of_local_processes_are_refused_under_a_launcher(monkeypatch):
    monkeypatch.setattr(calibrate.agreement, "process_count", lambda: 3)
    calibrate.refuse_local(calibrate.Args(processes=3))
    with pytest.raises(ValueError, match="--processes 4, but the launcher started 3"):
        calibrate.refuse_local(calibrate.Args(processes=4))
    with pytest.raises(ValueError, match=r"--shape 30mbit with .* workers of a launcher"):
        calibrate.refuse_local(calibrate.Args(shape="30mbit"))


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
