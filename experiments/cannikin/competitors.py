"""Processes with different speeds: each is pinned to its own core, on which other processes
compete.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# A competitor ends when its standard input closes, which is when the process that started it ends.
_SPIN = """
import os, sys, threading
os.sched_setaffinity(0, {int(sys.argv[1])})
os.nice(int(sys.argv[2]))
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True:
    pass
"""


def cores() -> list[int]:
    """Returns the cores that this process may use; raises a ValueError if the system does not
    provide them.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise ValueError(
            f"processes pinned to cores, on {sys.platform}: expected Linux, on which a process "
            "can be pinned to a core"
        )
    return sorted(os.sched_getaffinity(0))


def stay_on(core: int) -> None:
    """Pins all threads of this process, and those that they start, to a core."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


@contextmanager
def competing(counts: Sequence[int], nice: int) -> Iterator[list[int]]:
    """Runs competing processes, which always compute, on some cores; yields the cores. With c
    competitors of the same niceness, a process gets a share of 1 / (1 + c) of its core.

    Args:
        counts: number of competitors on the core of each process.
        nice: niceness of the competitors, 0 to 19.

    Raises:
        ValueError: if the system cannot pin processes to cores.
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
