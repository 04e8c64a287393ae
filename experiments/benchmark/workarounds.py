"""CPU seconds of the operations of `dsgd.xla`, in their forms for CPUs and in plain JAX.

    python -m experiments.benchmark workarounds

A form that no longer gains anything with a new version of JAX can be removed. Each version runs in
a separate process.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from dsgd import records
from experiments.benchmark import timing
from experiments.shared import commands, tables

JOB = "experiments.benchmark.jobs.workarounds"


@dataclass(frozen=True)
class Args:
    """Times operations in their forms for CPUs and in plain JAX."""

    seconds: commands.Positive = 0.5
    """Approximate seconds of one timing."""
    out: Path = Path("results/benchmark/workarounds")
    """Folder for config.json, workarounds.csv and table.csv."""


def main(args: Args) -> None:
    commands.begin(args)
    found = {value: measure(args, value) for value in ("on", "off")}
    rows = [
        (name, seconds, found["off"][name], found["off"][name] / seconds)
        for name, seconds in found["on"].items()
    ]
    records.write_rows(
        args.out / "workarounds.csv", ("operation", "seconds", "plain", "ratio"), rows
    )
    table = tables.table(
        "an operation on CPUs",
        ("operation", "µs", "plain, µs", "ratio"),
        "CPU time of all threads. ratio: plain JAX / form for CPUs.",
    )
    for name, seconds, plain, ratio in rows:
        table.add_row(name, f"{seconds * 1e6:,.1f}", f"{plain * 1e6:,.1f}", f"{ratio:.1f}")
    tables.show(tables.console(), table, args.out / "table.csv")


def measure(args: Args, value: str) -> dict[str, float]:
    """Returns the CPU seconds of each operation in one process with this value of
    DSGD_XLA_WORKAROUNDS.
    """
    ended = timing.process(
        [sys.executable, "-m", JOB, str(args.seconds)],
        {"DSGD_XLA_WORKAROUNDS": value, "JAX_PLATFORMS": "cpu"},
    )
    assert ended is not None
    return json.loads(ended.lines[-1])
