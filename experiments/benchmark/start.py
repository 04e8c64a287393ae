"""Seconds from the start of a process to its result: dsgd, cold and with a warm cache, beside the same job by hand.

    python -m experiments.benchmark start

Every version runs in a process of its own, in turn, and medians are reported: of wall-clock seconds as the job's own clock splits them
up, and of the whole process, as the operating system counts them (CPU seconds of all its threads). "Cold" compiles every program; "warm"
finds them on disk, where `dsgd.cache.enable` (or for the scan JAX's own setting) put them in a run before. Python's bytecode is there in
all of them, as it is of installed packages.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from rich.table import Table

from dsgd import records
from experiments.benchmark import processes
from experiments.shared import commands, common

COLD = {"DSGD_CACHE": "off", "JAX_ENABLE_COMPILATION_CACHE": "false"}  # everything is compiled
STAGES = ("imports", "problem", "trace", "compile", "rounds")


@dataclass(frozen=True)
class Args:
    """Times whole processes, from start to result."""

    job: Literal["logistic", "transformer"] = "logistic"
    """Logistic regression on digits, 16 workers, 1,000 rounds of ring DSGD; or 3 rounds with a byte-level transformer."""
    repeats: commands.Count = 5
    """Processes of each version."""
    out: Path = field(default=Path("results/benchmark/start"))
    """Folder for config.json and start.csv."""


class Version(NamedTuple):
    """A module of `experiments.benchmark.jobs`, and the environment that it runs in."""

    module: str
    environment: dict[str, str]


class Taken(NamedTuple):
    """Seconds of one process."""

    stages: dict[str, float]
    wall: float
    cpu: float


def main(args: Args) -> None:
    commands.begin(args)
    with tempfile.TemporaryDirectory() as folder:
        versions = make_versions(args.job, Path(folder))
        for version in versions.values():
            timed(version, args.job)  # writes its caches
        taken: dict[str, list[Taken]] = {name: [] for name in versions}
        for _ in range(args.repeats):
            for name, version in versions.items():
                taken[name].append(timed(version, args.job))
    rows = [row(name, times, taken["scan"]) for name, times in taken.items()]
    records.write_rows(args.out / "start.csv", ("version", *STAGES, "wall", "cpu", "ratio"), rows)
    common.console().print(tabulate(args, rows))


def make_versions(job: str, folder: Path) -> dict[str, Version]:
    """By name, what is timed."""
    bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    jax_cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "scan"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    versions = {
        "dsgd": Version("framework", COLD),
        "scan": Version("scan", COLD),
        "dsgd, warm": Version("framework", {"DSGD_CACHE": str(folder / "dsgd")}),
        "scan, warm": Version("scan", jax_cache),
    } | ({"numpy": Version("loop", {})} if job == "logistic" else {})
    return {name: version._replace(environment=version.environment | bytecode) for name, version in versions.items()}


def timed(version: Version, job: str) -> Taken:
    """One process, from its start to its end."""
    ended = processes.timed([sys.executable, "-m", f"experiments.benchmark.jobs.{version.module}", job], version.environment)
    assert ended is not None
    return Taken(json.loads(ended.lines[-1]), ended.wall, ended.cpu)


def row(name: str, taken: list[Taken], scan: list[Taken]) -> tuple:
    """Medians over the processes; the ratio to the scan is that of pairs."""
    stages = [float(np.median([one.stages.get(stage, 0.0) for one in taken])) for stage in STAGES]
    wall, cpu = (float(np.median([getattr(one, what) for one in taken])) for what in ("wall", "cpu"))
    return name, *stages, wall, cpu, float(np.median([one.wall / other.wall for one, other in zip(taken, scan, strict=True)]))


def tabulate(args: Args, rows: list[tuple]) -> Table:
    meanings = "trace: and lower. wall, CPU: of the whole process. ratio: of wall to scan's."
    caption = f"{meanings}\nMedians, each of its own: stages need not add up."
    table = Table(title=f"{args.job}: seconds from the start of a process to its result", caption=caption)
    table.add_column("version", no_wrap=True)
    for heading in ("import", "data", "trace", "comp.", "run", "wall", "CPU", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, *seconds in rows:
        table.add_row(name, *(f"{value:.2f}" for value in seconds))
    return table
