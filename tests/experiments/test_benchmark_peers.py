"""The benchmark against other libraries: its versions are the same mathematics, and what cannot be had is told."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import scripts

from experiments.benchmark import environments, peers, processes
from experiments.benchmark.jobs.peers import framework, job, loop, scan

WARM = {"rounds_per_second": 1.0, "memory": 2_000_000, "versions": {"numpy": "2"}}


@pytest.fixture
def data(tmp_path):
    peers.write_data(tmp_path, 5, 7)
    return str(tmp_path)


@pytest.mark.parametrize(("method", "versions"), [("dsgd", (framework, scan)), ("mb-sgd", (framework,))])
def test_versions_make_the_same_iterates(method, versions, data):
    what = job.Job(data, rounds=12, method=method)
    with jax.enable_x64(True):
        first = np.asarray((loop if method == "dsgd" else scan).build(what)(12))
        for version in versions:
            models = np.asarray(version.build(what)(12))
            assert models.dtype == np.float64
            np.testing.assert_allclose(models, first, rtol=0, atol=peers.AGREE * np.abs(first).max())
    assert first.shape == ((5, 7) if method == "dsgd" else (7,))


def test_processes_are_timed_and_shown(tmp_path, capsys, monkeypatch):
    """Numpy's, twice: the others are processes like it."""
    monkeypatch.setitem(peers.VERSIONS, "dsgd", {"dsgd": ("loop", None), "numpy": ("loop", None)})
    monkeypatch.setattr(peers, "MOST", 80)
    peers.main(peers.Args(methods=("dsgd",), workers=(3,), dimensions=(5, 30), rounds=2, seconds=1e-3, repeats=1, out=tmp_path))
    rows = scripts.rows(tmp_path / "peers.csv")
    assert [(row["version"], row["workers"], row["dimension"]) for row in rows] == [("dsgd", "3", "5"), ("numpy", "3", "5")]
    assert all(float(row["rounds_per_second"]) > 0 and float(row["seconds"]) > 0 and float(row["apart"]) == 0 for row in rows)
    assert all(1e6 < float(row["memory"]) < 2e8 for row in rows)  # numpy alone, whatever this process has
    assert json.loads((tmp_path / "versions.json").read_text())["numpy"]["numpy"] == np.__version__
    assert (tmp_path / "peers.png").exists()
    lines = capsys.readouterr().out.splitlines()
    assert sum("larger sizes left out: 1" in line for line in lines) == 3
    assert max(map(len, lines)) <= 80


def fake(monkeypatch, models: dict[str, float], late: str = "") -> None:
    """Versions that tell at once models `[3, 2]` of one number, but for one that takes too long."""

    def timed(version, longest, **what):
        name = version.command[-1].rpartition(".")[2]
        if name == late:
            return None
        if "save" in what:
            np.save(what["save"], np.full((3, 2), models[name]))
        return 0.5, WARM

    monkeypatch.setattr(peers, "timed", timed)


def test_versions_that_differ_are_told(tmp_path, monkeypatch):
    args = peers.Args(methods=("dsgd",), versions=("dsgd", "numpy"), workers=(3,), dimensions=(2,), repeats=1, out=tmp_path)
    fake(monkeypatch, {"framework": 1.0, "loop": 1 + 2e-13})
    with pytest.raises(RuntimeError, match=r"dsgd: after 20 rounds numpy is 2e-13 from the first version: need 1e-13"):
        peers.main(args)
    fake(monkeypatch, {"framework": 1.0, "loop": float("nan")})
    with pytest.raises(RuntimeError, match="numpy is nan from the first version"):
        peers.main(args)


def test_what_takes_too_long_or_cannot_be_had_is_told(tmp_path, monkeypatch, capsys):
    def made(name, folder):
        raise environments.Unavailable(f"{name} needs more")

    monkeypatch.setattr(environments, "made", made)
    fake(monkeypatch, {"scan": 1.0, "loop": 1.0}, late="framework")
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
    ended = processes.timed([sys.executable, "-S", "-c", look], version.environment)
    assert ended is not None
    assert ended.lines == ["[False, True, True]"]
    command = [sys.executable, "-m", "experiments.benchmark.jobs.peers.loop", json.dumps({"data": data, "rounds": 2})]
    ended = processes.timed(command, version.environment)
    assert ended is not None
    assert ended.lines[0] == job.RESULT
    assert 0 < ended.at[0] <= ended.at[1] <= ended.wall


def test_a_process_that_takes_too_long_is_ended():
    assert processes.timed([sys.executable, "-S", "-c", "import time; time.sleep(600)"], {}, longest=0.2) is None


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
