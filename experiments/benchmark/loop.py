"""Microseconds of a turn of the loop itself, where rounds are small.

    python -m experiments.benchmark loop

How many rounds a call of `dsgd.run`'s program makes is an argument, so that one program serves all lengths. What does that cost, beside a
loop whose number of turns the compiler knows? On a GPU whoever launches the kernels has to ask, before each turn, whether there is
another: compiled for an H100 (`thunk_sequence` in XLA's dump), a round with a record asks three times, once for the record and twice for
the one round before it; rounds without records ask once. Where waiting shows here (run above counted by hand, that above the scan, turns
of nothing above known ones), `record_every` is what helps at once, and on CUDA 12.3 or newer perhaps the flag

    XLA_FLAGS=--xla_gpu_enable_command_buffer=+WHILE

with which a loop may be one graph on the GPU. All versions take turns; medians are reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import jax
import numpy as np
import optax
from jax import lax
from rich.table import Table

import algorithms
import dsgd
from dsgd import problems
from experiments.benchmark import by_hand, rounds
from experiments.shared import commands, common

EVERY = 100  # rounds from one record to the next, in the last of the framework's versions


@dataclass(frozen=True)
class Args:
    """Times turns of loops whose length is known to the compiler, or is not."""

    methods: tuple[str, ...] = ("mb-sgd", "dsgd")
    """Which, of those that `rounds` takes."""
    workers: int = 16
    """Number of workers N."""
    dimension: int = 100
    """Elements d of a model."""
    seconds: float = 0.3
    """Length of one timing, about."""
    repeats: int = 5
    """Timings of each version."""
    out: Path = field(default=Path("results/benchmark/loop"))
    """Folder for config.json and loop.csv."""


def main(args: Args) -> None:
    if unknown := set(args.methods) - set(by_hand.SCANS):
        raise ValueError(f"--methods {' '.join(sorted(unknown))}: need some of {', '.join(by_hand.SCANS)}, which are written by hand")
    commands.begin(args)
    rows: list[tuple[str, str, float]] = []
    with commands.kept_rows(args.out / "loop.csv", ("method", "version", "seconds"), rows):
        for name, versions in {"nothing": of_nothing(), **{name: of_method(args, name) for name in args.methods}}.items():
            taken = rounds.in_turn(versions, args.seconds, args.repeats)
            rows += [(name, version, float(np.median(times))) for version, times in taken.items()]
    common.console().print(tabulate(args, rows))


def of_nothing() -> dict[str, Callable[[int], object]]:
    """A number to which 1 is added."""
    known = jax.jit(lambda x, count: lax.fori_loop(0, count, lambda _, x: x + np.float32(1), x), static_argnums=1)
    given = jax.jit(lambda x, count: lax.fori_loop(0, count, lambda _, x: x + np.float32(1), x))
    zero = np.float32(0)
    return {
        "known": lambda count: jax.block_until_ready(known(zero, count)),
        "argument": lambda count: jax.block_until_ready(given(zero, count)),
    }


def of_method(args: Args, name: str) -> dict[str, Callable[[int], object]]:
    """A round with its record, by hand and in the framework, and with few records."""
    problem = problems.random_quadratic(args.workers, args.dimension, diagonal=True, seed=0)
    method = algorithms.make(name, optax.sgd(by_hand.LEARNING_RATE), args.workers)
    key, mesh = jax.random.key(0), dsgd.workers.mesh(1)

    def few_records(count: int) -> object:
        return jax.block_until_ready(dsgd.run(method, problem, steps=count, key=key, record_every=EVERY, mesh=mesh))

    return {
        "known, by hand": by_hand.scan(name, problem),
        "argument, by hand": by_hand.counted(name, problem),
        "dsgd.run": rounds.framework(method, problem),
        f"dsgd.run, every {EVERY}": few_records,
    }


def tabulate(args: Args, rows: list[tuple[str, str, float]]) -> Table:
    """One row a version."""
    caption = "known: their number, to the compiler;\nargument: of the program, as in dsgd.run;\nevery: a record in so many rounds."
    table = Table(title=f"a turn of the loop, {args.workers} workers x {args.dimension} elements (medians)", caption=caption)
    table.add_column("round of", no_wrap=True)
    table.add_column("turns", no_wrap=True)
    table.add_column("µs", justify="right", no_wrap=True)
    last = rows[0][0]
    for name, version, seconds in rows:
        if name != last:
            table.add_section()
        last = name
        table.add_row(name, version, f"{seconds * 1e6:,.2f}")
    return table
