"""Every script, with a tiny budget: its files, its table, its help."""

from __future__ import annotations

import json
import runpy
import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
import scripts
from flax import linen as nn

import algorithms
import dsgd
from dsgd import compressors, problems
from experiments import compare, compression
from experiments.shared import common
from experiments.survey import break_even

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    out = tmp_path_factory.mktemp("compare")
    args = compare.Args(
        workers=4, steps=40, seeds=2, methods=("mb-sgd", "csgd", "dsgd"), learning_rates=(0.1, 1.0), out=out, progress=False
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(common, "devices_for", lambda workers: dsgd.workers.mesh(1))
        return args, scripts.printed(compare.main, args)


def test_compare_writes_its_config_history_and_figure(compared):
    args, _ = compared
    config = json.loads((args.out / "config.json").read_text())
    assert config["workers"] == 4
    assert config["learning_rates"] == [0.1, 1.0]
    assert scripts.is_figure(args.out / "figure.png")
    rows = scripts.rows(args.out / "history.csv")
    assert {row["method"] for row in rows} == set(args.methods)
    assert {row["seed"] for row in rows} == {"0", "1"}
    assert len(rows) == 3 * 2 * 41
    assert float(rows[-1]["loss"]) < float(rows[-41]["loss"])
    assert float(rows[-1]["clock"]) > 0


def test_compare_prints_one_row_a_method_in_80_columns(compared):
    args, lines = compared
    assert not scripts.too_wide(lines)
    rows = {cells[0].strip(): [cell.strip() for cell in cells[1:]] for line in lines if len(cells := line.strip("│ ").split("│")) == 6}
    assert set(args.methods) <= set(rows)
    for name in args.methods:
        assert "-" not in rows[name], "the default target is one that every method reaches"
        assert rows[name][-1].endswith("%")


def test_compare_counts_seconds_by_the_networks_closed_form(compared):
    """mb-sgd: 2(N-1)(l + r/N) a round, with r the model over the bandwidth, besides the compute."""
    args, _ = compared
    last = [row for row in scripts.rows(args.out / "history.csv") if row["method"] == "mb-sgd"][-1]
    transfer = 650 * 32 / args.bandwidth
    each = 2 * 3 * (args.latency + transfer / 4) + args.batch_size * args.compute
    assert float(last["clock"]) == pytest.approx(args.steps * each, rel=1e-4)


def test_compare_counts_the_compute_of_all_samples_and_of_one_worker_after_another():
    """gd computes as many batches as its data hold in a round; sgd one, of one worker, and sends nothing."""
    args = compare.Args(workers=4, delay=0.0)
    problem, cluster = compare.make_problem(args), compare.make_cluster(args)
    run = {"steps": 3, "key": jax.random.key(0), "cluster": cluster, "mesh": 1}
    each = args.batch_size * args.compute
    clocks = {name: dsgd.run(algorithms.make(name, optax.sgd(0.1), 4), problem, **run).history["clock"] for name in ("gd", "mb-sgd", "sgd")}
    most = int(np.asarray(problem.data.weights).sum(axis=1).max())
    np.testing.assert_allclose(clocks["sgd"], each * np.arange(4), rtol=1e-6)
    np.testing.assert_allclose(clocks["gd"] - clocks["mb-sgd"], np.arange(4) * (most / args.batch_size - 1) * each, rtol=1e-5)


def test_compare_with_delays_waits_longer_where_all_wait_for_the_last():
    """In one run's clock: a mean delay of 1 is, for the slowest of 4, 1 + 1/2 + 1/3 + 1/4."""
    problem, cluster = problems.random_quadratic(4, 2), compare.make_cluster(compare.Args(workers=4, delay=1.0))
    run = {"steps": 400, "key": jax.random.key(0), "cluster": cluster, "mesh": 1, "record_every": 400}
    clock = {
        name: dsgd.run(algorithms.make(name, optax.sgd(0.1), 4), problem, **run).history["clock"][-1] / 400 for name in ("mb-sgd", "asgd")
    }
    assert clock["mb-sgd"] == pytest.approx(25 / 12, abs=5 * 1.2 / 20)
    assert clock["asgd"] == pytest.approx(1 / 4, abs=5 * 0.25 / 20)


def test_compare_trains_a_language_model_on_a_text(tmp_path, monkeypatch):
    """Of bigrams, which compile faster than a transformer, on one device."""
    small = partial(problems.language_model, model=nn.Embed(256, 256), context=16)
    monkeypatch.setattr(problems, "language_model", small)
    monkeypatch.setattr(common, "devices_for", lambda workers: dsgd.workers.mesh(1))
    (tmp_path / "text").write_bytes(b"what was said is said again, " * 30)
    args = compare.Args(
        model="language-model",
        data=str(tmp_path / "text"),
        partition="blocks",
        workers=2,
        batch_size=2,
        steps=10,
        seeds=1,
        methods=("mb-sgd",),
        learning_rates=(30.0,),
        out=tmp_path / "out",
        progress=False,
    )
    lines = scripts.printed(compare.main, args)
    assert "bits per byte" in "".join(lines)
    rows = scripts.rows(args.out / "history.csv")
    first, last = (float(rows[at]["test_bits_per_byte"]) for at in (0, -1))
    assert first == pytest.approx(8, abs=0.1)
    assert last < 5
    assert any(f"{last:.2f}" in line for line in lines)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ("sgd", "adagrad")}, "unknown method 'adagrad'"),
        ({"data": "iris"}, "unknown data 'iris': need one of digits, breast-cancer, mnist, .*cifar-10"),
        ({"data": "mnist"}, "need data_dir"),
        ({"partition": "random"}, "unknown partition 'random': need one of iid, blocks, by-label, dirichlet"),
        ({"model": "language-model", "data": "digits"}, "text = 'digits', and no such file is there: need 'docstrings', 'grammar'"),
        ({"bandwidth": 0.0}, "need a bandwidth > 0"),
        ({"latency": -1.0}, "latency = -1"),
        ({"compute": float("nan")}, "need finite numbers"),
        ({"delay": -1.0}, "exponential: mean = -1"),
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


def test_compare_leaves_out_a_method_that_diverges_at_every_step_size(tmp_path):
    args = compare.Args(workers=2, steps=30, seeds=1, methods=("gd",), learning_rates=(1e38,), out=tmp_path, progress=False)
    with pytest.raises(ValueError, match="every method diverged at every step size"):
        compare.main(args)


@pytest.fixture(scope="module")
def compressed(tmp_path_factory, long):
    out = tmp_path_factory.mktemp("compression")
    names = ("identity", "sign", "random_sparsification(0.1)")
    args = compression.Args(
        models=("logistic",), partitions=("by-label",), compressors=names, workers=4, steps=60, seeds=2, learning_rates=(0.1, 1.0),
        sizes=(1000,), out=out, progress=False,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(common, "devices_for", lambda workers: dsgd.workers.mesh(1))
        return args, scripts.printed(compression.main, args)


def test_compression_writes_its_histories_break_even_and_figures(compressed):
    args, _ = compressed
    for figure in ("figure.png", "logistic-by-label.png"):
        assert scripts.is_figure(args.out / figure)
    rows = scripts.rows(args.out / "history.csv")
    assert len({row["method"] for row in rows}) == 2 * len(args.compressors)
    pays = {(row["compressor"], int(row["dimension"])): float(row["bits_per_second"]) for row in scripts.rows(args.out / "break_even.csv")}
    assert set(pays) == {(name, d) for name in args.compressors for d in (650, 1000)}
    assert pays["identity", 650] == 0
    assert all(value > 0 for (name, _), value in pays.items() if name != "identity")


def test_memory_makes_sign_learn(compressed):
    """By label the loss of sign without memory stays near ln 10 where all else falls."""
    args, _ = compressed
    last = {row["method"]: float(row["loss"]) for row in scripts.rows(args.out / "history.csv")}
    with_memory, without = (last[f"logistic, by-label, sign, {memory}"] for memory in (compression.WITH, compression.WITHOUT))
    assert with_memory < 0.5 * without


def test_compression_prints_tables_of_80_columns(compressed):
    _, lines = compressed
    assert not scripts.too_wide(lines)
    rows = scripts.cells(lines)
    table = {row[0]: row[1:] for row in rows if len(row) == 6}
    assert table["identity"][:2] == ["32", "1.0"]
    part = -(-650 // 4)
    assert float(table["sign"][0]) == pytest.approx((8 * -(-part // 8) + 32) / part, abs=0.005)
    assert table["identity"][-1] == "-"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compressors": ("sgn",)}, "compressors sgn: need some of identity,"),
        ({"compressors": ()}, "compressors none: need some of"),
        ({"partitions": ("random",)}, "unknown partition 'random'"),
        ({"workers": 1}, "workers = 1: need at least 2"),
    ],
)
def test_compression_refuses_bad_input_before_the_first_run(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        compression.main(compression.Args(out=tmp_path, progress=False, **options))
    assert not list(tmp_path.iterdir())


def test_break_even_is_what_the_saved_bits_take_as_long_as_the_codec(monkeypatch):
    """2(N - 1) messages of 125 floats against 125 bits and a float: with a second of encoding, so many bits a second."""
    monkeypatch.setattr(break_even, "codec_seconds", lambda *_: 1.0)
    assert break_even.bandwidth(compressors.sign, 8, 1000) == 2 * 7 * (32 * 125 - (128 + 32))
    assert break_even.bandwidth(compressors.identity, 8, 1000) == 0
    monkeypatch.setattr(break_even, "codec_seconds", lambda *_: -1e-9)
    assert break_even.bandwidth(compressors.sign, 8, 1000) == float("inf")


def test_a_timed_round_writes_its_messages_and_returns_what_all_workers_see():
    """With the identity everybody gets the parts of the iteration before, a millionth of their mean on top."""
    parts, up, down = break_even.exchange_loop(compressors.identity, N=4, d=12, rounds=2)()
    np.testing.assert_array_equal(up, parts)
    assert down.shape == (3,)
    signs = break_even.exchange_loop(compressors.sign, N=4, d=12, rounds=2)()
    assert {leaf.dtype.name for leaf in jax.tree.leaves(signs[1])} == {"uint8", "float32"}


def test_a_program_gives_its_result_every_time():
    double = common.program(lambda x: 2 * x, np.arange(3.0, dtype=np.float32))
    for _ in range(3):
        np.testing.assert_array_equal(double(), [0, 2, 4])


def test_megabits_have_three_digits():
    shown = {bandwidth: break_even.megabits(bandwidth) for bandwidth in (0, 1234567, 999.4e6, 1.2345e9, 47123e6, 12345, float("inf"))}
    assert list(shown.values()) == ["-", "1.23", "999", "1,230", "47,100", "0.0123", "any"]


def test_scripts_take_libsvm_files(tmp_path):
    (tmp_path / "a9a").write_text("".join(f"{(-1) ** i} {1 + i % 3}:1 {5 + i % 7}:0.5\n" for i in range(80)))
    for model, kind in (("logistic", problems.SparseRows), ("mlp", jax.Array)):
        problem = compare.make_problem(compare.Args(model=model, data="a9a", data_dir=tmp_path, workers=4, batch_size=2))
        assert isinstance(problem.data.inputs, kind)


@pytest.mark.parametrize(
    ("script", "fields"),
    [
        ("experiments/compare.py", compare.Args),
        ("experiments/compression.py", compression.Args),
    ],
)
def test_help_names_every_flag(script, fields, monkeypatch, capsys):
    """Run as a script is, in this process."""
    path, *choice = script.split()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", [path, *choice, "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / path), run_name="__main__")
    assert end.value.code == 0
    shown = capsys.readouterr().out
    for field in fields.__dataclass_fields__:
        assert f"--{field.replace('_', '-')}" in shown


def test_the_first_record_that_reaches_a_target():
    values = np.array([[4.0, 2.0, 1.0], [6.0, 2.0, 3.0]])
    assert common.first_reaching(values, 2.0) == 1
    assert common.first_reaching(values, 1.0) is None


def test_default_target_is_reached_by_every_method():
    falling = np.linspace(1, 0.123, 101)[None, :]
    target = compare.default_target({"fast": {"loss": falling / 2}, "slow": {"loss": falling}})
    assert falling[:, -10:].mean() <= target <= falling[:, -10:].mean() * 1.1


def test_default_target_is_not_one_that_half_of_the_methods_reach_at_once():
    falling = np.geomspace(1, 0.01, 101)[None, :]
    stuck = np.full((1, 101), 0.95)
    slow = {"loss": falling**0.25}
    histories = {"fast": {"loss": falling}, "slow": slow, "stuck": {"loss": stuck}, "also stuck": {"loss": stuck}}
    target = compare.default_target(histories)
    assert slow["loss"][:, -10:].mean() <= target < 0.95
    assert compare.default_target({"stuck": {"loss": stuck}, "also stuck": {"loss": stuck}}) == pytest.approx(0.95)


def test_compare_draws_every_method_in_its_familys_colour_with_its_name_at_its_end():
    step, noisy = np.arange(1, 6), np.array([[3.0, 1.0, 2.0, 0.5, 4.0]])
    histories = {name: {"step": step, "loss": noisy, "bits": noisy * 0 + step, "clock": noisy * 0 + step} for name in algorithms.ALGORITHMS}
    histories["sgd"]["bits"] = noisy * 0
    args = compare.Args(seeds=1)
    first, bits, _ = compare.draw(args, problems.random_quadratic(16, 2), histories, 0.4).axes
    lines = {line.get_label(): line for line in first.lines}
    assert set(lines) >= set(algorithms.ALGORITHMS), "each has a family"
    for name, family in {"gd": "synchronous", "ad-psgd": "asynchronous", "ef21": "compressed", "d2": "decentralized"}.items():
        assert lines[name].get_color() == compare.FAMILIES[family]
    np.testing.assert_array_equal(lines["gd"].get_ydata(), [1, 1, 0.5, 0.5])
    heights = sorted(name.xyann[1] for name in first.texts)
    assert len(heights) == len(algorithms.ALGORITHMS) == len(bits.texts) + 1
    assert np.diff(heights).min() >= compare.LABEL_HEIGHT - 1e-9
    assert bits.get_title() == "sgd sends nothing"


def test_one_seed_has_no_error():
    assert common.with_error(np.array([4.0, 6.0])) == "5.0 ± 1.0"
    assert common.with_error(np.array([4.0])) == "4.0"
    assert common.errors("bands", 1) == common.runs(1) == "one seed"
    assert common.errors("bands", 3).endswith("3 seeds")
