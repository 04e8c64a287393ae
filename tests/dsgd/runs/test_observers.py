"""Functions and loggers receive each record once, in order, however the run ends."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd import clusters, loggers
from dsgd.machines import agreement
from dsgd.runs import observers
from dsgd.runs.results import Settings

KEY = jax.random.key(3)
CLUSTER = clusters.Cluster(clusters.constant(0.5))


def factory(learning_rate: float) -> dsgd.Algorithm:
    return algorithms.minibatch_sgd(optax.sgd(learning_rate))


class Kept(loggers.Logger):
    """Keeps what it receives."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.records: list[dict] = []

    def start(self, settings):
        self.calls.append("start")
        self.settings = settings

    def __call__(self, record):
        assert self.calls == ["start"]
        self.records.append(record)

    def end(self, history, error):
        self.calls.append("end")
        self.history, self.error = history, error


def run(problem, on_record, steps: int = 11, **options) -> dsgd.Result:
    options = {"record_every": 2, "seeds": 3, "evaluate_every": 2, **options}
    return dsgd.run(
        factory(0.1),
        problem,
        steps=steps,
        key=KEY,
        mesh=1,
        cluster=CLUSTER,
        on_record=on_record,
        **options,
    )


def require_all(records: list[dict], history: dict[str, np.ndarray]) -> None:
    """Asserts that the records are those of the history, in order."""
    axis = history["loss"].ndim - 1
    assert [record["step"] for record in records] == history["step"].tolist()
    for name in history.keys() - {"step"}:
        values = [record[name] for record in records]
        np.testing.assert_array_equal(np.stack(values, axis), history[name])


def test_each_record_is_passed_once(problem):
    kept, seen = Kept(), []
    result = run(problem, [kept, seen.append])
    for records in (kept.records, seen):
        require_all(records, result.history)
    assert kept.settings == result.settings
    assert kept.calls == ["start", "end"]
    assert kept.error is None
    np.testing.assert_equal(kept.history, result.history)
    single: list[dict] = []
    result = run(problem, single.append, seeds=None)
    require_all(single, result.history)
    assert isinstance(single[-1]["loss"], float)


def test_records_of_a_sweep_have_the_axes_of_its_grid(problem):
    kept = Kept()
    found = dsgd.sweep(
        lambda learning_rate, momentum: algorithms.minibatch_sgd(
            optax.sgd(learning_rate, momentum)
        ),
        problem,
        steps=7,
        key=KEY,
        seeds=2,
        mesh=1,
        record_every=3,
        on_record=kept,
        learning_rate=[0.1, 0.2, 0.4],
        momentum=[0.0, 0.5],
    )
    assert kept.records[0]["loss"].shape == (3, 2, 2)
    require_all(kept.records, found.history)
    np.testing.assert_allclose(kept.settings["grid"]["learning_rate"], [0.1, 0.2, 0.4], rtol=1e-6)
    assert kept.settings == found.settings


def test_a_resumed_run_passes_the_records_of_its_checkpoint_first(problem, tmp_path):
    run(problem, (), steps=6, checkpoint=tmp_path)
    for steps in (6, 12):  # the run is complete, or goes on
        kept = Kept()
        result = run(problem, kept, steps=steps, checkpoint=tmp_path)
        assert result.history["step"].tolist() == list(range(0, steps + 1, 2))
        require_all(kept.records, result.history)


def test_a_diverged_run_ends_its_loggers_after_the_last_record(problem):
    kept = Kept()
    with pytest.raises(dsgd.Diverged) as diverged:
        dsgd.run(factory(1e30), problem, steps=50, key=KEY, mesh=1, on_record=kept)
    assert kept.error is diverged.value
    require_all(kept.records, diverged.value.history)
    np.testing.assert_equal(kept.history, diverged.value.history)


def test_an_interruption_in_a_function_ends_the_run(problem):
    def interrupt(record):
        if record["step"] == 4:
            raise KeyboardInterrupt

    kept = Kept()
    with pytest.raises(dsgd.Interrupted) as stopped:
        run(problem, [kept, interrupt], steps=100_000_000)
    assert kept.error is stopped.value
    require_all(kept.records, stopped.value.history)


def test_an_error_of_a_function_ends_the_run_with_its_history(problem):
    def fail(record):
        if record["step"] == 4:
            raise LookupError("no such run")

    first, second = Kept(), Kept()
    with pytest.raises(LookupError, match="no such run") as failed:
        run(problem, [first, fail, second])
    assert "on_record, of a run of minibatch_sgd" in failed.value.__notes__[0]
    assert failed.value.history["step"].tolist()[:3] == [0, 2, 4]  # type: ignore[attr-defined]
    assert first.error is second.error is failed.value
    assert [record["step"] for record in first.records] == [0, 2, 4]
    assert [record["step"] for record in second.records] == [0, 2]


def test_all_loggers_end_although_one_fails(problem):
    class Fails(Kept):
        def end(self, history, error):
            raise OSError("disk full")

    first, last = Kept(), Kept()
    with pytest.raises(OSError, match="disk full"):
        run(problem, [first, Fails(), last])
    assert first.calls == last.calls == ["start", "end"]


def test_other_objects_are_refused(problem):
    for given in (3, [print, 3], "tensorboard", Kept):
        with pytest.raises(ValueError, match="on_record"):
            run(problem, given)


def test_only_process_0_calls_functions(monkeypatch):
    for process, functions in ((0, (print,)), (1, ())):
        monkeypatch.setattr(agreement, "process_index", lambda process=process: process)
        assert observers.Observers("mine", [print], Settings()).functions == functions
