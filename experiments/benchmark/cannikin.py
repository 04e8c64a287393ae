"""What it takes to decide on batches: milliseconds of OptPerf, for real batches, whole ones, and many candidates at once; and what a round
of training costs whose batches differ by four, beside equal ones of the same total.

    python -m experiments.benchmark cannikin

Beside it Algorithm 1 of the paper (`cannikin.published_optperf`), which finds it for some clusters only, and the linear program solved by
HiGHS. Each goes from the coefficients of a cluster whose nodes differ in speed by up to four, half of them bound by communication; checks
of the coefficients and sorting are part of it.

The rounds are those of `python -m experiments.benchmark work`, which says more of them.

All versions take turns; medians and minima are reported. One core does all: `taskset -c 0`, say. With 10,000 nodes HiGHS takes seconds, and
so all of it minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.optimize
import scipy.sparse
from rich.table import Table

from algorithms.cannikin import ClusterModel, published_optperf
from experiments.benchmark import rounds, work
from experiments.shared import commands, common

BATCH = 64  # samples of a node, on average


@dataclass(frozen=True)
class Args:
    """Times OptPerf beside what else finds it."""

    nodes: tuple[int, ...] = (3, 16, 100, 1_000, 10_000)
    """Sizes of clusters."""
    candidates: int = 100
    """Total batches that are looked at together."""
    models: tuple[str, ...] = tuple(work.MODELS)
    """Whose rounds are timed: logistic regression, the MLP, the CNN."""
    seconds: float = 0.2
    """Length of one timing, about; a decision at least."""
    repeats: int = 7
    """Timings of each version."""
    out: Path = field(default=Path("results/benchmark/cannikin"))
    """Folder for config.json, optperf.csv and work.csv."""


class Row(NamedTuple):
    """Seconds on a cluster of so many nodes, medians and minima: OptPerf, of all candidates, of whole samples, and by others."""

    nodes: int
    optperf: float
    candidates: float
    integer: float
    published: float
    linprog: float
    least_optperf: float
    least_candidates: float
    least_integer: float
    least_published: float
    least_linprog: float


def main(args: Args) -> None:
    trained = work.Args(args.models, seconds=args.seconds, repeats=args.repeats, out=args.out)
    work.check(trained)
    commands.begin(args)
    rows: list[Row] = []
    with commands.kept_rows(args.out / "optperf.csv", Row._fields, rows):
        rows.extend(compare(args, n) for n in args.nodes)
    common.console().print(tabulate(args, rows))
    work.timed(trained)


def compare(args: Args, nodes: int) -> Row:
    """Times all versions in turn."""
    taken = rounds.in_turn(versions(nodes, args.candidates), args.seconds, args.repeats).values()
    return Row(nodes, *(float(np.median(times)) for times in taken), *(float(np.min(times)) for times in taken))


def cluster(nodes: int) -> Callable[[], ClusterModel]:
    """Makes it anew. Its slowest node takes a millisecond for a sample, or nearly."""
    draw = np.random.default_rng(0)
    speed = draw.uniform(1, 4, nodes)
    q, s, k, m = (draw.uniform(0.8, 1.2, nodes) * size / speed for size in (0.3e-3, 5e-3, 0.7e-3, 5e-3))
    sending = 0.8 * float(np.median(k * BATCH + m))
    return lambda: ClusterModel(q, s, k, m, 0.2, sending, 0.1 * sending)


def versions(nodes: int, candidates: int) -> dict[str, Callable[[int], object]]:
    """By name, functions that decide so many times, one after the other."""
    make, total = cluster(nodes), BATCH * nodes
    totals = np.linspace(total / 4, 4 * total, candidates)
    runs = {
        "optperf": lambda: make().optperf(total),
        "candidates": lambda: make().optperf(totals),
        "integer": lambda: make().optperf_integer(total),
        "published": lambda: published_optperf(make(), total),
        "linprog": lambda: linear_program(make(), total),
    }
    return {name: lambda count, run=run: [run() for _ in range(count)] for name, run in runs.items()}


def linear_program(model: ClusterModel, total: float) -> scipy.optimize.OptimizeResult:
    """Its `fun` is OptPerf's seconds: both lines of each node below T, the last unknown."""
    q, s, k, m = (np.asarray(each) for each in (model.q, model.s, model.k, model.m))
    slopes = scipy.sparse.vstack([scipy.sparse.diags_array(q + k), scipy.sparse.diags_array(q + model.gamma * k)])
    below = scipy.sparse.hstack([slopes, scipy.sparse.csr_array(-np.ones((2 * model.nodes, 1)))], format="csr")
    fixed = np.concatenate([s + m, s + model.gamma * m + model.t_overlap]) + model.t_last
    cost = np.append(np.zeros(model.nodes), 1.0)
    return scipy.optimize.linprog(cost, below, -fixed, scipy.sparse.csr_array([1 - cost]), [total])


def tabulate(args: Args, rows: list[Row]) -> Table:
    """One row a cluster."""
    caption = f"Medians/minima. all: {args.candidates} total batches at once; whole: of whole samples."
    table = Table(title="OptPerf, ms", caption=caption)
    for heading in ("nodes", "real", "all", "whole", "Algorithm 1", "linprog"):
        table.add_column(heading, justify="right", no_wrap=True)
    for n, *times in rows:
        each = zip(times[:5], times[5:], strict=True)
        table.add_row(f"{n:,}", *("/".join(_shown(seconds) for seconds in pair) for pair in each))
    return table


def _shown(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}" if seconds < 0.1 else f"{seconds * 1e3:,.0f}"
