"""Behavior of all commands for invalid input, for existing results, and for interruptions."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import platform
import re
import signal
from pathlib import Path
from typing import NamedTuple, get_type_hints

import jax
import numpy as np
import pytest
import scripts

import dsgd
from experiments import compare
from experiments.benchmark import clients, mixing, peers, rounds, start, tokens, workarounds
from experiments.benchmark import compression as throughput
from experiments.shared import catalogue, commands, studies

SCRIPTS = [
    importlib.import_module(f"experiments.{name}")
    for name in catalogue.COMMANDS
    if name != "benchmark"
]
BENCHMARKS = (throughput, clients, mixing, peers, rounds, start, tokens, workarounds)


@dataclasses.dataclass(frozen=True)
class Args:
    """Arguments of a command."""

    out: Path
    steps: int = 3
    rates: tuple[float, ...] = (0.1,)
    progress: bool = True


class Ended(NamedTuple):
    status: int
    said: list[str]


@pytest.fixture
def launch(capsys):
    """Runs a command that fails; returns its exit status, and its lines on standard error."""

    def run(main, args) -> Ended:
        with pytest.raises(SystemExit) as end:
            commands.launch(main, args)
        return Ended(end.value.code, capsys.readouterr().err.splitlines())

    return run


def test_an_error_message_is_printed_as_one_line(launch, tmp_path):
    script = {"__name__": "experiments.some"}
    exec("def main(args): raise ValueError('steps = -1:\\n  need more')", script)
    assert launch(script["main"], Args(tmp_path)) == (2, ["Error: steps = -1: need more"])


def test_a_librarys_error_keeps_its_traceback(tmp_path):
    """It is a mistake of the library, which could not be found without the traceback."""
    with pytest.raises(ValueError, match="could not be broadcast"):
        commands.launch(
            lambda args: np.broadcast_to(np.ones(3), 2) and np.ones(2) + np.ones(3), Args(tmp_path)
        )


def test_missing_files_are_one_line_and_status_2(launch, tmp_path):
    for script in SCRIPTS:
        if {"data", "data_dir"} <= script.Args.__dataclass_fields__.keys():
            args = script.Args(
                data="mnist",
                data_dir=tmp_path / "there",
                out=tmp_path / "out",
                cache="off",
                progress=False,
            )
            status, (line,) = launch(script.main, args)
            assert status == 2
            assert f"Error: no file {tmp_path}/there/train-images-idx3-ubyte" in line
    assert not (tmp_path / "out").exists()


CHECKED = {  # by the commands themselves
    "asynchrony": {"backups", "bound", "slow"},
    "cannikin_processes": {"nice"},
    "dropcompute_processes": {"slow"},
    "dropcompute_training": {"straggling"},
    "kimad_deep": {"shown"},
    "kimad_quadratic": {"extremely_small", "high", "oscillating", "small"},
    "plan": {"target"},
    "real_asynchrony": {"bound", "slow"},
    "stragglers": {"backups", "bound", "straggling"},
}


def test_every_number_of_a_flag_has_a_bound_that_its_default_keeps():
    """Except for those that depend on other flags."""
    for script in (*SCRIPTS, *BENCHMARKS):
        commands.check_flags(script.Args())
        name = script.__name__.rsplit(".", 1)[-1]
        plain = get_type_hints(script.Args)
        for flag, annotation in get_type_hints(script.Args, include_extras=True).items():
            is_number = {"int", "float"} & set(re.findall(r"\w+", str(plain[flag])))
            assert (
                not is_number or any(commands.bounds(annotation)) or flag in CHECKED.get(name, ())
            ), f"{name}: --{flag} has no bound"


def test_the_configuration_records_the_command_and_the_environment(tmp_path):
    commands.begin(Args(tmp_path / "new"), 2 * [dsgd.problems.random_quadratic(3, 2)])
    config = json.loads((tmp_path / "new/config.json").read_text())
    assert config["steps"] == 3
    assert config["rates"] == [0.1]
    run = config["run"]
    assert (run["dsgd"], run["jax"], run["python"]) == (
        dsgd.__version__,
        jax.__version__,
        platform.python_version(),
    )
    assert run["problems"] == ["Problem(quadratic(3 workers, d = 2))"]
    assert run["device"] == f"{jax.device_count()} x cpu"
    assert "pytest" in run["command"] or "python" in run["command"]


def test_results_of_another_configuration_are_not_overwritten(tmp_path):
    commands.begin(Args(tmp_path))
    commands.begin(Args(tmp_path, steps=4))  # there are no results yet
    (tmp_path / "history.csv").write_text("results")
    before = (tmp_path / "config.json").read_text()
    commands.begin(Args(tmp_path, steps=4, progress=False))  # the same
    with pytest.raises(
        ValueError,
        match=r"results of another configuration \(steps = 4, not 3\); pass another folder",
    ):
        commands.begin(Args(tmp_path, steps=3))
    assert (
        json.loads((tmp_path / "config.json").read_text())["steps"]
        == json.loads(before)["steps"]
        == 4
    )
    with pytest.raises(
        ValueError,
        match="results of another script, or of another version of it; pass another folder",
    ):
        commands.begin(rounds.Args(out=tmp_path, methods=("dsgd",)))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="contains results of another script"):
        commands.begin(Args(tmp_path))


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_command_keeps_its_results(sent, launch, tmp_path, monkeypatch):
    """The second method never ends."""
    before = signal.getsignal(signal.SIGTERM)

    def tune(args, case):
        if case.build(0.1).name == "minibatch_sgd":
            os.kill(os.getpid(), sent)
        return studies.Tuned({}, {"step": np.arange(2), "loss": np.ones((1, 2))}, {})

    monkeypatch.setattr(studies, "tune", tune)
    args = compare.Args(
        methods=("gd", "minibatch_sgd"),
        workers=2,
        steps=2,
        seeds=1,
        learning_rates=(0.1,),
        out=tmp_path,
        cache="off",
        progress=False,
    )
    assert launch(compare.main, args) == (
        130,
        [f"Interrupted: what was done until then is in {tmp_path}."],
    )
    assert {row["method"] for row in scripts.rows(tmp_path / "history.csv")} == {"gradient_descent"}
    assert not (tmp_path / "figure.png").exists()
    assert signal.getsignal(signal.SIGTERM) is before
