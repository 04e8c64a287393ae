"""Frames contain every number of a history once, in its own row."""

from __future__ import annotations

import sys

import jax
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd import problems


@pytest.fixture(scope="module")
def swept() -> dsgd.Sweep:
    problem = problems.random_quadratic(4, 3, noise=0.3)
    return dsgd.sweep(
        lambda learning_rate, period: algorithms.local_sgd(optax.sgd(learning_rate), period),
        problem,
        steps=6,
        record_every=3,
        key=jax.random.key(0),
        seeds=2,
        mesh=1,
        learning_rate=[0.1, 0.2],
        period=[1, 2, 3],
    )


def history(seeds: int | None = None, records: int = 4) -> dict[str, np.ndarray]:
    shape = (records,) if seeds is None else (seeds, records)
    rng = np.random.default_rng(0)
    return {
        "step": 5 * np.arange(records),
        "loss": rng.normal(size=shape),
        "samples": rng.integers(9, size=(*shape, 3)),
    }


def test_a_sweep_has_a_row_for_each_point_seed_and_record(swept):
    found = dsgd.frame(swept)
    assert found.shape[0] == 2 * 3 * 2 * 3
    assert list(found.columns[:4]) == ["learning_rate", "period", "seed", "step"]
    assert set(found.columns[4:]) == swept.history.keys() - {"step"}
    for row in found.itertuples():
        at = (
            [0.1, 0.2].index(row.learning_rate),
            [1, 2, 3].index(row.period),
            row.seed,
            row.step // 3,
        )
        for name in ("loss", "bits", "consensus", "grad_sqnorm"):
            assert getattr(row, name) == swept.history[name][at]


def test_a_run_without_seeds_is_seed_0_and_each_worker_has_a_column():
    columns = ["samples[0]", "samples[1]", "samples[2]"]
    for seeds in (None, 2):
        given = history(seeds)
        found = dsgd.frame(given)
        assert list(found.columns) == ["seed", "step", "loss", *columns]
        assert found.step.tolist() == (seeds or 1) * [0, 5, 10, 15]
        assert found.seed.tolist() == [seed for seed in range(seeds or 1) for _ in range(4)]
        np.testing.assert_array_equal(found.loss, given["loss"].ravel())
        np.testing.assert_array_equal(found[columns], given["samples"].reshape(-1, 3))


def test_methods_are_concatenated_with_gaps_for_missing_columns(swept):
    short = {name: values for name, values in history(seeds=3).items() if name != "samples"}
    found = dsgd.frame({"swept": swept, "short": short})
    assert found.method.tolist() == 36 * ["swept"] + 12 * ["short"]
    assert found.learning_rate.isna().sum() == found.bits.isna().sum() == 12
    assert not found.loss.isna().any()


def test_invalid_arguments_are_refused(swept, monkeypatch):
    twice = {"loss": swept.grid["learning_rate"], "period": swept.grid["period"]}
    for runs, words in (
        *((runs, "frame: runs") for runs in ({}, {"a": 3}, {"a": {}}, {"loss": np.ones(3)})),
        (swept.history, r"loss of shape \[2, 3, 2, 3\]"),
        (swept._replace(grid=twice), "the sweep's loss"),
    ):
        with pytest.raises(ValueError, match=words):
            dsgd.frame(runs)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        dsgd.frame(swept)


def last(values: list[float], **more: list[float]) -> dict[str, np.ndarray]:
    """Returns the history of two seeds with these last losses."""
    losses = np.array([[9.0, value] for value in values])
    return {"step": np.arange(2), "loss": losses, "bits": 1e3 * losses} | {
        name: np.array([[0.0, value] for value in each]) for name, each in more.items()
    }


def test_a_table_has_the_last_records_of_each_method():
    runs = {"a_1 | b": last([1.0, 2.0]), "c": last([0.25, 0.25], gap=[3e-7, 5e-7])}
    columns = ["loss", "gap"]
    assert dsgd.table(runs, columns, format="markdown").splitlines() == [
        "| method   |      loss |           gap |",
        "|:---------|----------:|--------------:|",
        "| a_1 \\| b | 1.5 ± 0.5 |             - |",
        "| c        |      0.25 | 4e-07 ± 1e-07 |",
    ]
    latex = dsgd.table(runs, columns, format="latex")
    assert r"\begin{tabular}{lrr}" in latex
    assert r" a\_1 | b  & 1.5 ± 0.5 &" in latex
    alone = {name: values if name == "step" else values[0] for name, values in runs["c"].items()}
    assert dsgd.table(alone).split() == ["loss", "bits", "------", "------", "0.25", "250"]


def test_a_table_shows_the_best_point_of_a_sweep(swept):
    with pytest.warns(UserWarning, match="best: .*: period = 3"):
        index = swept.best()
    with pytest.warns(UserWarning, match="best: .*: period = 3"):
        (row,) = dsgd.table({"sgd": swept}, "consensus").splitlines()[2:]
    point = swept.point(index)
    assert row.split()[:3] == ["sgd", f"{point['learning_rate']:.4g}", f"{point['period']:.4g}"]
    assert float(row.split()[3]) == pytest.approx(
        swept.at(index)["consensus"][:, -1].mean(), rel=1e-3
    )


@pytest.mark.parametrize(
    ("runs", "columns", "message"),
    [
        ({}, None, r"table: runs = \{\}; expected"),
        ([dsgd.State(np.ones(2), np.ones(3))], None, "of these by method name$"),
        ({"a": last([1.0, 2.0])}, ["los"], r"columns = \['los'\]; expected some of loss, bits"),
        (history(seeds=2), "samples", "expected some of loss"),
    ],
)
def test_tables_of_unknown_columns_are_refused(runs, columns, message):
    with pytest.raises(ValueError, match=message):
        dsgd.table(runs, columns)
