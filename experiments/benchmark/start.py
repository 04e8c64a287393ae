"""Seconds from the start of a process to its result: dsgd, with a cold and a warm cache, and the
same job in hand-written JAX.

    python -m experiments.benchmark start

Every version runs in a separate process; versions take turns, and medians are reported: of
wall-clock seconds by stage, as measured by the job, and of the whole process, as measured by the
operating system (CPU seconds of all its threads). "Cold" compiles every program; "warm" loads them
from disk, where dsgd (or for the scan JAX's own setting) stored them in a previous
run. Python's bytecode is always cached, as it is for installed packages.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.table import Table

from dsgd import records
from experiments.benchmark import timing
from experiments.shared import commands, tables

COLD = {"DSGD_CACHE": "off", "JAX_ENABLE_COMPILATION_CACHE": "false"}  # everything is compiled
STAGES = ("imports", "problem", "trace", "compile", "rounds")


@dataclass(frozen=True)
class Args:
    """Times whole processes, from start to result."""

    repeats: commands.Count = 5
    """Number of processes of each version."""
    out: Path = Path("results/benchmark/start")
    """Folder for config.json, start.csv and table.csv."""


class Version(NamedTuple):
    """A version of `experiments.benchmark.jobs.start`, and its environment variables."""

    name: str
    environment: dict[str, str]


class Taken(NamedTuple):
    """Seconds of one process."""

    stages: dict[str, float]
    wall: float
    cpu: float


def main(args: Args) -> None:
    commands.begin(args)
    with tempfile.TemporaryDirectory() as folder:
        versions = make_versions(Path(folder))
        for version in versions.values():
            time_version(version)  # fills the caches
        taken: dict[str, list[Taken]] = {name: [] for name in versions}
        for _ in range(args.repeats):
            for name, version in versions.items():
                taken[name].append(time_version(version))
    rows = [row(name, times, taken["scan"]) for name, times in taken.items()]
    records.write_rows(args.out / "start.csv", ("version", *STAGES, "wall", "cpu", "ratio"), rows)
    commands.finish(args, {}, {"table": tabulate(rows)})


def make_versions(folder: Path) -> dict[str, Version]:
    """Returns the versions by name."""
    bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    jax_cache = {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "scan"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    versions = {
        "dsgd": Version("dsgd", COLD),
        "scan": Version("scan", COLD),
        "dsgd, warm": Version("dsgd", {"DSGD_CACHE": str(folder / "dsgd")}),
        "scan, warm": Version("scan", jax_cache),
        "numpy": Version("numpy", {}),
    }
    return {
        name: version._replace(environment=version.environment | bytecode)
        for name, version in versions.items()
    }


def time_version(version: Version) -> Taken:
    """Runs one process, from its start to its end."""
    ended = timing.process(
        [sys.executable, "-m", "experiments.benchmark.jobs.start", version.name],
        version.environment,
    )
    assert ended is not None
    return Taken(json.loads(ended.lines[-1]), ended.wall, ended.cpu)


def row(name: str, taken: list[Taken], scan: list[Taken]) -> tuple:
    """Returns the medians over the processes; the ratio to the scan is a median over pairs."""
    stages = [float(np.median([one.stages.get(stage, 0.0) for one in taken])) for stage in STAGES]
    wall, cpu = (
        float(np.median([getattr(one, what) for one in taken])) for what in ("wall", "cpu")
    )
    return (
        name,
        *stages,
        wall,
        cpu,
        float(np.median([one.wall / other.wall for one, other in zip(taken, scan, strict=True)])),
    )


def tabulate(rows: list[tuple]) -> Table:
    table = tables.table(
        "seconds from the start of a process to its result",
        ("version", "import", "data", "trace", "comp.", "run", "wall", "CPU", "ratio"),
        "trace: tracing and lowering. wall, CPU: of the whole process. ratio: of wall to scan's.\n"
        "Medians of each column: stages need not add up to the total.",
    )
    for name, *seconds in rows:
        table.add_row(name, *(f"{value:.2f}" for value in seconds))
    return table
