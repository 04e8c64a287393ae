"""Processes that are unequally fast: each on a core of its own, for which some others compete."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# It ends when its standard input closes, that is when the process that started it ends.
_SPIN = """
import os, sys, threading
os.sched_setaffinity(0, {int(sys.argv[1])})
os.nice(int(sys.argv[2]))
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True:
    pass
"""


def cores() -> list[int]:
    """Those that this process may use; a ValueError where the system cannot say so."""
    if not hasattr(os, "sched_setaffinity"):
        raise ValueError(
            f"processes on cores of their own, on {sys.platform}: expected Linux, where a process "
            "can be kept on a core"
        )
    return sorted(os.sched_getaffinity(0))


def stay_on(core: int) -> None:
    """All threads of this process, and those that they start."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


@contextmanager
def competing(counts: Sequence[int], nice: int) -> Iterator[list[int]]:
    """So many others, which always compute, on each of some cores; gives the cores. With c others
    as nice as itself a process has a share of 1 / (1 + c) of its core.

    Args:
        counts: on the core of each process.
        nice: how much they leave to others, 0 to 19.

    Raises:
        ValueError: a system on which no process can be kept on a core.
    """
    found, others = cores(), list[subprocess.Popen]()
    kept = [found[i % len(found)] for i in range(len(counts))]
    try:
        for core, count in zip(kept, counts, strict=True):
            command = [sys.executable, "-c", _SPIN, str(core), str(nice)]
            others += [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(count)]
        yield kept
    finally:
        for other in others:
            other.kill()
            other.communicate()
