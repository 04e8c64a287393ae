"""Every script, with a tiny budget: its files, its table, its help."""

from __future__ import annotations

import json
import math
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
from algorithms import dropcompute
from dsgd import compressors, problems
from experiments import compare, compression
from experiments.benchmark import by_hand, cannikin, kimad, peers, rounds, sparse, start
from experiments.benchmark import compression as throughput
from experiments.benchmark import dropcompute as dropping
from experiments.benchmark import work as unequal
from experiments.benchmark.jobs import framework as framework_job
from experiments.benchmark.jobs import loop as loop_job
from experiments.benchmark.jobs import scan as scan_job
from experiments.benchmark.jobs.laps import Laps
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


def test_benchmark_times_all_versions(tmp_path, capsys):
    methods = ("mb-sgd", "ec-sgd")
    rounds.main(rounds.Args(methods=methods, workers=(4,), dimensions=(5,), seconds=0.001, repeats=1, problems=1, out=tmp_path))
    assert not scripts.too_wide(capsys.readouterr().out.splitlines())
    rows = {row["method"]: row for row in scripts.rows(tmp_path / "rounds.csv")}
    assert set(rows) == set(methods)
    for row in rows.values():
        assert all(float(row[name]) > 0 for name in ("framework", "scan", "product", "additions", "limit", "speedup", "of_limit"))
    assert float(rows["mb-sgd"]["numpy"]) > 0
    assert math.isnan(float(rows["ec-sgd"]["numpy"]))


def test_benchmark_of_rounds_tells_each_number_in_its_unit():
    row = rounds.Row("dsgd", 16, 1_000, 8e-6, 2e-5, 2e-5, 2e-5, 4e-5, 4e-6, speedup=2.5, of_limit=0.5, bytes_per_second=32e9)
    cells = [next(iter(column.cells)) for column in rounds.tabulate([row]).columns]
    assert cells == ["dsgd", "16 x 1,000", "8.0", "0.500", "32", "2.50", "5.00", "0.50"]


@pytest.mark.parametrize("name", [name for name in by_hand.SCANS if name != "csgd"])
@pytest.mark.parametrize("mean", rounds.FORMS.values())
def test_the_benchmarks_versions_do_the_same_mathematics(name, mean, mesh, key):
    """After the same rounds, the same f, |f'|^2 and consensus distance; parts are not all as long."""
    problem = problems.random_quadratic(8, 12, diagonal=True, seed=2)
    method = algorithms.make(name, optax.sgd(by_hand.LEARNING_RATE), 8)
    ours = dsgd.run(method, problem, steps=20, key=key, mesh=mesh).history
    histories = [jax.device_get(by_hand.scan(name, problem, mean)(20))[1]]
    loop = by_hand.loop(name, problem)
    histories += [np.array(loop(20)[1]).T] if loop else []
    for theirs in histories:
        for recorded, history in zip(("loss", "grad_sqnorm", "consensus"), theirs, strict=True):
            np.testing.assert_allclose(ours[recorded][1:], history, rtol=1e-3, atol=1e-6)


def test_compressed_sgd_by_hand_comes_as_near_to_the_minimum(mesh, key):
    """Its random numbers are others: means over the last rounds agree to their spread. (Parts of two elements would have no noise.)"""
    problem = problems.random_quadratic(4, 24, diagonal=True, seed=2)
    method = algorithms.make("csgd", optax.sgd(by_hand.LEARNING_RATE), 4)
    ours = dsgd.run(method, problem, steps=2_000, key=key, mesh=mesh).history["grad_sqnorm"][-1_500:]
    theirs = np.asarray(by_hand.scan("csgd", problem)(2_000)[1][1])[-1_500:]
    batches = np.array([ours.reshape(15, 100).mean(axis=1), theirs.reshape(15, 100).mean(axis=1)])
    error = np.sqrt(batches.var(axis=1, ddof=1).sum() / 15)
    assert abs(np.diff(batches.mean(axis=1))[0]) < 4 * error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": (4, 4)}, "2 workers for 1 dimensions: need as many"),
        ({"methods": ("gd",)}, "need some of mb-sgd, dsgd"),
        ({"methods": ()}, "need some of mb-sgd, dsgd"),
    ],
)
def test_benchmark_of_rounds_refuses_what_it_cannot_time(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        rounds.main(rounds.Args(**{"workers": (4,), "dimensions": (5,), **arguments}, out=tmp_path))


@pytest.mark.long
def test_benchmark_of_starts_times_processes_cold_and_warm(tmp_path, capsys, monkeypatch):
    """The framework's alone: the others are processes like it."""
    make = start.make_versions
    monkeypatch.setattr(start, "make_versions", lambda *args: {"scan": make(*args)["dsgd"], "dsgd, warm": make(*args)["dsgd, warm"]})
    start.main(start.Args(repeats=1, out=tmp_path))
    assert not scripts.too_wide(capsys.readouterr().out.splitlines())
    cold, warm = scripts.rows(tmp_path / "start.csv")
    assert float(cold["ratio"]) == 1
    assert 0 < float(warm["compile"]) < float(cold["compile"]) < float(cold["wall"])
    assert all(float(row[stage]) > 0 for row in (cold, warm) for stage in start.STAGES)


def test_a_job_that_fails_is_told(capfd):
    with pytest.raises(RuntimeError, match=r"jobs\.framework nonsense ended with status 1"):
        start.timed(start.Version("framework", {}), "nonsense")
    assert "KeyError: 'nonsense'" in capfd.readouterr().err


def test_jobs_by_hand_do_what_the_framework_does():
    """The same problem, another partition and other draws: after 1,000 rounds, losses within 5 % of each other."""
    with jax.numpy_rank_promotion("allow"):
        ends = [job(Laps()) for job in (framework_job.logistic, scan_job.logistic, loop_job.logistic)]
    assert max(ends) < 1.05 * min(ends)


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


@pytest.mark.long
def test_benchmark_of_compressors_times_each(tmp_path, capsys, monkeypatch):
    """Of all that need the same, one."""
    monkeypatch.setattr(throughput, "CANDIDATES", list({candidate.needs: candidate for candidate in throughput.CANDIDATES}.values()))
    throughput.main(throughput.Args(dimensions=(4096,), repeats=1, out=tmp_path))
    shown = capsys.readouterr().out
    assert "d = 4,096" in shown
    assert not scripts.too_wide(shown.splitlines())
    rows = {row["program"]: row for row in scripts.rows(tmp_path / "throughput.csv")}
    for candidate in throughput.CANDIDATES:
        row = rows[candidate.compressor.name]
        assert all(float(row[name]) > 0 for name in ("bits_per_element", "encode_bytes_per_second", "decode_bytes_per_second", "cost"))


@pytest.mark.long
def test_benchmark_of_work_times_equal_and_unequal_rounds(tmp_path, capsys):
    unequal.main(unequal.Args(("logistic",), 2, workers=4, micro_batches=4, seconds=1e-3, repeats=1, out=tmp_path))
    assert not scripts.too_wide(capsys.readouterr().out.splitlines())
    (row,) = scripts.rows(tmp_path / "work.csv")
    assert row["samples"] == "20"  # 2 to 8, 5 on average, of 4 workers
    for name, one, other in (("unequal_over_equal", "unequal", "equal"), ("padded_over_whole", "padded", "whole")):
        assert float(row[name]) == pytest.approx(float(row[one]) / float(row[other]))


@pytest.mark.parametrize(("workers", "largest"), [(2, 8), (16, 128), (16, 512), (6, 100)])
def test_sizes_of_the_benchmark_differ_by_four_and_have_the_total_of_equal_ones(workers, largest):
    sizes = unequal.sizes(workers, largest)
    assert (sizes.min(), sizes.max()) == (largest // 4, largest)
    assert 8 * sizes.sum() == 5 * workers * largest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"models": ("mlp", "cnn", "quadratic")}, "--models quadratic: need some of logistic, mlp, cnn"),
        ({"micro_batches": 6}, "micro_batches = 6: need a multiple of 4"),
        ({"workers": 3}, "workers = 3: need an even number"),
    ],
)
def test_benchmark_of_work_refuses_what_it_cannot_time(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        unequal.main(unequal.Args(**arguments, out=tmp_path))


@pytest.mark.long
def test_benchmark_of_sparse_features_times_both_kinds(tmp_path, capsys):
    sparse.main(sparse.Args(("w8a",), samples=40, workers=4, batch_size=2, seconds=1e-3, repeats=1, out=tmp_path))
    assert not scripts.too_wide(capsys.readouterr().out.splitlines())
    (row,) = scripts.rows(tmp_path / "sparse.csv")
    assert all(float(row[name]) > 0 for name in ("round_sparse", "round_dense", "exact_sparse", "exact_dense"))
    assert (int(row["bytes_sparse"]), int(row["bytes_dense"])) == (40 * 12 * 8, 40 * 300 * 4)
    with pytest.raises(ValueError, match="--shapes a1a: need some of mushrooms, a9a, w8a, rcv1"):
        sparse.main(sparse.Args(("a1a",), out=tmp_path))


def test_scripts_take_libsvm_files(tmp_path):
    (tmp_path / "a9a").write_text("".join(f"{(-1) ** i} {1 + i % 3}:1 {5 + i % 7}:0.5\n" for i in range(80)))
    for model, kind in (("logistic", problems.SparseRows), ("mlp", jax.Array)):
        problem = compare.make_problem(compare.Args(model=model, data="a9a", data_dir=tmp_path, workers=4, batch_size=2))
        assert isinstance(problem.data.inputs, kind)


@pytest.mark.long
def test_benchmark_of_kimad_times_decisions_and_rounds(tmp_path, capsys):
    sizes = {"layers": (3,), "choices": (2,), "resolutions": (10,), "workers": 2, "models": ("logistic",)}
    kimad.main(kimad.Args(**sizes, seconds=1e-3, repeats=1, out=tmp_path))
    assert not scripts.too_wide(capsys.readouterr().out.splitlines())
    (row,) = scripts.rows(tmp_path / "deciding.csv")
    assert (row["layers"], row["choices"], row["resolution"]) == ("3", "2", "10")
    assert all(float(row[name]) > 0 for name in ("alone", "together", "numpy"))
    (row,) = scripts.rows(tmp_path / "training.csv")
    assert (row["model"], row["layers"], row["elements"]) == ("logistic", "2", "650")
    assert all(float(row[name]) > 0 for name in ("ef21", "kimad", "kimad_plus", "whole_model"))


def test_what_the_benchmark_of_kimad_times_decides_alike():
    given = kimad.instance(3, 4, 5)
    ((alone,), (together,), ((plain, least),)) = (run(1) for run in kimad.versions(given, 100).values())
    layers = np.arange(4)
    assert least == pytest.approx(given.errors[0][layers, plain].sum())
    assert given.errors[0][layers, alone].sum() == pytest.approx(least)
    np.testing.assert_array_equal(together[0], alone)
    assert all(given.sizes[layers, choices].sum() <= budget for choices, budget in zip(together, given.budgets, strict=True))


def test_benchmark_of_kimad_refuses_sizes_that_do_not_match(tmp_path):
    with pytest.raises(ValueError, match=r"--layers, --choices, --resolutions: \[1, 2, 1\] numbers: need as many of each"):
        kimad.main(kimad.Args(layers=(3,), choices=(2, 3), resolutions=(10,), out=tmp_path))


def test_benchmark_of_cannikin_times_decisions(tmp_path, capsys):
    cannikin.main(cannikin.Args((3, 5), 4, ("logistic",), seconds=1e-3, repeats=1, out=tmp_path))
    lines = capsys.readouterr().out.splitlines()
    assert not scripts.too_wide(lines)
    assert any("OptPerf, ms" in line for line in lines)
    assert any("sizes that differ by 4" in line for line in lines)
    (row,) = scripts.rows(tmp_path / "work.csv")
    assert float(row["unequal_over_equal"]) > 0
    rows = scripts.rows(tmp_path / "optperf.csv")
    assert [row["nodes"] for row in rows] == ["3", "5"]
    assert all(float(row[name]) > 0 for row in rows for name in cannikin.Row._fields)


def test_what_the_benchmark_of_cannikin_times_is_optperf():
    real, many, whole, _, program = (run(1)[0] for run in cannikin.versions(6, 7).values())
    model = cannikin.cluster(6)()
    assert set(model.computes_longer(real.batches)) == {True, False}
    assert real.seconds == pytest.approx(program.fun, rel=1e-9)
    assert (many.seconds.shape, whole.batches.sum()) == ((7,), real.batches.sum())


@pytest.mark.long
def test_benchmark_of_dropcompute_times_planning_simulation_and_training(tmp_path, capsys):
    sizes = {"iterations": (2,), "workers": (3,), "micro_batches": (4,), "simulated_workers": 3, "trained_workers": 2, "accumulations": 3}
    training = {"models": ("logistic",), "batch_size": 2}
    dropping.main(dropping.Args(**sizes, **training, rounds=5, seconds=1e-3, repeats=1, out=tmp_path))
    assert not scripts.too_wide(capsys.readouterr().out.splitlines())
    found = {}
    for name in ("planning", "simulation", "training"):
        found[name] = scripts.rows(tmp_path / f"{name}.csv")
    assert [row["stop"] for row in found["planning"]] == ["preempt", "between"]
    assert all(float(row[name]) > 0 for row in found["planning"] for name in ("searched", "compiled", "grid", "loops"))
    (row,) = found["simulation"]
    assert (row["rounds"], row["workers"], row["micro_batches"]) == ("5", "3", "3")
    assert float(row["step"]) < float(row["whole_step"])
    assert float(row["rate"]) > 0
    (row,) = found["training"]
    assert float(row["all_over_plain"]) == pytest.approx(float(row["all"]) / float(row["plain"]))
    assert all(float(row[name]) > 0 for name in ("whole", "dropped", "dropped_over_plain", "all_over_whole"))


@pytest.mark.parametrize("stop", dropping.STOPS)
def test_what_the_benchmark_of_dropcompute_times_is_the_threshold(stop):
    """The grid's best is no better; the compiled search finds the same; the loops are equation 6."""
    latencies = np.random.default_rng(0).lognormal(size=(4, 5, 3))
    searched, grid = (dropping.planners(latencies, 0.5, stop)[name]() for name in ("searched", "grid"))
    best, on_grid = dropcompute.effective_speedup(latencies, 0.5, [searched, grid], stop)
    taus = np.linspace(0, latencies.sum(axis=2).max(), dropping.GRID + 1)[1:]
    assert best >= on_grid == dropcompute.effective_speedup(latencies, 0.5, taus, stop).max() > 1
    assert float(dropping.compiled(latencies, 0.5, stop)()) == pytest.approx(searched, rel=1e-5)
    assert dropping.loops(latencies, 0.5, searched, stop) == pytest.approx(best)


def test_benchmark_of_dropcompute_refuses_what_it_cannot_time(tmp_path):
    with pytest.raises(ValueError, match=r"--iterations, --workers, --micro-batches: \[1, 2, 2\] numbers: need as many of each"):
        dropping.main(dropping.Args(iterations=(3,), out=tmp_path))
    with pytest.raises(ValueError, match="--models quadratic: need some of logistic, mlp, cnn"):
        dropping.main(dropping.Args(models=("mlp", "quadratic"), out=tmp_path))


@pytest.mark.parametrize(
    ("script", "fields"),
    [
        ("experiments/compare.py", compare.Args),
        ("experiments/compression.py", compression.Args),
        ("experiments/benchmark/__main__.py rounds", rounds.Args),
        ("experiments/benchmark/__main__.py compression", throughput.Args),
        ("experiments/benchmark/__main__.py work", unequal.Args),
        ("experiments/benchmark/__main__.py kimad", kimad.Args),
        ("experiments/benchmark/__main__.py sparse", sparse.Args),
        ("experiments/benchmark/__main__.py cannikin", cannikin.Args),
        ("experiments/benchmark/__main__.py dropcompute", dropping.Args),
        ("experiments/benchmark/__main__.py peers", peers.Args),
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
