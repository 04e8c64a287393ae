"""Loggers write the numbers of a run, which the packages' own readers return."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd import loggers, problems

PROBLEM = problems.random_quadratic(4, 3, noise=0.3, seed=0)
KEY = jax.random.key(3)
pytestmark = pytest.mark.filterwarnings("ignore")


def factory(learning_rate: float) -> dsgd.Algorithm:
    return algorithms.minibatch_sgd(optax.sgd(learning_rate))


def run(logger: loggers.Logger | list) -> dsgd.Result:
    return dsgd.run(
        factory(0.1),
        PROBLEM,
        steps=10,
        record_every=4,
        key=KEY,
        mesh=1,
        seeds=3,
        on_record=logger,
    )


def sweep(logger: loggers.Logger) -> dsgd.Sweep:
    return dsgd.sweep(
        factory,
        PROBLEM,
        steps=10,
        record_every=4,
        key=KEY,
        mesh=1,
        seeds=2,
        learning_rate=[0.1, 0.25],
        on_record=logger,
    )


def interrupted(record: dict) -> None:
    if record["step"] == 4:
        raise KeyboardInterrupt


def test_tensorboard_shows_each_seed_of_each_point(tmp_path):
    pytest.importorskip("tensorboardX")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    hparams = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2")
    for _ in range(2):  # the second time, the events replace those of the first time
        found = sweep(loggers.TensorBoard(tmp_path, seeds="runs"))
    for i, rate in enumerate((0.1, 0.25)):
        for seed in range(2):
            read = events.EventAccumulator(
                str(tmp_path / f"minibatch_sgd, learning_rate = {rate:g}, seed = {seed}")
            )
            read.Reload()
            for name in ("loss", "bits"):
                points = read.Scalars(name)
                assert [point.step for point in points] == [0, 4, 8, 10]
                np.testing.assert_allclose(
                    [point.value for point in points], found.history[name][i, seed], rtol=1e-6
                )
            data = hparams.HParamsPluginData.FromString(
                read.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
            )
            values = data.session_start_info.hparams
            assert values["learning_rate"].number_value == rate
            assert values["method"].string_value == "minibatch_sgd"
            assert values["key"].string_value == "[0, 3]"


def test_mlflow_has_parameters_metrics_and_status(tmp_path, monkeypatch):
    # the store that needs no database; a new one takes seconds
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow")
    uri = (tmp_path / "store").as_uri()
    found = run(loggers.MLflow("mine", uri=uri))
    with pytest.raises(dsgd.Interrupted):
        run([interrupted, loggers.MLflow("mine", uri=uri)])
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("mine").experiment_id
    stopped, finished = client.search_runs([experiment], order_by=["attributes.start_time DESC"])
    assert (stopped.info.status, finished.info.status) == ("KILLED", "FINISHED")
    points = client.get_metric_history(finished.info.run_id, "loss")
    assert [point.step for point in points] == [0, 4, 8, 10]
    np.testing.assert_allclose(
        [point.value for point in points], found.history["loss"].mean(axis=0), rtol=1e-6
    )
    assert finished.data.params["steps"] == "10"
    assert finished.data.params["problem"] == repr(PROBLEM)


def records_of(path: Path) -> Iterator[bytes]:
    """Yields the records of a file of Weights & Biases: blocks of 32 KiB, in which each part of a
    record follows its checksum (4 bytes), its length (2) and its kind (1).
    """
    data, at, record = path.read_bytes(), 7, b""
    while at < len(data):
        if 2**15 - at % 2**15 < 7:
            at += 2**15 - at % 2**15
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # complete, or the last part
            yield record
            record = b""


def test_weights_and_biases_has_config_metrics_and_status(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    pytest.importorskip("wandb")
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")

    def read(path: Path) -> list:
        return [messages.Record.FromString(record) for record in records_of(path)]

    history = run(loggers.WandB("mine", folder=tmp_path)).history
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    end = time.monotonic() + 20  # the process that writes the file may outlive the run
    while not any(record.HasField("exit") for record in read(path)):
        assert time.monotonic() < end
        time.sleep(0.1)
    rows, config = [], {}
    for record in read(path):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            items = record.history.item
            rows.append(
                {".".join([*i.nested_key] or [i.key]): json.loads(i.value_json) for i in items}
            )
        elif kind == "run":
            assert record.run.project == "mine"
            assert record.run.run_group == record.run.display_name == "minibatch_sgd"
            config |= {each.key: json.loads(each.value_json) for each in record.run.config.update}
        elif kind == "exit":
            assert record.exit.exit_code == 0
    assert config["steps"] == 10
    assert config["key"] == [0, 3]
    assert [row["_step"] for row in rows] == [0, 4, 8, 10]
    np.testing.assert_allclose(
        [row["loss"] for row in rows], history["loss"].mean(axis=0), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("package", "make"),
    [("tensorboardX", "TensorBoard"), ("wandb", "WandB"), ("mlflow", "MLflow")],
)
def test_a_missing_package_names_its_extra(package, make, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    extra = make.lower()
    with pytest.raises(ImportError, match=rf"pip install 'dsgd\[{extra}\]'"):
        getattr(loggers, make)(*["there"] * (make == "TensorBoard"))
