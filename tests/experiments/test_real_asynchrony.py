"""`python -m experiments.real_asynchrony`: two processes and their server, started once for each of
three methods, with a tiny budget.
"""

from __future__ import annotations

import shutil
import tempfile
from importlib.util import find_spec

import numpy as np
import pytest
import scripts

from experiments import real_asynchrony

METHODS = ("synchronous", "bounded", "AD-PSGD")


def require_ray() -> None:
    """Skips if Ray is not installed, without importing it before a session does."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")


@pytest.fixture(scope="module")
def ran(tmp_path_factory, long):
    require_ray()
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
        scripts.ran(real_asynchrony.main, args)
    shutil.rmtree(folder, ignore_errors=True)
    return args


def test_it_trains_and_measures_in_real_processes(ran):
    args = ran
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


def test_staleness_is_measured_and_predicted(ran):
    args = ran
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


def test_an_invalid_address_is_refused(tmp_path):
    require_ray()
    with pytest.raises(ValueError, match="Ray cannot be reached at address = 'nonsense'"):
        real_asynchrony.main(real_asynchrony.Args(address="nonsense", out=tmp_path, progress=False))
