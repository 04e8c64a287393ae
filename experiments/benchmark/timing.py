"""Timings of calls, and of whole processes from outside. It imports only the standard library, so
that versions in other Pythons can import it.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


def calibrate(version: Callable[[int], object], seconds: float) -> int:
    """Returns a number of rounds that takes approximately the given seconds."""
    rounds = 1
    while True:
        version(rounds)
        # one of them may be delayed by other processes
        once = min(clock(version, rounds) for _ in range(2))
        if once >= seconds / 4:
            return max(1, round(rounds * seconds / once))
        rounds *= 4


def clock(version: Callable[[int], object], rounds: int) -> float:
    """Returns the seconds of the given number of rounds."""
    began = time.perf_counter()
    version(rounds)
    return time.perf_counter() - began


class Ended(NamedTuple):
    """A process that ended successfully.

    Args:
        lines: its output.
        at: seconds from its start to each line.
        wall: seconds from its start to its end.
        cpu: CPU seconds of all its threads, as measured by the operating system.
    """

    lines: list[str]
    at: list[float]
    wall: float
    cpu: float


def process(
    command: Sequence[str], environment: Mapping[str, str], longest: float = threading.TIMEOUT_MAX
) -> Ended | None:
    """Times one process, from its start to its end.

    Args:
        command: the command line.
        environment: variables in addition to those of this process.
        longest: seconds after which it is ended.

    Returns:
        Its output and times; None if it took longer.

    Raises:
        RuntimeError: if it ends with another status than 0.
    """
    began = time.perf_counter()
    process = subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.PIPE, text=True
    )
    late = threading.Event()
    watch = threading.Timer(longest, lambda: (late.set(), process.kill()))
    with process:
        watch.start()
        try:
            assert process.stdout is not None
            lines, at = [], []
            for line in process.stdout:
                at.append(time.perf_counter() - began)
                lines.append(line.rstrip("\n"))
            _, status, usage = os.wait4(process.pid, 0)
        finally:
            watch.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - began
    if late.is_set():
        return None
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with status {process.returncode}")
    return Ended(lines, at, wall, usage.ru_utime + usage.ru_stime)
