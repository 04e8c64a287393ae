"""The benchmarks: their versions do the same mathematics, and what cannot be timed is refused."""

from __future__ import annotations

import json
import math
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scripts

import algorithms
import dsgd
import topologies
from dsgd import problems
from dsgd.workers import routes
from experiments.benchmark import by_hand, environments, mixing, peers, rounds, start, timing
from experiments.benchmark import compression as throughput
from experiments.benchmark.jobs import peers as jobs
from experiments.benchmark.jobs import start as start_jobs

MANY = mixing.MOST  # elements of a model, of which eight are too many
WARM = {"rounds_per_second": 1.0, "memory": 2_000_000, "versions": {"numpy": "2"}}


@pytest.fixture
def data(tmp_path):
    peers.write_data(tmp_path, 5, 7)
    return str(tmp_path)


@pytest.mark.parametrize(("method", "versions"), [("dsgd", ("dsgd", "scan", "numpy")), ("mb-sgd", ("dsgd", "scan"))])
def test_versions_make_the_same_iterates(method, versions, data):
    what = jobs.Job(data, rounds=12, method=method)
    with jax.enable_x64(True):
        first, *others = (np.asarray(jobs.VERSIONS[name].build(what)(12)) for name in versions)
    for models in others:
        assert models.dtype == np.float64
        np.testing.assert_allclose(models, first, rtol=0, atol=peers.AGREE * np.abs(first).max())
    assert first.shape == ((5, 7) if method == "dsgd" else (7,))


def test_processes_are_timed_and_shown(tmp_path, capsys, monkeypatch):
    """Numpy's alone: the others are processes like it."""
    monkeypatch.setitem(peers.VERSIONS, "dsgd", ("numpy",))
    monkeypatch.setattr(peers, "MOST", 80)
    peers.main(peers.Args(methods=("dsgd",), workers=(3,), dimensions=(5, 30), rounds=2, seconds=1e-3, repeats=1, out=tmp_path))
    rows = scripts.rows(tmp_path / "peers.csv")
    assert [(row["version"], row["workers"], row["dimension"]) for row in rows] == [("numpy", "3", "5")]
    assert all(float(row["rounds_per_second"]) > 0 and float(row["seconds"]) > 0 and float(row["apart"]) == 0 for row in rows)
    assert all(1e6 < float(row["memory"]) < 2e8 for row in rows)  # numpy alone, whatever this process has
    assert json.loads((tmp_path / "versions.json").read_text())["numpy"]["numpy"] == np.__version__
    assert (tmp_path / "peers.png").exists()
    printed = capsys.readouterr().out
    assert " ".join(printed.split()).count("larger sizes left out: 1") == 3
    assert max(map(len, printed.splitlines())) <= 80


def fake(monkeypatch, models: dict[str, float], late: str = "") -> None:
    """Versions that tell at once models `[3, 2]` of one number, but for one that takes too long."""

    def timed(version, longest, **what):
        name = version.command[-1]
        if name == late:
            return None
        if "save" in what:
            np.save(what["save"], np.full((3, 2), models[name]))
        return 0.5, WARM

    monkeypatch.setattr(peers, "timed", timed)


def test_versions_that_differ_are_told(tmp_path, monkeypatch):
    args = peers.Args(methods=("dsgd",), versions=("dsgd", "numpy"), workers=(3,), dimensions=(2,), repeats=1, out=tmp_path)
    fake(monkeypatch, {"dsgd": 1.0, "numpy": 1 + 2e-13})
    with pytest.raises(RuntimeError, match=r"dsgd: after 20 rounds numpy is 2e-13 from the first version: need 1e-13"):
        peers.main(args)
    fake(monkeypatch, {"dsgd": 1.0, "numpy": float("nan")})
    with pytest.raises(RuntimeError, match="numpy is nan from the first version"):
        peers.main(args)


def test_what_takes_too_long_or_cannot_be_had_is_told(tmp_path, monkeypatch, capsys):
    def made(name, folder):
        raise environments.Unavailable(f"{name} needs more")

    monkeypatch.setattr(environments, "made", made)
    fake(monkeypatch, {"scan": 1.0, "numpy": 1.0}, late="dsgd")
    versions = ("dsgd", "scan", "numpy", "torch")
    peers.main(
        peers.Args(methods=("dsgd",), versions=versions, workers=(3,), dimensions=(2,), longest=7, environments=tmp_path, out=tmp_path)
    )
    said = capsys.readouterr().out
    assert "Left out: torch needs more" in said
    assert said.count("> 7 s") == 3
    assert [row["version"] for row in scripts.rows(tmp_path / "peers.csv")] == ["dsgd", "scan", "numpy"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": ("extra",)}, "--methods extra: need some of dsgd, mb-sgd"),
        ({"versions": ("jax", "scan")}, "--versions jax: need some of dsgd, scan, numpy, torch, decent-bench, fedjax"),
        ({"workers": (2, 16)}, "--workers 2: need at least 3"),
        ({"workers": (1024,), "dimensions": (100_000,)}, "all sizes have more than 16,000,000 elements"),
        ({"versions": ("numpy",)}, "--versions numpy: mb-sgd needs some of dsgd, scan, fedjax"),
    ],
)
def test_flags_that_make_no_sense_are_refused(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        peers.main(peers.Args(**arguments, out=tmp_path / "there"))
    assert not (tmp_path / "there").exists()


def test_another_python_finds_the_jobs_and_nothing_else(tmp_path, data, monkeypatch):
    (path := tmp_path / "path").mkdir()
    other = Path(sys.executable).with_name("another")
    args = peers.Args(versions=("torch",), out=tmp_path)
    version = peers.versions(args, "dsgd", {"torch": other}, environments.path_for(path))["torch"]
    assert version.command[0] == str(other)
    (tmp_path / "json.py").write_text("raise ImportError('of the folder that one is in')")
    monkeypatch.chdir(tmp_path)
    look = "import importlib.util; print([importlib.util.find_spec(name) is None for name in ('experiments', 'dsgd', 'numpy')])"
    ended = timing.process([sys.executable, "-S", "-c", look], version.environment)
    assert ended is not None
    assert ended.lines == ["[False, True, True]"]
    command = [sys.executable, "-m", "experiments.benchmark.jobs.peers", "numpy", json.dumps({"data": data, "rounds": 2})]
    ended = timing.process(command, version.environment)
    assert ended is not None
    assert ended.lines[0] == jobs.RESULT
    assert 0 < ended.at[0] <= ended.at[1] <= ended.wall


def test_a_process_that_takes_too_long_is_ended():
    assert timing.process([sys.executable, "-S", "-c", "import time; time.sleep(600)"], {}, longest=0.2) is None


class TestEnvironments:
    def test_none_is_made_without_a_python_that_is_new_enough(self, tmp_path, monkeypatch):
        monkeypatch.setitem(environments.PEERS, "far", environments.Peer("far", ("far",), (3, 99)))
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(environments.Unavailable, match=r"far needs Python 3\.99, which is not on the path"):
            environments.made("far", tmp_path)

    def test_a_python_on_the_path_that_does_not_start_is_none(self, tmp_path, monkeypatch):
        monkeypatch.setitem(environments.PEERS, "far", environments.Peer("far", ("far",), (3, 99)))
        (tmp_path / "python3.99").write_text("#!/bin/sh\nexit 127\n")
        (tmp_path / "python3.99").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(environments.Unavailable, match="not on the path"):
            environments.made("far", tmp_path)

    def test_one_is_made_once_and_found_again(self, tmp_path, monkeypatch):
        monkeypatch.setitem(environments.PEERS, "near", environments.Peer("near_peer", ("near==1", "nearer")))
        monkeypatch.setenv("PATH", str(tmp_path))
        steps = []

        def do(name, step):
            steps.append(step)
            (tmp_path / "near" / "bin").mkdir(parents=True, exist_ok=True)
            (tmp_path / "near" / "bin" / "python").touch()

        monkeypatch.setattr(environments, "_do", do)
        assert environments.found("near", tmp_path) is None
        there = environments.made("near", tmp_path)
        assert there == tmp_path / "near" / "bin" / "python" == environments.made("near", tmp_path)
        assert steps[0] == [sys.executable, "-m", "venv", "--clear", str(tmp_path / "near")]
        assert steps[1][-2:] == ["near==1", "nearer"]
        assert len(steps) == 2

    def test_one_that_could_not_be_installed_is_not_found_later(self, tmp_path, monkeypatch):
        monkeypatch.setitem(environments.PEERS, "near", environments.Peer("near_peer", ("near==1",)))
        monkeypatch.setenv("PATH", str(tmp_path))
        (tmp_path / "near" / "bin").mkdir(parents=True)
        (tmp_path / "near" / "bin" / "python").write_text("#!/bin/sh\necho no such package >&2\nexit 1\n")
        (tmp_path / "near" / "bin" / "python").chmod(0o755)
        monkeypatch.setattr(environments, "_python", lambda name: "/bin/true")
        with pytest.raises(environments.Unavailable, match="near==1 failed: no such package"):
            environments.made("near", tmp_path)
        assert environments.found("near", tmp_path) is None


def test_benchmark_times_all_versions(tmp_path, capsys):
    methods = ("mb-sgd", "ec-sgd")
    rounds.main(rounds.Args(methods=methods, workers=(4,), dimensions=(5,), seconds=0.001, repeats=1, out=tmp_path))
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
    monkeypatch.setattr(start, "make_versions", lambda folder: {"scan": make(folder)["dsgd"], "dsgd, warm": make(folder)["dsgd, warm"]})
    start.main(start.Args(repeats=1, out=tmp_path))
    assert not scripts.too_wide(capsys.readouterr().out.splitlines())
    cold, warm = scripts.rows(tmp_path / "start.csv")
    assert float(cold["ratio"]) == 1
    assert 0 < float(warm["compile"]) < float(cold["compile"]) < float(cold["wall"])
    assert all(float(row[stage]) > 0 for row in (cold, warm) for stage in start.STAGES)


def test_a_job_that_fails_is_told(capfd):
    with pytest.raises(RuntimeError, match=r"jobs\.start nonsense ended with status 1"):
        start.timed(start.Version("nonsense", {}))
    assert "KeyError: 'nonsense'" in capfd.readouterr().err


def test_jobs_by_hand_do_what_the_framework_does():
    """The same problem, another partition and other draws: after 1,000 rounds, losses within 5 % of each other."""
    with jax.numpy_rank_promotion("allow"):
        ends = [job(start_jobs.Laps()) for job in start_jobs.VERSIONS.values()]
    assert max(ends) < 1.05 * min(ends)


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
def test_benchmark_of_mixing_times_every_graph(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(mixing, "graphs_of_all_degrees", lambda: [topologies.ring(8), topologies.random_regular(12, 9)])
    mixing.main(mixing.Args(workers=8, dimension=5, repeats=2, dimensions=(3, MANY), out=tmp_path))
    rows = scripts.rows(tmp_path / "mixing.csv")
    assert [row["graph"] for row in rows] == ["ring(8)", "exponential(8)", "random_regular(8, 4, 0)"]
    assert all(float(row[name]) > 0 for row in rows for name in ("seconds", "dense", "times faster", "of copy"))
    few, many = scripts.rows(tmp_path / "sums.csv")
    assert (few["chosen"], many["chosen"]) == ("rows", "product")
    assert float(few["3"]) > 0
    assert float(many["3"]) > 0
    assert few[str(MANY)] == "nan"  # too large to time
    assert not scripts.too_wide(capsys.readouterr().out.splitlines())


def test_what_the_benchmark_of_mixing_times_is_the_same(key):
    x = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    for graph in (topologies.ring(16), topologies.exponential(16), topologies.random_regular(16, 4)):
        np.testing.assert_allclose(jax.jit(mixing.mixing(graph))(x), mixing.dense(graph)(x), atol=1e-6)


@pytest.mark.parametrize("rows", [True, False])
def test_the_benchmark_of_mixing_times_so_many_rounds_of_dsgd(rows):
    graph, rounds = topologies.random_regular(16, 4), 4
    A, b, x = np.random.default_rng(1).uniform(size=(3, 16, 3)).astype(np.float32)
    many = jax.jit(mixing.looped(partial(mixing.step_and_mix, routes.routes_of(graph, 1, rows), A, b), rounds))(x)
    for _ in range(rounds):
        x = mixing.dense(graph)(x - by_hand.LEARNING_RATE * (A * x - b))
    np.testing.assert_allclose(many, x, atol=1e-6)


def test_the_benchmark_of_mixing_tells_seconds_of_one_round():
    ring = topologies.ring(8)
    taken = {"copy": np.array([0.5]), "ring(8)": np.full(1, 2.0 * mixing.ROUNDS), "ring(8) dense": np.full(1, 6.0 * mixing.ROUNDS)}
    assert mixing.measured(ring, taken) == ("ring(8)", 2, 2.0, 6.0, 3.0, 0.25)


def test_where_the_device_is_no_cpu_copies_are_its_own(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    np.testing.assert_array_equal(by_hand.copies(4, 2, 3)(3), -np.ones(12))
    assert isinstance(by_hand.copies(4, 2, 3)(2), jnp.ndarray)
