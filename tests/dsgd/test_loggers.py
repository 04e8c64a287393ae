"""The loggers that need no other package."""

from __future__ import annotations

import csv
import json

import jax
import numpy as np
import optax
import rich
from rich.console import Console

import algorithms
import dsgd
from dsgd import loggers, problems
from dsgd.runs.results import Settings

PROBLEM = problems.random_quadratic(4, 3, noise=0.3, seed=0)


def sweep(logger: loggers.Logger) -> dsgd.Sweep:
    return dsgd.sweep(
        lambda learning_rate: algorithms.minibatch_sgd(optax.sgd(learning_rate)),
        PROBLEM,
        steps=4,
        record_every=2,
        key=jax.random.key(3),
        mesh=1,
        seeds=2,
        learning_rate=[0.1, 0.25],
        on_record=logger,
    )


def test_csv_has_each_seed_or_the_means(tmp_path):
    path = tmp_path / "new" / "records.csv"
    history = sweep(loggers.CSV(path, seeds="runs")).history
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert list(rows[0])[:3] == ["learning_rate", "seed", "step"]
    assert len(rows) == 3 * 2 * 2
    for i, row in enumerate(rows):
        record, point, seed = i // 4, i // 2 % 2, i % 2
        assert float(row["loss"]) == history["loss"][point, seed, record]
        assert (int(row["seed"]), int(row["step"])) == (seed, 2 * record)
    assert json.loads(path.with_suffix(".json").read_text())["grid"] == {
        "learning_rate": [float(row["learning_rate"]) for row in rows[:4:2]]
    }
    sweep(loggers.CSV(path))  # replaces the file
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) == 3 * 2
    np.testing.assert_allclose(
        [float(row["loss"]) for row in rows], history["loss"].mean(axis=1).T.ravel(), rtol=1e-6
    )


def test_series_of_workers_have_columns_and_a_run_without_seeds_has_no_seed(tmp_path):
    logger = loggers.CSV(tmp_path / "records.csv", seeds="runs")
    logger.start(Settings(method="mine"))
    logger({"step": 0, "loss": 0.5, "samples": np.array([3, 4]), "evaluated": True})
    logger.end({}, None)
    text = (tmp_path / "records.csv").read_text()
    assert text == "step,loss,samples[0],samples[1]\n0,0.5,3.0,4.0\n"


def test_the_console_prints_settings_and_the_last_record(monkeypatch):
    screen = Console(record=True, width=200, quiet=False)
    monkeypatch.setattr(rich, "get_console", lambda: screen)
    history = sweep(loggers.Console()).history
    text = screen.export_text()
    assert "method = minibatch_sgd, " in text
    assert "minibatch_sgd: round 4" in text
    for loss in history["loss"][..., -1].mean(axis=1):
        assert f" {loss:.4g} " in text


def test_the_last_record_of_one_run_fits_a_terminal(monkeypatch):
    screen = Console(record=True, width=80, quiet=False)
    monkeypatch.setattr(rich, "get_console", lambda: screen)
    names = ("bits_up", "bits_down", "communications", "gradients", "grad_sqnorm", "loss")
    history = {"step": np.array([0, 7]), **{name: np.array([2.5, 1.25e6]) for name in names}}
    console = loggers.Console()
    console.start(Settings(method="sgd"))
    console.end(history, None)
    text = screen.export_text()
    for name in names:
        assert f" {name.replace('_', ' ')} " in text
    assert text.count(" 1.25e+06 ") == len(names)
