"""`python -m experiments.kimad_deep` with a tiny budget: its files, its tables, and the regime of
its bandwidths.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import scripts

from dsgd.problems import models
from experiments import kimad_deep
from experiments.kimad import deep_results, deep_runs

METHODS = {"Kimad", "Kimad, oracle", "EF21", "Kimad, coarse", "Kimad+", "whole model"}
TIMES = (1.0, 0.2)
T_COMP = 357_566_784 / 180e6  # a ResNet-18's bits over the mean of 30 and 330 Mbit/s


@pytest.fixture(scope="module")
def ran(tmp_path_factory, long):
    """A linear model on two workers, so that few and small programs are compiled; the rows of its
    last seed, and the printed lines.
    """
    out = tmp_path_factory.mktemp("kimad_deep")
    args = kimad_deep.Args(
        workers=2,
        worker_counts=(2,),
        communication_times=TIMES,
        epochs=4,
        learning_rate=0.5,
        seeds=2,
        period=60.0,
        out=out,
        progress=False,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(models.MODELS, "mlp", partial(models.MLP, hidden=()))
        patch.setattr(deep_runs, "RESOLUTION", 100)
        return args, scripts.ran(kimad_deep.main, args)


@pytest.fixture(scope="module")
def series(ran):
    """Numbers of each case's first seed, by name, after the warm-up of 4 of 90 rounds."""
    args, _ = ran
    rows = scripts.rows(args.out / "history.csv")
    assert {(row["method"].split("; ")[0]) for row in rows} == METHODS
    assert {row["seed"] for row in rows} == {"0", "1"}
    found: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    for case in {row["method"] for row in rows}:
        mine = [row for row in rows if row["method"] == case and row["seed"] == "0"]
        assert len(mine) == 1 + 90
        method, _, seconds = case.split("; ")
        names = ("clock", "bits", "message", "bandwidth", "error")
        found[method, seconds] = {
            name: np.array([float(row[name]) for row in mine]) for name in names
        }
    return found


def test_messages_with_a_known_bandwidth_fill_their_seconds_exactly(series):
    """A step takes T_comp + 2 T_comm, because ratios differ by a thousandth and no message is the
    whole model.
    """
    history = series["Kimad, oracle", "0.2 s"]
    taken = np.diff(history["clock"])[5:]
    assert taken.max() <= (T_COMP + 0.4) * 1.0001
    assert taken.min() > T_COMP + 0.3
    assert (history["message"][5:] <= 0.2 * history["bandwidth"][5:] * 1.0001).all()
    late = np.diff(series["Kimad", "0.2 s"]["clock"])[5:]
    assert late.max() > (T_COMP + 0.4) * 1.01, "the last message's rate is not the next one's"


def test_its_tables_have_the_papers_numbers(ran):
    _, lines = ran
    steps, others, errors = (
        [row for row in scripts.cells(lines) if len(row) == width] for width in (9, 8, 7)
    )
    sent, accuracies = others[:2], others[2:]
    assert [row[:2] + row[3:4] + row[6:7] for row in steps] == [
        ["1", "4.86", "3.85", "20.8"],
        ["0.2", "2.84", "2.25", "20.8"],
    ]
    assert [float(row[4]) for row in sent] == pytest.approx([1.5045, 2.475], abs=0.006)
    assert [row[:3] for row in accuracies] == [["2", "79.70", "79.34"]]
    assert [row[0] for row in errors] == ["EF21", "Kimad", "Kimad, coarse", "Kimad+", "whole model"]
    assert any("in a layer. With the" in line for line in lines)


def test_seconds_of_ef21_are_those_expected_without_noise():
    """Steps of the same size follow each other, each with the bandwidth at its start."""
    for seconds in (1.0, 0.1):
        level = partial(deep_runs.pattern, 1e4)
        clock, sizes = 0.0, []
        while clock < 1e4:
            sizes.append(seconds * float(level(np.array(clock))))
            clock += T_COMP + 2 * seconds
        size, clock, rounds = np.mean(sizes), 0.0, 0
        while clock < 1e4:
            clock, rounds = clock + T_COMP + 2 * size / float(level(np.array(clock))), rounds + 1
        assert deep_results.expected_ratio(seconds) == pytest.approx(
            (clock / rounds - T_COMP) / (2 * seconds), rel=1e-2
        )
