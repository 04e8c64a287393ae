"""Seconds of rounds and of exact gradients on sparse features, compared with the same features in dense arrays.

    python -m experiments.benchmark sparse

Logistic regression on random rows, with as many features and, on average, about as many entries a row as data sets of LIBSVM's. Rounds are
those of mini-batch SGD without records, on one device; the exact gradient is that of all workers' samples. Versions take turns; medians are
reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.table import Table
from scipy.sparse import csr_array

import dsgd
from dsgd import problems
from experiments.benchmark import rounds, work
from experiments.shared import commands, common

SHAPES = {"mushrooms": (112, 21), "a9a": (123, 14), "w8a": (300, 12), "rcv1": (47_236, 74)}  # features, entries of a row


@dataclass(frozen=True)
class Args:
    """Times rounds and exact gradients on sparse and on dense features."""

    shapes: tuple[str, ...] = tuple(SHAPES)
    """Data sets to imitate, in features and in entries of a row."""
    samples: int = 2_000
    """Of all workers."""
    workers: int = 16
    """Number of workers N."""
    batch_size: int = 16
    """Samples of a worker's batch."""
    seconds: float = 0.2
    """Length of one timing of rounds, about; a round at least."""
    repeats: int = 7
    """Timings of each version."""
    out: Path = field(default=Path("results/benchmark/sparse"))
    """Folder for config.json and sparse.csv."""


class Row(NamedTuple):
    """Medians of seconds, and bytes of the features.

    Args:
        round_sparse, round_dense: of a round.
        exact_sparse, exact_dense: of an exact gradient.
        bytes_sparse, bytes_dense: of the features.
    """

    shape: str
    features: int
    entries: int
    round_sparse: float
    round_dense: float
    exact_sparse: float
    exact_dense: float
    bytes_sparse: int
    bytes_dense: int


def main(args: Args) -> None:
    if unknown := [name for name in args.shapes if name not in SHAPES]:
        raise ValueError(f"--shapes {' '.join(unknown)}: need some of {', '.join(SHAPES)}")
    commands.begin(args)
    rows: list[Row] = []
    with commands.kept_rows(args.out / "sparse.csv", Row._fields, rows):
        rows.extend(compare(args, name) for name in args.shapes)
    common.console().print(tabulate(args, rows))


def compare(args: Args, name: str) -> Row:
    """Times both versions in turn."""
    features, entries = SHAPES[name]
    matrix, classes = drawn(args.samples, features, entries)
    forms = {"sparse": problems.sparse_rows(matrix), "dense": matrix.toarray()}
    versions = {kind: make(args, inputs, classes) for kind, inputs in forms.items()}
    many = {kind: work.program(problem, None) for kind, problem in versions.items()}
    by_round = rounds.in_turn(many, args.seconds, args.repeats)
    whole = {kind: exact(problem) for kind, problem in versions.items()}
    by_pass = {kind: [] for kind in whole}
    for _ in range(args.repeats):
        for kind, run in whole.items():
            by_pass[kind].append(common.seconds(run))
    times = (float(np.median(taken[kind])) for taken in (by_round, by_pass) for kind in ("sparse", "dense"))
    sparse, dense = (sum(leaf.nbytes for leaf in jax.tree.leaves(problem.data.inputs)) for problem in versions.values())
    return Row(name, features, entries, *times, bytes_sparse=sparse, bytes_dense=dense)


def drawn(samples: int, features: int, entries: int) -> tuple[csr_array, np.ndarray]:
    """Random rows, each with so many entries, and their classes."""
    rng = np.random.default_rng(0)
    columns = np.stack([rng.choice(features, entries, replace=False) for _ in range(samples)])
    rows = np.repeat(np.arange(samples), entries)
    return csr_array((rng.normal(size=rows.size), (rows, columns.ravel())), (samples, features)), np.arange(samples) % 2


def make(args: Args, inputs: Any, classes: np.ndarray) -> dsgd.Problem:
    """The problem on features of one kind, with a small test set."""
    some = jax.tree.map(lambda leaf: leaf[:2], inputs)
    data = problems.Dataset("random", inputs, classes, some, classes[:2], 2)
    return problems.logistic_regression(data, args.workers, batch_size=args.batch_size)


def exact(problem: dsgd.Problem) -> Callable[[], object]:
    """All workers' exact gradients."""
    gradients = jax.vmap(jax.grad(problem.loss), (None, 0))
    return common.program(gradients, problem.init(jax.random.key(0)), problem.data)


def tabulate(args: Args, rows: list[Row]) -> Table:
    """One row a shape."""
    title = f"logistic regression, {args.samples:,} samples,\n{args.workers} workers, batches of {args.batch_size} (medians)"
    caption = (
        "With sparse features: a round, us; the workers' exact gradients, ms; the\nfeatures, MB. x: how many times as much dense ones take."
    )
    table = Table(title=title, caption=caption)
    table.add_column("shape", no_wrap=True)
    for heading in ("features", "entries", "round", "x", "exact", "x", "MB", "x"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        cells = [row.shape, f"{row.features:,}", str(row.entries)]
        pairs = (
            (row.round_sparse, row.round_dense, 1e6),
            (row.exact_sparse, row.exact_dense, 1e3),
            (row.bytes_sparse, row.bytes_dense, 1e-6),
        )
        for sparse, dense, unit in pairs:
            cells += [f"{float(f'{sparse * unit:.2g}'):g}", f"{dense / sparse:.3g}"]
        table.add_row(*cells)
    return table
