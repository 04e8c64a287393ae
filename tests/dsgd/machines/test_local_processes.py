"""Processes of this machine: they end together, and report the reason."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import cloudpickle
import pytest

import dsgd
from dsgd.machines import local_processes


def test_invalid_arguments_are_refused():
    with pytest.raises(ValueError, match="run_local_processes: processes = 0"):
        dsgd.run_local_processes(0, print)
    with pytest.raises(ValueError, match="run_local_processes: timeout = 0; expected seconds > 0"):
        dsgd.run_local_processes(1, print, timeout=0)
    with pytest.raises(ValueError, match="cannot be pickled"):
        dsgd.run_local_processes(1, threading.Lock().acquire)


@pytest.fixture
def processes(monkeypatch):
    """Yields all processes that are started. They only run a script, in which `index` is defined,
    for tests about processes.
    """
    there, really = [], subprocess.Popen

    def start(command, **options):
        there.append(really(command, **options))
        return there[-1]

    monkeypatch.setattr(local_processes.subprocess, "Popen", start)
    return there


def runs(script, monkeypatch):
    monkeypatch.setattr(
        local_processes, "_SCRIPT", f"import os, sys, time; index = int(sys.argv[2])\n{script}"
    )


@pytest.mark.parametrize(
    ("script", "timeout", "message"),
    [
        (
            "if index: sys.exit('boom')\ntime.sleep(60)",
            30.0,
            "process 1 of 2 exited with status 1: boom",
        ),
        (
            "if not index: os.kill(os.getpid(), 9)\ntime.sleep(60)",
            30.0,
            "process 0 of 2 was killed by SIGKILL",
        ),
        ("sys.exit(0)", 30.0, "process 0 of 2 exited with status 0 before the function returned"),
        (
            "if index: time.sleep(60)",
            1.0,
            "after timeout = 1 s, these of 2 processes were still running and were killed: 1",
        ),
    ],
)
def test_if_one_process_fails_all_are_ended(script, timeout, message, monkeypatch, processes):
    runs(script, monkeypatch)
    began = time.monotonic()
    with pytest.raises(ChildProcessError, match=message):
        dsgd.run_local_processes(2, print, timeout=timeout)
    assert time.monotonic() - began < 20
    assert len(processes) == 2
    assert all(process.returncode is not None for process in processes)


def test_the_first_failure_is_reported(tmp_path):
    """The other process fails as a consequence."""
    for at, (i, words) in enumerate(((1, "why"), (0, "my peer is gone"))):
        (tmp_path / f"{i}.log").write_text(f"Traceback\n{words}\n")
        os.utime(tmp_path / f"{i}.log", (at, at))
    assert local_processes._why(tmp_path, [1, 1]) == "process 1 of 2 exited with status 1: why"


def test_an_interruption_ends_all(monkeypatch, processes):
    runs("time.sleep(60)", monkeypatch)

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(local_processes.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        dsgd.run_local_processes(2, print, timeout=30)
    assert len(processes) == 2
    assert all(process.returncode is not None for process in processes)


def test_a_process_ends_with_the_one_that_started_it(tmp_path):
    """For any reason: the process only sees that its input ends."""
    (tmp_path / "function").write_bytes(cloudpickle.dumps(lambda: time.sleep(60)))
    # it waits for a process that never joins
    join = [sys.executable, "-c", local_processes._SCRIPT, str(tmp_path), "0", "2", "1"]
    with subprocess.Popen(
        join, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 1
