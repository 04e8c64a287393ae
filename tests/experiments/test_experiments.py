"""Every script, with a tiny budget: its files, its table, its help."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments import benchmark, common, compare

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    out = tmp_path_factory.mktemp("compare")
    args = compare.Args(
        workers=4, steps=40, seeds=2, methods=("sgd", "mb-sgd", "csgd", "dsgd"), learning_rates=(0.1, 1.0), out=out, progress=False
    )
    compare.main(args)
    return args


def test_compare_writes_its_config_history_and_figure(compared):
    config = json.loads((compared.out / "config.json").read_text())
    assert config["workers"] == 4
    assert config["learning_rates"] == [0.1, 1.0]
    assert (compared.out / "figure.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with (compared.out / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == set(compared.methods)
    assert {row["seed"] for row in rows} == {"0", "1"}
    assert len(rows) == 4 * 2 * 41
    assert float(rows[-1]["loss"]) < float(rows[-41]["loss"])
    assert float(rows[-1]["seconds"]) > 0


def test_compare_prints_one_row_a_method_in_80_columns(compared, capsys):
    compare.main(compared)
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines if not line.startswith("Written"))
    rows = {cells[0].strip(): [cell.strip() for cell in cells[1:]] for line in lines if len(cells := line.strip("│ ").split("│")) == 6}
    assert set(compared.methods) <= set(rows)
    for name in compared.methods:
        assert "-" not in rows[name], "the default target is one that every method reaches"
        assert rows[name][-1].endswith("%")


def test_compare_counts_seconds_by_the_networks_closed_form(compared):
    """mb-sgd: 2(N-1)(l + r/N) a round, with r the model over the bandwidth, besides the compute."""
    with (compared.out / "history.csv").open() as file:
        last = [row for row in csv.DictReader(file) if row["method"] == "mb-sgd"][-1]
    transfer = 650 * 32 / compared.bandwidth
    each = 2 * 3 * (compared.latency + transfer / 4) + compared.batch_size * compared.compute
    assert float(last["seconds"]) == pytest.approx(compared.steps * each, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ("sgd", "adagrad")}, "unknown method 'adagrad'"),
        ({"data": "iris"}, "unknown data 'iris': need one of digits, breast-cancer, mnist, cifar-10"),
        ({"data": "mnist"}, "need data_dir"),
        ({"partition": "random"}, "unknown partition 'random': need one of iid, by-label, dirichlet"),
        ({"batch_size": 1000}, "batch_size = 1000, but worker"),
        ({"bandwidth": 0.0}, "bandwidth = 0"),
    ],
)
def test_compare_refuses_bad_input_before_the_first_run(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        compare.main(compare.Args(out=tmp_path, progress=False, **options))
    assert not list(tmp_path.iterdir())


def test_compare_without_methods_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no methods"):
        compare.main(compare.Args(out=tmp_path, methods=()))


def test_compare_marks_a_target_that_no_method_reaches(tmp_path, capsys):
    compare.main(
        compare.Args(workers=2, steps=3, seeds=1, methods=("gd",), learning_rates=(0.1,), target=1e-9, out=tmp_path, progress=False)
    )
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("│ gd"))
    assert row.split("│")[3:6] == [cell for cell in row.split("│")[3:6] if cell.strip() == "-"]


def test_compare_leaves_out_a_method_that_diverges_at_every_step_size(tmp_path, capsys):
    args = compare.Args(workers=2, steps=30, seeds=1, methods=("gd",), learning_rates=(1e38,), out=tmp_path, progress=False)
    with pytest.raises(ValueError, match="every method diverged at every step size"):
        compare.main(args)


def test_benchmark_times_all_versions(tmp_path, capsys):
    benchmark.main(benchmark.Args(workers=(4,), dimensions=(5,), seconds=0.001, repeats=1, problems=1, out=tmp_path))
    assert "4 x 5" in capsys.readouterr().out
    with (tmp_path / "rounds.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert all(float(row[name]) > 0 for name in ("framework", "scan", "numpy", "limit", "ratio"))


def test_the_benchmarks_versions_do_the_same_mathematics(mesh, key):
    """After the same rounds, the same f, |f'|^2 and consensus distance."""
    import jax
    import optax

    import algorithms
    import dsgd
    import topologies
    from dsgd import problems

    problem = problems.random_quadratic(6, 5, diagonal=True, seed=2)
    method = algorithms.decentralized_sgd(optax.sgd(benchmark.LEARNING_RATE), topologies.ring(6))
    ours = dsgd.run(method, problem, steps=20, key=key, mesh=mesh).history
    theirs = jax.device_get(benchmark.scan(problem)(20))[1]
    by_hand = np.array(benchmark.loop(problem)(20)[1]).T
    for name, scanned, looped in zip(("loss", "grad_sqnorm", "consensus"), theirs, by_hand, strict=True):
        np.testing.assert_allclose(ours[name][1:], scanned, rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(ours[name][1:], looped, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["compare", "benchmark"])
def test_help_names_every_flag(name):
    shown = subprocess.run(
        [sys.executable, "-m", f"experiments.{name}", "--help"], capture_output=True, text=True, cwd=ROOT, check=True, env={"COLUMNS": "80"}
    ).stdout
    fields = {"compare": compare.Args, "benchmark": benchmark.Args}[name].__dataclass_fields__
    for field in fields:
        assert f"--{field.replace('_', '-')}" in shown


def test_statistics_over_seeds():
    values = np.array([[4.0, 2.0, 1.0], [6.0, 2.0, 3.0]])
    middle, error = common.mean_and_error(values)
    np.testing.assert_allclose(middle, [5, 2, 2])
    np.testing.assert_allclose(error, [1, 0, 1])
    assert common.first_reaching(values, 2.0) == 1
    assert common.first_reaching(values, 1.0) is None
    np.testing.assert_array_equal(common.mean_and_error(values[:1])[1], 0)


def test_default_target_is_reached_by_every_method():
    falling = np.linspace(1, 0.123, 101)[None, :]
    target = compare.default_target({"fast": {"loss": falling / 2}, "slow": {"loss": falling}})
    assert falling[:, -10:].mean() <= target <= falling[:, -10:].mean() * 1.1
