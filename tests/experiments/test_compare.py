"""`python -m experiments.compare` with a tiny budget, and tuning and statistics that other commands
also use.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import scripts

from dsgd import clusters
from experiments import compare
from experiments.shared import statistics, studies, tables, tuning


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Two methods; one of the step sizes diverges."""
    out = tmp_path_factory.mktemp("compare")
    args = compare.Args(
        workers=4,
        steps=40,
        seeds=2,
        methods=("minibatch_sgd", "compressed_sgd"),
        learning_rates=(1.0, 1e38),
        out=out,
        progress=False,
    )
    return args, scripts.ran(compare.main, args)


def test_it_writes_its_config_history_figure_and_table(comparison):
    args, lines = comparison
    assert json.loads((args.out / "config.json").read_text())["learning_rates"] == [1.0, 1e38]
    rows = scripts.rows(args.out / "history.csv")
    assert [(row["method"], row["seed"], row["step"]) for row in rows] == [
        (name, seed, str(step)) for name in args.methods for seed in "01" for step in range(41)
    ]
    assert float(rows[-1]["loss"]) < float(rows[-41]["loss"])
    table = {row.pop("method"): list(row.values()) for row in scripts.rows(args.out / "costs.csv")}
    assert [row[1:] for row in scripts.cells(lines)] == list(table.values())
    for name in args.methods:
        assert "-" not in table[name], "the default target is one that every method reaches"
        assert table[name][-1].endswith("%")
    assert lines[-3].startswith(
        f"Written: {args.out}/config.json, costs.csv, figure.png, history.csv"
    )


def test_two_processes_write_the_same(comparison, tmp_path):
    """To rounding: this process has settings of tests that its processes do not have."""
    args, lines = comparison
    other = replace(args, on="processes", jobs=2, out=tmp_path / "out")
    assert scripts.ran(compare.main, other)[:-3] == lines[:-3]
    both = [scripts.rows(each.out / "history.csv") for each in (args, other)]
    for one, two in zip(*both, strict=True):
        assert one.pop("method") == two.pop("method")
        for name, value in one.items():
            assert float(two[name]) == pytest.approx(float(value), rel=1e-4, nan_ok=True), name


def test_seconds_are_those_of_the_networks_closed_form(comparison):
    """minibatch_sgd: 2(N-1)(l + r/N) per round, where r is the model over the bandwidth, plus the
    compute time.
    """
    args, _ = comparison
    last = [
        row for row in scripts.rows(args.out / "history.csv") if row["method"] == "minibatch_sgd"
    ][-1]
    each = 2 * 3 * (args.latency + 650 * 32 / args.bandwidth / 4) + args.batch_size * args.compute
    assert float(last["clock"]) == pytest.approx(args.steps * each, rel=1e-4)


def test_a_delay_is_added_to_the_seconds_of_a_batch():
    cluster = tuning.make_cluster(compare.Args(delay=1.0))
    ports = {"up": clusters.constant(1e8), "latency": 1e-4}
    assert (
        cluster.name
        == clusters.Cluster(clusters.constant(16e-4) + clusters.exponential(1.0), **ports).name
    )
    assert (
        tuning.make_cluster(compare.Args()).name
        == clusters.Cluster(clusters.constant(16e-4), **ports).name
    )


def histories(*losses: np.ndarray) -> list[dict[str, np.ndarray]]:
    """Histories of one seed, with a bit and a second per round."""
    return [
        {
            "step": np.arange(loss.shape[-1]),
            "loss": loss,
            "bits": 1e6 * np.ones_like(loss),
            "clock": np.ones_like(loss),
        }
        for loss in losses
    ]


def test_diverged_methods_and_a_target_not_reached_are_marked(tmp_path, monkeypatch):
    (history,) = histories(np.array([[3.0, 2.0, 1.0], [5.0, 2.0, 3.0]]))
    tuned = studies.Tuned({"learning_rate": 0.1}, history, {"learning_rate": (0.1, 0.3)})
    table = tables.table("", ("method", "step size", "rounds", "Mbit", "seconds"))
    studies.fill(
        table,
        {"gd": tuned, "sgd": None},
        lambda one: [one.cell(), *statistics.cost_to(one.history, 1e-9)],
    )
    first, second = zip(*(column.cells for column in table.columns), strict=True)
    assert first == ("gd", "*0.1", "-", "-", "-")
    assert second == ("sgd", "diverged", "-", "-", "-")
    assert statistics.cost_to(history, 2.0) == ["1", "1", "1"]
    assert statistics.first_reaching(history["loss"], 1.0) is None
    monkeypatch.setattr(studies, "tune", lambda *_: None)
    args = compare.Args(methods=("gradient_descent", "sgd"), out=tmp_path, progress=False)
    with pytest.raises(ValueError, match="methods: all runs diverged at every step size of"):
        compare.main(args)


def test_the_default_target_is_reached_by_all_and_immediately_by_few():
    falling, stuck = np.geomspace(1, 0.01, 101)[None, :], np.full((1, 101), 0.95)
    fast, slow, stuck, also_stuck = (
        studies.Tuned({}, history, {})
        for history in histories(falling, falling**0.25, stuck, stuck)
    )
    target = compare.default_target({"fast": fast, "slow": slow})
    assert slow.loss <= target <= 1.1 * slow.loss
    assert (
        compare.default_target(
            {"fast": fast, "slow": slow, "stuck": stuck, "also stuck": also_stuck}
        )
        == target
    )
    assert compare.default_target({"stuck": stuck, "also stuck": also_stuck}) == pytest.approx(0.95)
