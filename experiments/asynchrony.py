"""The cost of waiting and of staleness: synchronous, asynchronous, bounded-staleness and
backup-worker SGD on one simulated cluster.

    python -m experiments.asynchrony --workers 16 --slow 2 --factor 10

Shows the loss against updates and against seconds, without stragglers and with some workers that
are several times slower. Each method has the step size of the grid that has the smallest loss over
the second half of the run. It also shows the staleness of the gradients, and the number of workers
that saturate the server, beyond which additional workers only increase the staleness.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from matplotlib.axes import Axes
from rich.table import Table

import algorithms
import topologies
from dsgd import clusters, plots, problems, records
from experiments.shared import commands, figures, resuming, statistics, studies, tables, tuning
from experiments.shared.studies import Case, with_sgd

CLUSTERS = ("equal workers", "stragglers")
WAITING = ("synchronous", "drop slowest")  # methods whose update is one gradient of each worker
FULL = 0.99  # share of the highest rate of updates at which the server is saturated


@dataclass(frozen=True)
class Args(commands.Data, commands.Switch, commands.Tuning):
    """Compares synchronous and asynchronous SGD in seconds."""

    workers: commands.Count = 16
    """Number of workers N."""
    partition: str = "iid"
    """Which worker gets which samples: iid, blocks, by-label or dirichlet."""
    batch_size: commands.Count = 16
    """Number of samples of one gradient."""
    rounds: commands.Count = 200
    """Number of rounds of synchronous methods; asynchronous ones make N times as many updates, with
    the same number of gradients.
    """
    compute: commands.NotNegative = 0.01
    """Computation time of a gradient, seconds, without an exponentially distributed random part,
    whose mean is a tenth of it.
    """
    slow: int = 2
    """Number of stragglers."""
    factor: commands.Positive = 10.0
    """Factor by which stragglers are slower."""
    backups: int = 2
    """Number of the slowest gradients that backup workers drop in a round."""
    methods: tuple[str, ...] = (
        "synchronous",
        "drop slowest",
        "asynchronous",
        "bounded",
        "staleness-aware",
        "4 servers",
        "asynchronous_gossip_sgd",
    )
    """Methods to compare."""
    bound: int = 32
    """The largest staleness of the bounded method."""
    out: Path = Path("results/asynchrony")
    """Folder for config.json, history.csv, saturation.csv and figure.png."""


class Saturation(NamedTuple):
    """Updates per second and mean staleness in the steady state, for each number of workers."""

    workers: np.ndarray
    rate: np.ndarray
    staleness: np.ndarray


def main(args: Args) -> None:
    commands.require_slow(args.slow, args.workers)
    problem = tuning.logistic_regression(args, args.workers, args.partition)
    methods = make_methods(args)
    compute = {where: make_compute(args, where) for where in CLUSTERS}
    cases = {
        (where, name): Case(
            build,
            problem,
            clusters.Cluster(
                compute[where], up=clusters.constant(args.bandwidth), latency=args.latency
            ),
            steps=args.rounds * (1 if name in WAITING else args.workers),
        )
        for where in CLUSTERS
        for name, build in methods.items()
    }
    found = studies.run(args, "training", cases)
    bits = 32 * tuning.elements(problem)
    full = measure_saturation(args, bits)
    records.write_rows(args.out / "saturation.csv", Saturation._fields, zip(*full, strict=True))
    target = 1.1 * max(one.loss for one in found.values())
    tabulated, losses, histograms = {}, [], []
    for where in CLUSTERS:
        stale = measure_staleness(args, methods, compute[where], bits)
        outcomes = {name: found.get((where, name)) for name in methods}
        table = tables.table(
            f"{where}: cost to reach loss {target:.2g}, {args.workers} workers, "
            f"{statistics.runs(args.seeds)}",
            ("method", "step", "updates", "seconds", "updates/s", "staleness", "max"),
            "*: step size at an edge of the grid. -: not reached.\nstaleness: mean and largest, in "
            "updates, from a separate run.",
        )
        studies.fill(
            table,
            {tables.wrap(name): one and (one, stale.get(name)) for name, one in outcomes.items()},
            partial(cells, target),
        )
        tabulated[where.replace(" ", "-")] = table
        shown = {name: one for name, one in outcomes.items() if one}
        for x, label in (("rounds", "updates"), ("simulated seconds", "simulated seconds")):
            look = {"log": "xy", "xlabel": label, "ylabel": f"{where}: loss f(x)"}
            losses.append(figures.curves(studies.lines(shown, x), target, **look))
        histograms.append(partial(draw_histogram, where, list(shown), stale))
    point = saturation_point(args, bits)
    tabulated["saturated"] = tabulate_saturation(full, point)
    saturation = [partial(draw_saturation, full, point, name) for name in ("rate", "staleness")]
    sheet = figures.sheet(
        [*losses, *histograms, *saturation],
        2,
        f"logistic regression, {args.data} ({args.partition}), {args.workers} workers; "
        f"{args.latency * 1e3:g} ms latency, {args.bandwidth / 1e6:g} Mbit/s, gradients of "
        f"{args.compute * 1e3:g} ms; stragglers: {args.slow} of {args.workers} workers are "
        f"{args.factor:g} times slower; drop slowest {args.backups}; bounded by {args.bound}; "
        f"{statistics.errors('bands', args.seeds)}; grey: target",
        sharey=False,
    )
    commands.finish(args, {"figure": sheet}, tabulated)


def make_compute(args: Args, where: str) -> clusters.Quantity:
    """Returns the compute times: workers that differ only randomly, or some always slower."""
    compute = clusters.constant(args.compute) + clusters.exponential(args.compute / 10)
    return (
        clusters.slow(compute, range(args.slow), args.factor) if where == "stragglers" else compute
    )


def make_methods(args: Args) -> dict[str, studies.Build]:
    """Returns the methods by name."""
    known = {
        "synchronous": with_sgd(algorithms.minibatch_sgd),
        "drop slowest": with_sgd(algorithms.backup_workers_sgd, args.backups),
        "asynchronous": with_sgd(algorithms.asynchronous_sgd),
        "bounded": with_sgd(algorithms.asynchronous_sgd, bound=args.bound),
        "staleness-aware": with_sgd(algorithms.asynchronous_sgd, staleness_aware=True),
        "4 servers": with_sgd(algorithms.asynchronous_sgd, servers=4),
        "asynchronous_gossip_sgd": with_sgd(
            algorithms.asynchronous_gossip_sgd, topologies.complete(args.workers)
        ),
    }
    commands.require_known("--methods", args.methods, known)
    return {name: known[name] for name in args.methods}


def measure_staleness(
    args: Args, methods: Mapping[str, studies.Build], compute: clusters.Quantity, bits: int
) -> dict[str, np.ndarray]:
    """Returns the staleness of every update, `[updates]`, by method."""
    return {
        name: simulate(args, build, args.workers, compute, bits, gradients=args.rounds)["staleness"]
        for name, build in methods.items()
        if name not in WAITING
    }


def simulate(
    args: Args,
    build: studies.Build,
    N: int,
    compute: clusters.Quantity,
    bits: int,
    *,
    gradients: int,
) -> dict[str, np.ndarray]:
    """Returns the clock and the staleness of every update, `[updates]`, while each worker computes
    the given number of gradients.

    They do not depend on the model, so the simulation uses a single number, with a bandwidth at
    which its message takes as long as one of `bits`.
    """
    cluster = clusters.Cluster(
        compute, up=clusters.constant(args.bandwidth * 32 / bits), latency=args.latency
    )
    problem = problems.random_quadratic(
        N, 1, strong_convexity=1.0, heterogeneity=0.0, seed=args.seed
    )
    run = {"steps": gradients * N, "key": jax.random.key(args.seed), "cluster": cluster, "mesh": 1}
    history = resuming.run(build(0.0), problem, **run).history
    return {name: history[name][1:] for name in ("clock", "staleness")}


def measure_saturation(args: Args, bits: int) -> Saturation:
    """Measures one server with an increasing number of equal workers, which all compute for the
    same time, in the second half of 40 gradients of each.
    """
    point = saturation_point(args, bits)
    shares = (0.125, 0.25, 0.5, 0.75, 0.9, 1.1, 1.25, 1.5, 2, 2.5)
    numbers = sorted(
        {
            1,
            math.floor(point),
            math.ceil(point),
            *(max(1, round(point * share)) for share in shares),
        }
    )
    rows = []
    for N in tables.bar(numbers, "saturating", args.progress):
        found = simulate(
            args,
            with_sgd(algorithms.asynchronous_sgd),
            N,
            clusters.constant(args.compute),
            bits,
            gradients=40,
        )
        # Average over the same number of gradients of each worker, because the updates of a server
        # that is not saturated come in bursts.
        rows.append(
            (
                N,
                20 * N / (found["clock"][-1] - found["clock"][20 * N - 1]),
                found["staleness"][20 * N :].mean(),
            )
        )
    return Saturation(*(np.array(column) for column in zip(*rows, strict=True)))


def saturation_point(args: Args, bits: int) -> float:
    """Returns the number of workers that keeps the busier of the server's ports busy: a worker's
    time per gradient, 2(l + r) + C, divided by l + r, the time for which it occupies the port.
    """
    message = args.latency + bits / args.bandwidth
    return (2 * message + args.compute) / message


def find_knee(full: Saturation) -> int:
    """Returns the smallest number of workers that reaches 99 % of the highest rate."""
    return int(full.workers[np.flatnonzero(full.rate >= FULL * full.rate.max())[0]])


def cells(target: float, outcome: tuple[studies.Tuned, np.ndarray | None]) -> list[str]:
    """Returns the step size, the cost to the target, the rate of updates, and the staleness."""
    one, stale = outcome
    updates, _, seconds = statistics.cost_to(one.history, target)
    rate = one.history["step"][-1] / one.history["clock"][:, -1].mean()
    late = ["0", "0"] if stale is None else [f"{stale.mean():.1f}", f"{stale.max():.0f}"]
    return [one.cell(), updates, seconds, f"{rate:,.0f}", *late]


def tabulate_saturation(full: Saturation, point: float) -> Table:
    """Tabulates how many workers saturate one server, and the effect of twice as many."""
    knee = find_knee(full)
    table = tables.table(
        "one server with an increasing number of equal workers",
        ("", "workers", "ports", "updates/s", "staleness"),
        f"saturated: {FULL:.0%} of the highest rate. ports: the number of workers\nthat keeps the "
        "switch's ports busy, (2(l + r) + C) / (l + r).",
    )
    for name, workers, ports in (
        ("saturated", knee, f"{point:.1f}"),
        ("twice as many", 2 * knee, ""),
    ):
        rate, late = (
            np.interp(workers, full.workers, values) for values in (full.rate, full.staleness)
        )
        table.add_row(name, str(workers), ports, f"{rate:,.0f}", f"{late:.0f}")
    return table


def draw_histogram(where: str, names: list[str], stale: dict[str, np.ndarray], axes: Axes) -> None:
    """Draws the share of updates by their staleness, in the colors of the lines."""
    most = max((values.max() for values in stale.values()), default=1)
    edges = np.unique(np.round(np.geomspace(1, most + 2, 25))) - 0.5
    for i, name in enumerate(names):
        if name in stale:
            late = np.maximum(stale[name], 1)
            share = np.histogram(late, edges)[0] / late.size
            axes.stairs(share, edges, **figures.look(i, linewidth=1.8))
    label = "staleness t - D(t) (0 is shown as 1)"
    figures.describe(axes, label, f"{where}: share of updates", log="xy", ylim=(1e-4, 1))


def draw_saturation(full: Saturation, point: float, name: str, axes: Axes) -> None:
    """Draws updates per second or the staleness against the number of workers, with the saturation
    point.
    """
    values, knee, mark = getattr(full, name), find_knee(full), plots.COLOURS[1]
    axes.plot(full.workers, values, "o-", color=plots.COLOURS[0], linewidth=1.8)
    words = f"(2(l + r) + C) / (l + r) = {point:.1f}"
    axes.axvline(point, color=mark, linestyle="--", label=words)
    words = f"saturated from {knee} on"
    axes.plot(knee, values[full.workers == knee], "*", color=mark, markersize=16, label=words)
    label = {"rate": "updates per second", "staleness": "mean staleness, in updates"}[name]
    axes.set(xlabel="workers of one server", ylabel=label, ylim=(0, None))
    axes.set_xlim(0, math.ceil(full.workers.max() * 1.05))
    axes.legend(frameon=False, loc="lower right")


if __name__ == "__main__":
    commands.run(main, Args)
