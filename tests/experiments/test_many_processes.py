"""Experiments as several processes, from their command lines: with Slurm's variables, or flags;
only process 0 prints and writes.
"""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scripts

from dsgd.machines import subprocess_call
from experiments import compare
from experiments.shared import commands

SECONDS = 300  # on a busy machine
SMALL = [
    "--methods",
    "minibatch_sgd",
    "--workers",
    "2",
    "--steps",
    "6",
    "--seeds",
    "2",
    "--learning-rates",
    "0.1",
]


def free_port() -> int:
    """A free port among those that JAX chooses for a Slurm job."""
    for port in random.sample(range(61440, 65536), 100):
        with socket.socket() as held:
            try:
                held.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port")


def slurm(port: int, i: int) -> dict[str, str]:
    step = {
        "SLURM_JOB_ID": port - 61440,
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_NTASKS": 2,
        "SLURM_PROCID": i,
        "SLURM_LOCALID": i,
    }
    return {name: str(value) for name, value in step.items()}


def start_processes(out: Path, *more: str) -> list[tuple[int, str, str]]:
    """Status, standard output and error of both processes of the experiment."""
    port, there = free_port(), []
    try:
        for i in range(2):
            command = [
                sys.executable,
                "-m",
                "experiments.compare",
                *SMALL,
                "--out",
                str(out),
                "--no-progress",
                *more,
            ]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            there.append(
                subprocess.Popen(
                    command, env={**subprocess_call.environment(1), **slurm(port, i)}, **pipes
                )
            )
        said = [process.communicate(timeout=SECONDS) for process in there]
        return [(process.returncode, *words) for process, words in zip(there, said, strict=True)]
    finally:
        for process in there:
            process.kill()
            process.communicate()


@pytest.mark.long
def test_two_processes_find_the_same_as_one_and_only_the_first_prints(tmp_path):
    options = ("--cache", str(tmp_path / "programs"))
    (status, said, _), (other, nothing, _) = start_processes(tmp_path / "two", *options)
    assert (status, other) == (0, 0)
    assert "minibatch_sgd" in said
    files = ["config.json", "costs.csv", "figure.png", "history.csv"]
    assert f"Written: {tmp_path}/two/{', '.join(files)}" in said.replace("\n", "")
    assert nothing == ""
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == files
    alone = {
        "methods": ("minibatch_sgd",),
        "workers": 2,
        "steps": 6,
        "seeds": 2,
        "learning_rates": (0.1,),
        "out": tmp_path / "one",
    }
    commands.launch(compare.main, compare.Args(**alone, cache="off", progress=False))
    runs = (scripts.rows(tmp_path / name / "history.csv") for name in ("two", "one"))
    for mine, theirs in zip(*runs, strict=True):
        for name in ("method", "seed", "step", "bits"):
            assert mine[name] == theirs[name]
        np.testing.assert_allclose(float(mine["loss"]), float(theirs["loss"]), rtol=1e-5)


def test_incomplete_flags_of_processes_are_refused(tmp_path, monkeypatch, capsys):
    for machines, message in [
        (commands.Machines("127.0.0.1:1", 2), "process_id = None; expected all three"),
        (commands.Machines(lost_after=0.0), "lost_after = 0; expected finite seconds > 0"),
    ]:
        with pytest.raises(SystemExit) as end:
            commands.launch(print, compare.Args(out=tmp_path, cache="off"), machines)
        assert end.value.code == 2
        assert message in capsys.readouterr().err
