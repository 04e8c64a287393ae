"""Seconds of a round with metrics: dsgd, the best hand-written version, and the limit of the memory
bandwidth, in one run.

    python -m experiments.benchmark rounds

All versions compute the same on a heterogeneous quadratic with diagonal Hessians and exact
gradients, and record f, |f'|^2 and the consensus distance in every round. The hand-written version
is a JAX scan for this one method, the fastest of three forms: XLA's reduction over workers is slow
on CPUs for large models, a product with ones is not, and additions are fused with the computation
of their terms. XLA's selection of EF21's largest elements is also slow there; the last two forms
select by counts. The limit is the time to move the data that a round must move (A and b; the models
of DSGD; the memories of EC-SGD and EF21) at the rate of a copy of the same number of bytes: in
numpy if the device is a CPU, otherwise on the device.

All versions take turns, on newly allocated arrays for each problem, and medians are reported: the
position of an array in memory changes the speed of a small round by tens of per cent.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import optax
from rich.table import Table

import algorithms
import dsgd
from dsgd import problems
from experiments.benchmark import by_hand
from experiments.benchmark.timing import calibrate
from experiments.shared import commands, tables, timing

FORMS = {
    "scan": by_hand.reduce_mean,
    "scan, product": by_hand.mean_by_product,
    "scan, additions": by_hand.mean_by_blocks,
}


@dataclass(frozen=True)
class Args:
    """Times rounds against hand-written versions and the copy limit."""

    methods: tuple[str, ...] = tuple(by_hand.SCANS)
    """Methods, by their short names."""
    workers: tuple[commands.Count, ...] = (16, 64, 256, 4096, 64, 16, 1024, 16)
    """Numbers of workers N."""
    dimensions: tuple[commands.Count, ...] = (
        100,
        100,
        100,
        100,
        10_000,
        100_000,
        10_000,
        1_000_000,
    )
    """Dimensions d, one for each N."""
    seconds: commands.Positive = 1.5
    """Approximate seconds of one timing, which has at least one round. In short timings of large
    models, the allocation of memory at the start of a run is significant.
    """
    repeats: commands.Count = 3
    """Number of timings of each version on each problem."""
    out: Path = Path("results/benchmark/rounds")
    """Folder for config.json, rounds.csv and table.csv."""


class Row(NamedTuple):
    """Medians for one method and size: seconds of a round of each version (NaN if there is none),
    and ratios over pairs of timings.

    Args:
        speedup: of dsgd, relative to the fastest scan.
        of_limit: share of the limit's throughput.
        bytes_per_second: data that a round must move, over dsgd's seconds.
    """

    method: str
    N: int
    d: int
    framework: float
    scan: float
    product: float
    additions: float
    numpy: float
    limit: float
    speedup: float
    of_limit: float
    bytes_per_second: float


def main(args: Args) -> None:
    check(args)
    commands.begin(args)
    rows: list[Row] = []
    with commands.keep_rows(args.out / "rounds.csv", Row._fields, rows):
        for name in args.methods:
            for N, d in zip(args.workers, args.dimensions, strict=True):
                rows.append(compare(args, name, N, d))
    commands.finish(args, {}, {"table": tabulate(rows)})


def check(args: Args) -> None:
    """Raises a ValueError if the arguments do not fit together."""
    if len(args.workers) != len(args.dimensions):
        raise ValueError(
            f"{len(args.workers)} workers for {len(args.dimensions)} dimensions: expected one "
            "dimension for each number of workers"
        )
    commands.require_known("--methods", args.methods, by_hand.SCANS)


def compare(args: Args, name: str, N: int, d: int) -> Row:
    """Times all versions in turn."""
    method = algorithms.make(name, optax.sgd(by_hand.LEARNING_RATE), N)
    programs = versions(method, name, problems.random_quadratic(N, d, diagonal=True, seed=0))
    taken = time_versions(programs, args.seconds, args.repeats)
    seconds = {version: float(np.median(times)) for version, times in taken.items()}
    best = min(FORMS, key=lambda form: seconds[form])
    speedup, of_limit = (
        float(np.median(taken[other] / taken["framework"])) for other in (best, "limit")
    )
    rate = 4 * by_hand.MOVED[name] * N * d / seconds["framework"]
    columns = (
        seconds.get(version, float("nan")) for version in ("framework", *FORMS, "numpy", "limit")
    )
    return Row(name, N, d, *columns, speedup=speedup, of_limit=of_limit, bytes_per_second=rate)


def versions(
    method: dsgd.Algorithm, name: str, problem: dsgd.Problem
) -> dict[str, Callable[[int], object]]:
    """Returns, by name, functions that run a given number of rounds."""
    scans = {form: by_hand.scan(name, problem, mean) for form, mean in FORMS.items()}
    loop = by_hand.loop(name, problem)
    copies = by_hand.copies(by_hand.MOVED[name], *problem.data.b.shape)
    return {
        "framework": framework(method, problem),
        **scans,
        **({"numpy": loop} if loop else {}),
        "limit": copies,
    }


def time_versions(
    versions: dict[str, Callable[[int], object]], seconds: float, repeats: int
) -> dict[str, np.ndarray]:
    """Returns the seconds of one round of each version, `[repeats]`, in timings of approximately
    the given length that take turns.
    """
    counts = {version: calibrate(run, seconds) for version, run in versions.items()}
    for version, run in versions.items():
        run(counts[version])  # compiled for this number of rounds
    programs = {version: partial(run, counts[version]) for version, run in versions.items()}
    taken = timing.time_in_turn(programs, repeats)
    return {version: times / counts[version] for version, times in taken.items()}


def framework(method: dsgd.Algorithm, problem: dsgd.Problem) -> Callable[[int], object]:
    """Returns `dsgd.run` as a whole: checks, start, chunks, history."""
    key, mesh = jax.random.key(0), dsgd.workers.mesh(1)
    return lambda rounds: jax.block_until_ready(
        dsgd.run(method, problem, steps=rounds, key=key, mesh=mesh)
    )


def tabulate(rows: list[Row]) -> Table:
    """Tabulates one row per method and size."""
    table = tables.table(
        "a round with metrics (medians)",
        ("method", "N x d", "µs", "GB/s", "scan", "numpy", "limit"),
        "GB/s: throughput of the data that a round must move; limit: relative to a copy's.\nscan, "
        "numpy: their seconds / dsgd's (for the fastest scan).",
    )
    for method, each in itertools.groupby(rows, lambda row: row.method):
        table.add_section()
        for row in each:
            numpy = "" if np.isnan(row.numpy) else f"{row.numpy / row.framework:.2f}"
            microseconds, speed = f"{row.framework * 1e6:,.1f}", f"{row.bytes_per_second / 1e9:.3g}"
            cells = (microseconds, speed, f"{row.speedup:.2f}", numpy, f"{row.of_limit:.2f}")
            table.add_row(method, f"{row.N:,} x {row.d:,}", *cells)
    return table
