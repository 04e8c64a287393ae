"""`python -m experiments.cannikin_training` with a tiny budget: its files, its tables, and its
clock.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import scripts

from dsgd.problems import models
from experiments import cannikin_training
from experiments.cannikin import devices, race_results
from experiments.cannikin.race import ADAPTDL, CANNIKIN, DDP, LB_BSP, SYSTEMS, Run

TOTALS = (32, 181, 1024)
PER_EPOCH = 3 * 479  # samples of three workers: 1,437, and padding of the smallest parts


@pytest.fixture(scope="module")
def ran(tmp_path_factory, long):
    """A linear model on the three nodes of cluster A; rows by system and seed, and the printed
    lines.
    """
    out = tmp_path_factory.mktemp("cannikin_training")
    options = {
        "cluster": "A",
        "target": 0.91,
        "epochs": 12,
        "choices": 3,
        "seeds": 2,
        "progress": False,
    }
    args = cannikin_training.Args(problem=("mlp",), out=out, cache=None, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(models.MODELS, "mlp", partial(models.MLP, hidden=()))
        setting = cannikin_training.setting_of(args, "mlp")
        lines = scripts.ran(cannikin_training.main, args)
    rows = scripts.rows(out / "epochs.csv")
    of = {
        (system, seed): [row for row in rows if (row["system"], row["seed"]) == (system, seed)]
        for system in SYSTEMS
        for seed in "01"
    }
    return setting, of, lines


def test_the_clock_is_that_of_the_devices(ran):
    """Seconds of an equal split, by equation 7, also for AdaptDL's other total batches."""
    setting, rows, _ = ran
    rounds = np.ceil(PER_EPOCH / np.array(TOTALS))
    parts = np.stack([[11, 11, 10], [61, 60, 60], [342, 341, 341]])
    seconds: dict[int, float] = dict(
        zip(TOTALS, rounds * setting.model.batch_time(parts), strict=True)
    )
    np.testing.assert_array_equal(setting.totals, TOTALS)
    # number of its samples for one of ours
    largest = devices.batches("A", "DeepSpeech2", 2)[-1] / 1024
    np.testing.assert_allclose(
        setting.model.k, largest * np.asarray(devices.make_model("A", "DeepSpeech2").k)
    )
    for each in (rows[DDP, "0"], rows[ADAPTDL, "1"]):
        expected = np.cumsum([seconds[int(row["total_batch"])] for row in each])
        np.testing.assert_allclose([float(row["seconds"]) for row in each], expected, rtol=1e-4)


def test_the_table_has_one_row_for_each_system(ran):
    _, rows, lines = ran
    for each in rows.values():
        good = [float(row["quality"]) >= 0.91 for row in each]
        assert good[:-1] == [False] * (len(each) - 1)
    cells = scripts.cells(lines)
    assert [row[0] for row in cells] == list(SYSTEMS)
    ended = {
        system: np.array([float(rows[system, seed][-1]["seconds"]) for seed in "01"])
        for system in SYSTEMS
    }
    reached = {
        system: np.array([float(rows[system, seed][-1]["quality"]) >= 0.91 for seed in "01"])
        for system in SYSTEMS
    }
    for system, count, seconds, *_, saved, paper in cells:
        assert int(count) == reached[system].sum() == 2
        digits = 1 if ended[system].max() < 100 else 0
        assert seconds.split(" ± ")[0] == f"{ended[system].mean():.{digits}f}"
        if system != CANNIKIN:
            assert (
                saved.split(" ± ")[0]
                == f"{np.mean(100 * (1 - ended[CANNIKIN] / ended[system])):.0f}"
            )
            assert paper == {DDP: "≤ 85", LB_BSP: "≤ 82", ADAPTDL: "≤ 52"}[system]


def a_run(seconds: float, *, reached: bool) -> Run:
    once = np.ones(1)
    return Run(seconds * once, 32 * once, once, once, once, once, reached)


def test_only_seeds_that_reach_the_target_with_both_are_compared():
    runs = {
        DDP: [a_run(10.0, reached=True), a_run(20.0, reached=True), a_run(30.0, reached=False)],
        CANNIKIN: [a_run(5.0, reached=True), a_run(2.0, reached=False), a_run(9.0, reached=True)],
    }
    np.testing.assert_array_equal(race_results.saved_share(runs, DDP), [50.0])
    np.testing.assert_array_equal(race_results.seconds(runs[DDP]), [10.0, 20.0, np.nan])
    assert race_results.format_interval(np.array([50.0]), 0) == "50"
    assert race_results.format_interval(np.array([]), 0) == "-"
    assert race_results.format_interval(np.array([1.0, 3.0]), 1) == "2.0 ± 12.7"
