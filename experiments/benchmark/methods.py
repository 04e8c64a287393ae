"""Rounds a second of every decentralized method, with metrics on.

    python -m experiments.benchmark methods

The problem is that of `benchmark rounds`: a heterogeneous quadratic with diagonal Hessians and exact gradients; f, |f'|^2 and the
consensus distance are recorded in every round. The time is that of `dsgd.run`, all of it but compiling.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import optax
from rich.table import Table

import algorithms
from dsgd import problems
from experiments.benchmark import by_hand, pace, rounds
from experiments.shared import commands, common

METHODS = ("dsgd", "local-sgd", "d2", "extra", "exact-diffusion", "gradient-tracking", "sgp", "choco-sgd", "deepsqueeze")


@dataclass(frozen=True)
class Args:
    """Times rounds of every decentralized method."""

    methods: tuple[str, ...] = METHODS
    """Which, by their short names."""
    workers: tuple[int, ...] = (16, 64)
    """Numbers of workers N."""
    dimension: int = 100
    """Elements d of a model."""
    seconds: float = 0.4
    """Length of one timing, about."""
    repeats: int = 5
    """Timings of each."""
    out: Path = field(default=Path("results/benchmark/methods"))
    """Folder for config.json and methods.csv."""


def main(args: Args) -> None:
    commands.begin(args)
    speeds: dict[str, list[float]] = {}
    columns, rows = ("method", "workers", "rounds/s"), []
    with commands.kept_rows(args.out / "methods.csv", columns, rows):
        for name in args.methods:
            speeds[name] = [speed(args, name, N) for N in args.workers]
            rows += [(name, N, value) for N, value in zip(args.workers, speeds[name], strict=True)]
    table = Table(title="rounds/s with metrics (medians)")
    table.add_column("method", no_wrap=True)
    for N in args.workers:
        table.add_column(f"{N} x {args.dimension:,}", justify="right", no_wrap=True)
    for name, values in speeds.items():
        table.add_row(name, *(f"{value:,.0f}" for value in values))
    common.console().print(table)


def speed(args: Args, name: str, N: int) -> float:
    """Median rounds a second."""
    problem = problems.random_quadratic(N, args.dimension, diagonal=True, seed=0)
    run = rounds.framework(algorithms.make(name, optax.sgd(by_hand.LEARNING_RATE), N), problem)
    count = pace.calibrate(run, args.seconds)
    return count / float(np.median([pace.clock(run, count) for _ in range(args.repeats)]))
