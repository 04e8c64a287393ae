"""An interrupted command that is run again resumes from the checkpoints of its runs."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import contextmanager, nullcontext

import jax
import optax
import pytest
import scripts

import algorithms
import dsgd
from dsgd import problems
from dsgd.machines import executors, remote_calls
from experiments import compare
from experiments.shared import commands, resuming

SMALL = {
    "methods": ("minibatch_sgd", "dsgd"),
    "workers": 2,
    "steps": 6,
    "seeds": 2,
    "learning_rates": (0.1,),
    "cache": "off",
    "progress": False,
}
KEPT = commands.Machines(resume=True)


def launch(out, machines=KEPT):
    commands.launch(compare.main, compare.Args(**SMALL, out=out), machines)


@pytest.mark.long
def test_the_same_command_resumes_and_finds_the_same(tmp_path, monkeypatch):
    launch(tmp_path / "whole", commands.Machines())
    assert not (tmp_path / "whole" / resuming.FOLDER).exists()
    real, calls = dsgd.sweep, []

    def interrupt(*args, **options):
        calls.append(options["checkpoint"])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args, **options)

    out = tmp_path / "out"
    monkeypatch.setattr(dsgd, "sweep", interrupt)
    with pytest.raises(SystemExit) as end:
        launch(out)
    assert end.value.code == 130
    first = out / resuming.FOLDER / "0" / "dsgd-run.npz"
    assert calls == [first.parent, out / resuming.FOLDER / "1"]
    written = first.stat().st_mtime_ns
    seen = []

    def watch(*args, **options):
        result = real(*args, **options)
        seen.append(first.stat().st_mtime_ns)
        return result

    monkeypatch.setattr(dsgd, "sweep", watch)
    launch(out)
    assert seen == [written] * 2, "what was done is not done again"
    assert not (out / resuming.FOLDER).exists()
    assert (out / "history.csv").read_bytes() == (tmp_path / "whole" / "history.csv").read_bytes()


@pytest.mark.long
def test_a_command_on_other_machines_makes_only_what_is_missing(tmp_path, monkeypatch):
    launch(tmp_path / "whole", commands.Machines())
    calls = []

    @contextmanager
    def open_executor(*options):
        def submit(call):
            calls.append(call)
            if len(calls) == 2:
                raise KeyboardInterrupt
            job = Future()
            with monkeypatch.context() as patch:  # another process keeps no checkpoints
                patch.setattr(resuming, "next_folder", lambda: None)
                job.set_result(remote_calls.perform(call))
            return job

        yield submit

    monkeypatch.setattr(executors, "open_executor", open_executor)
    out = tmp_path / "out"
    for jobs in (1, 2):
        args = compare.Args(**SMALL, out=out, on="slurm", jobs=jobs)
        with nullcontext() if jobs == 2 else pytest.raises(SystemExit):
            commands.launch(compare.main, args, commands.Machines())
    assert len(calls) == 3, "what was done is not done again"
    assert not (out / resuming.FOLDER).exists()
    assert (out / "history.csv").read_bytes() == (tmp_path / "whole" / "history.csv").read_bytes()


def test_another_configuration_does_not_resume_from_the_checkpoints(tmp_path, monkeypatch, capsys):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(dsgd, "sweep", interrupt)
    (tmp_path / resuming.FOLDER).mkdir()
    for steps, message in (
        (6, "Interrupted"),
        (7, "contains results of another configuration (steps = 6, not 7)"),
    ):
        with pytest.raises(SystemExit):
            commands.launch(
                compare.main, compare.Args(**SMALL | {"steps": steps}, out=tmp_path), KEPT
            )
        assert message in capsys.readouterr().err


def test_each_run_of_a_command_is_logged(tmp_path):
    problem = problems.random_quadratic(2, 3)
    method = algorithms.minibatch_sgd(optax.sgd(0.1))
    options = {"steps": 2, "key": jax.random.key(0), "mesh": 1}
    with resuming.log_runs(tmp_path, ("csv",)):
        results = [resuming.run(method, problem, **options) for _ in range(2)]
    for i, result in enumerate(results):
        rows = scripts.rows(tmp_path / resuming.LOGS / f"{i}.csv")
        assert [float(row["loss"]) for row in rows] == result.history["loss"].tolist()
    assert resuming.next_loggers() == []
    with (
        pytest.raises(ValueError, match=r"--log csv: .* trains nothing"),
        resuming.log_runs(tmp_path, ("csv",)),
    ):
        pass
