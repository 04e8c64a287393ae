"""What all versions share: the arguments, the data, and what is told to `benchmark peers`."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.benchmark import pace

Run = Callable[[int], Any]  # rounds, from the start on -> the models, [N, d], or of mb-sgd the one model, [d]
RESULT = "result"  # the line that a version prints when the first result is there


@dataclass(frozen=True)
class Job:
    """What is to be done.

    Args:
        data: a folder with inputs.npy `[N, m, d]` and targets.npy `[N, m]`, 0 or 1.
        rounds: until the first result.
        seconds: length of the timing after it, about, which has as many rounds at least; 0: none.
        save: file for the models of the first result, .npy; "": none.
        method: by its name in `algorithms.ALGORITHMS`; a version has some.
        learning_rate: of all methods.
    """

    data: str
    rounds: int
    seconds: float = 0.0
    save: str = ""
    method: str = "dsgd"
    learning_rate: float = 1.0

    def load(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs `[N, m, d]` and targets `[N, m]`, float64."""
        return np.load(Path(self.data) / "inputs.npy"), np.load(Path(self.data) / "targets.npy")


def main(build: Callable[[Job], Run], *packages: str) -> None:
    """Does the job: prints a line when the first result is there, and at the end one of JSON.

    Args:
        build: the version.
        packages: whose versions are told.
    """
    job = Job(**json.loads(sys.argv[1]))
    run = build(job)
    models = run(job.rounds)
    print(RESULT, flush=True)
    if job.save:
        np.save(job.save, np.asarray(models))
    told: dict[str, Any] = {"memory": peak(), "versions": {name: importlib.metadata.version(name) for name in packages}}
    told["versions"]["Python"] = platform.python_version()
    if job.seconds:
        count = max(pace.calibrate(run, job.seconds), job.rounds)  # what each call does once must not count for much
        told["rounds_per_second"] = count / pace.clock(run, count)
    print(json.dumps(told))


def peak() -> int:
    """The most bytes of memory that this process has had.

    Linux: not `ru_maxrss`, which a process takes over from the one that started it.
    """
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
