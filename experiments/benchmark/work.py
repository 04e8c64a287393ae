"""Seconds of a round whose workers do not all compute as many samples, beside equal ones of the same total.

    python -m experiments.benchmark work

A round of mini-batch SGD without records, on one device, in four ways: equal batches in one piece, as methods ask for them that say nothing
of work; equal ones as micro-batches; sizes that differ by up to 4, as micro-batches; and all padded to the largest, in one piece. The first
three compute as many samples. Micro-batches that are not full are what unequal sizes cost beside equal ones.

All versions take turns; medians are reported, of ratios over pairs of timings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import PartitionSpec as P
from rich.table import Table

import dsgd
from dsgd import problems, workers
from dsgd import work as works
from dsgd.engine import oracle
from dsgd.engine.queries import Asked
from experiments.benchmark import rounds
from experiments.shared import commands, common

MODELS = {"logistic": 32, "mlp": 32, "cnn": 8}  # samples of a micro-batch
SHAPE, CLASSES = (8, 8, 1), 10  # of images, as the digits are


@dataclass(frozen=True)
class Args:
    """Times rounds of unequal work beside equal ones."""

    models: tuple[str, ...] = tuple(MODELS)
    """Which: logistic regression, the MLP, the CNN."""
    batch_size: int | None = None
    """Samples of a micro-batch; by default 32, and 8 of the CNN."""
    workers: int = 16
    """Number of workers N."""
    micro_batches: int = 16
    """Of the worker with most, a multiple of 4."""
    seconds: float = 0.2
    """Length of one timing, about; a round at least."""
    repeats: int = 7
    """Timings of each version."""
    out: Path = field(default=Path("results/benchmark/work"))
    """Folder for config.json and work.csv."""


class Row(NamedTuple):
    """Medians: seconds of a round of each version, and ratios of seconds over pairs of timings.

    Args:
        samples: of all workers in a round, without padding.
        unequal_over_equal: as micro-batches.
        unequal_over_whole: over equal batches in one piece.
        padded_over_whole: what padding costs.
    """

    model: str
    samples: int
    whole: float
    equal: float
    unequal: float
    padded: float
    unequal_over_equal: float
    unequal_over_whole: float
    padded_over_whole: float


def main(args: Args) -> None:
    check(args)
    commands.begin(args)
    timed(args)


def timed(args: Args) -> None:
    """Times, writes and prints."""
    rows: list[Row] = []
    with commands.kept_rows(args.out / "work.csv", Row._fields, rows):
        rows.extend(compare(args, name, args.batch_size or MODELS[name]) for name in args.models)
    common.console().print(tabulate(args, rows))


def check(args: Args) -> None:
    """Raises a ValueError where the arguments do not fit."""
    need_models(args.models)
    if args.micro_batches < 4 or args.micro_batches % 4:
        raise ValueError(f"micro_batches = {args.micro_batches}: need a multiple of 4, so that the smallest worker has whole ones")
    if args.workers < 2 or args.workers % 2:
        raise ValueError(f"workers = {args.workers}: need an even number, half of them below the mean")


def need_models(models: Sequence[str]) -> None:
    """Raises a ValueError where one of them is not there."""
    if unknown := [name for name in models if name not in MODELS]:
        raise ValueError(f"--models {' '.join(unknown)}: need some of {', '.join(MODELS)}")


def sizes(workers: int, largest: int) -> np.ndarray:
    """From a quarter of the largest to the largest, evenly apart in no order, `[N]`: on average 5/8 of it."""
    low = np.floor(np.linspace(largest / 4, largest, workers))[: workers // 2].astype(int)
    return np.random.default_rng(0).permutation(np.concatenate([low, largest + largest // 4 - low]))


def compare(args: Args, name: str, batch_size: int) -> Row:
    """Times all versions in turn."""
    N, M = args.workers, args.micro_batches
    unequal = sizes(N, M * batch_size)
    mean = int(unequal.sum()) // N
    cut = partial(works.local_batches, batch_size=batch_size, micro_batches=M)
    make_problem = partial(make, name, N, M * batch_size)
    versions = {
        "whole": program(make_problem(mean), None),
        "equal": program(make_problem(batch_size), cut(np.full(N, mean))),
        "unequal": program(make_problem(batch_size), cut(unequal)),
        "padded": program(make_problem(M * batch_size), None),
    }
    taken = rounds.in_turn(versions, args.seconds, args.repeats)
    whole, equal, other, padded = taken.values()
    ratios = (float(np.median(ratio)) for ratio in (other / equal, other / whole, padded / whole))
    return Row(name, int(unequal.sum()), *(float(np.median(times)) for times in taken.values()), *ratios)


def make(name: str, workers: int, samples: int, batch_size: int) -> dsgd.Problem:
    """A problem on noise, with so many samples a worker."""
    rng = np.random.default_rng(0)
    count = workers * samples
    inputs, targets = rng.normal(size=(count, *SHAPE)).astype(np.float32), np.arange(count) % CLASSES
    data = problems.Dataset("noise", inputs, targets, inputs[:CLASSES], targets[:CLASSES], CLASSES)
    if name == "logistic":
        return problems.logistic_regression(data, workers, batch_size=batch_size)
    return problems.neural_network(name, data, workers, batch_size=batch_size)


def program(problem: dsgd.Problem, given: dsgd.Work | None) -> Callable[[int], object]:
    """A function that runs so many rounds."""
    N, key = problem.workers, jax.random.key(0)
    said = None if given is None else works.in_samples(given, problem.batch_size)

    def several(count, x, data):
        def one_round(i, x):
            gradients = oracle.gradients(problem, Asked(x, work=said), jax.random.fold_in(key, i), data, N)
            return jax.tree.map(lambda x, slope: x - 1e-3 * slope, x, workers.mean(gradients))

        return jax.lax.fori_loop(0, count, one_round, x)

    specs = (P(), P(), P(workers.AXIS))
    compiled = jax.jit(jax.shard_map(several, mesh=workers.mesh(1), in_specs=specs, out_specs=P(), check_vma=False))
    x = problem.init(key)
    return lambda count: jax.block_until_ready(compiled(count, x, problem.data))


def tabulate(args: Args, rows: list[Row]) -> Table:
    """One row a problem."""
    first = "ms. whole: equal batches in one piece; equal, unequal (u): micro-batches;"
    caption = f"{first}\npadded (p): to the largest, in one piece. As many samples count in all of them."
    title = f"a round of {args.workers} workers, sizes that differ by 4 in up to {args.micro_batches} micro-batches"
    table = Table(title=f"{title}\n(medians)", caption=caption)
    table.add_column("model", no_wrap=True)
    for heading in ("whole", "equal", "unequal", "padded", "u/equal", "u/whole", "p/whole"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        times = (f"{seconds * 1e3:.3g}" for seconds in (row.whole, row.equal, row.unequal, row.padded))
        ratios = (f"{ratio:.2f}" for ratio in (row.unequal_over_equal, row.unequal_over_whole, row.padded_over_whole))
        table.add_row(row.model, *times, *ratios)
    return table
