"""The script about real asynchrony: two processes and their server, started once for each of three
methods, with a tiny budget.
"""

from __future__ import annotations

import shutil
import tempfile

import numpy as np
import pytest
import scripts

from algorithms import on_ray
from experiments import real_asynchrony

METHODS = ("synchronous", "bounded", "AD-PSGD")


@pytest.fixture(scope="module")
def ran(tmp_path_factory, long):
    pytest.importorskip("ray")
    sizes = {
        "workers": 2,
        "servers": 1,
        "seconds": 0.8,
        "delay": 0.01,
        "factor": 6.0,
        "bound": 3,
        "methods": METHODS,
    }
    args = real_asynchrony.Args(**sizes, out=tmp_path_factory.mktemp("real"), progress=False)
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")  # names of sockets are short
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        lines = scripts.printed(real_asynchrony.main, args)
    shutil.rmtree(folder, ignore_errors=True)
    return args, lines


def test_it_trains_and_measures_in_real_processes(ran):
    args, _ = ran
    rows = scripts.rows(args.out / "history.csv")
    assert {row["method"] for row in rows} == set(METHODS)
    for method in METHODS:
        mine = [row for row in rows if row["method"] == method]
        assert float(mine[-1]["loss"]) < float(mine[0]["loss"])
        assert float(mine[0]["clock"]) == 0
    synchronous = [row for row in rows if row["method"] == "synchronous"]
    assert float(synchronous[-1]["clock"]) > 0.06 * int(synchronous[-1]["step"]), (
        "all wait for the slow one"
    )
    assert scripts.is_figure(args.out / "figure.png")
    assert (args.out / "config.json").exists()


def test_staleness_is_measured_and_predicted(ran):
    args, _ = ran
    rows = scripts.rows(args.out / "staleness.csv")
    stale = {
        key: []
        for key in ((method, what) for method in METHODS[1:] for what in ("measured", "predicted"))
    }
    for row in rows:
        stale[row["method"], row["what"]].append(int(row["staleness"]))
    bounded = [np.array(stale["bounded", what]) for what in ("measured", "predicted")]
    assert all(values.max() <= args.bound for values in bounded)
    for method in METHODS[1:]:
        measured, predicted = (np.mean(stale[method, what]) for what in ("measured", "predicted"))
        assert measured == pytest.approx(1, abs=0.5), (
            "of two workers each has made one update since the other's last, on average"
        )
        assert predicted == pytest.approx(1, abs=0.5)


def test_its_table_has_80_columns(ran):
    args, lines = ran
    assert not scripts.too_wide(lines)
    rows = scripts.rows(args.out / "methods.csv")
    assert [row["method"] for row in rows] == list(METHODS)
    assert all(float(row["updates/s"]) > 0 for row in rows)


def test_an_address_that_is_none_is_refused(tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(ValueError, match="Ray cannot be reached at address = 'nonsense'"):
        real_asynchrony.main(real_asynchrony.Args(address="nonsense", out=tmp_path, progress=False))


def test_any_number_of_servers_goes_with_all_methods():
    assert "3 servers" in real_asynchrony.methods(real_asynchrony.Args(servers=3))


def test_what_is_simulated_for_its_clock_does_not_diverge():
    """At the largest steps with which the real problem still converges."""
    args = real_asynchrony.Args(workers=3, learning_rate=2.0)
    worker = np.arange(300) % 3
    updates = {
        "worker": worker,
        "computed": 0.01 * (1 + worker),
        "trip": np.full(300, 1e-3),
        "busy": np.full(300, 1e-3),
    }
    trained = on_ray.Trained((), {}, updates, 3, 64)
    method = real_asynchrony.methods(args)["asynchronous"].simulated
    assert np.nanmean(
        real_asynchrony.simulate(args, method, trained, 600)["staleness"]
    ) == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slow": 4}, "--slow 4 of 4 workers"),
        ({"factor": 0.5}, "--factor 0.5: need at least 1"),
        ({"bound": 2}, "--bound 2 of 4 workers: need at least 3, since all read the first model"),
        ({"methods": ("async",)}, "need some of synchronous, asynchronous, bounded"),
    ],
)
def test_it_refuses_what_makes_no_sense_before_a_process_starts(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        real_asynchrony.main(real_asynchrony.Args(**options, out=tmp_path, progress=False))
    assert not list(tmp_path.iterdir())
