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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import optax
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

import algorithms
import dsgd
import topologies
from dsgd import clusters, plots, problems, records
from experiments.shared import commands, figures, resuming, statistics, tables, tuning

CLUSTERS = ("equal workers", "stragglers")
FULL = 0.99  # share of the highest rate of updates at which the server is saturated


@dataclass(frozen=True)
class Args(commands.Data, commands.Switch, commands.Common):
    """Compares synchronous and asynchronous SGD in seconds."""

    workers: commands.Count = 16
    """Number of workers N."""
    partition: str = "iid"
    """Which worker gets which samples: iid, blocks, by-label or dirichlet."""
    batch_size: commands.Count = 16
    """Number of samples of one gradient."""
    learning_rates: tuple[commands.Positive, ...] = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    """Candidate step sizes."""
    rounds: commands.Count = 200
    """Number of rounds of synchronous methods; asynchronous ones make N times as many updates, with
    the same number of gradients.
    """
    seeds: commands.Count = 3
    """Independent runs of each method."""
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
        "AD-PSGD",
    )
    """Methods to compare."""
    bound: int = 32
    """The largest staleness of the bounded method."""
    out: Path = Path("results/asynchrony")
    """Folder for config.json, history.csv, saturation.csv and figure.png."""


class Method(NamedTuple):
    """A method, and its number of updates while each worker computes one gradient."""

    build: Callable[[optax.GradientTransformation], dsgd.Algorithm]
    updates: int


class Case(NamedTuple):
    """A method on one of `CLUSTERS`."""

    where: str
    method: str

    def __str__(self) -> str:
        return f"{self.where}: {self.method}"


Outcomes = dict[Case, tuning.Tuned]


class Saturation(NamedTuple):
    """Updates per second and mean staleness in the steady state, for each number of workers."""

    workers: np.ndarray
    rate: np.ndarray
    staleness: np.ndarray


def main(args: Args) -> None:
    if not 0 <= args.slow < args.workers:
        raise ValueError(
            f"--slow {args.slow} of {args.workers} workers: expected at least 0, and fewer than all"
        )
    problem = tuning.logistic_regression(args, args.workers, args.partition)
    compute = {where: computing(args, where) for where in CLUSTERS}
    ports, chosen = clusters.constant(args.bandwidth), methods(args)
    on = {
        where: clusters.Cluster(compute[where], up=ports, latency=args.latency)
        for where in CLUSTERS
    }
    for method in chosen.values():  # invalid arguments are reported before the first run
        dsgd.exchanges(method.build(optax.sgd(1.0)), problem, cluster=on[CLUSTERS[0]])
    commands.begin(args)
    cases = [Case(where, name) for where in CLUSTERS for name in chosen]
    tuned = tuning.compare(
        args,
        "training",
        cases,
        lambda case: train(args, problem, on[case.where], chosen[case.method]),
    )
    bits = 32 * tuning.elements(problem)
    stale = {where: staleness(args, compute[where], chosen, bits) for where in CLUSTERS}
    full = measure_saturation(args, bits)
    records.write_rows(args.out / "saturation.csv", Saturation._fields, zip(*full, strict=True))
    target = 1.1 * max(dsgd.history.tail_mean(one.history["loss"]).mean() for one in tuned.values())
    shown = {
        where.replace(" ", "-"): tabulate(args, where, tuned, stale[where], target)
        for where in CLUSTERS
    }
    shown["saturated"] = tabulate_saturation(args, full, bits)
    commands.finish(args, {"figure": draw(args, tuned, stale, full, bits, target)}, shown)


def computing(args: Args, where: str) -> clusters.Quantity:
    """Returns the compute times: workers that differ only randomly, or some always slower."""
    compute = clusters.constant(args.compute) + clusters.exponential(args.compute / 10)
    return (
        clusters.slow(compute, range(args.slow), args.factor) if where == "stragglers" else compute
    )


def methods(args: Args) -> dict[str, Method]:
    """Returns the methods by name."""
    N, graph = args.workers, topologies.complete(args.workers)
    known = {
        "synchronous": Method(algorithms.minibatch_sgd, 1),
        "drop slowest": Method(
            lambda optimizer: algorithms.backup_workers_sgd(optimizer, args.backups), 1
        ),
        "asynchronous": Method(algorithms.asynchronous_sgd, N),
        "bounded": Method(
            lambda optimizer: algorithms.asynchronous_sgd(optimizer, bound=args.bound), N
        ),
        "staleness-aware": Method(
            lambda optimizer: algorithms.asynchronous_sgd(optimizer, staleness_aware=True), N
        ),
        "4 servers": Method(lambda optimizer: algorithms.asynchronous_sgd(optimizer, servers=4), N),
        "AD-PSGD": Method(
            lambda optimizer: algorithms.asynchronous_gossip_sgd(optimizer, graph), N
        ),
    }
    commands.require_known("--methods", args.methods, known)
    return {name: known[name] for name in args.methods}


def train(
    args: Args, problem: dsgd.Problem, cluster: clusters.Cluster, method: Method
) -> tuning.Tuned | None:
    """Runs the method at its best step size; None if it diverged at every one."""

    def build(learning_rate):
        return method.build(optax.sgd(learning_rate))

    return tuning.tune(args, build, problem, steps=args.rounds * method.updates, cluster=cluster)


def staleness(
    args: Args, compute: clusters.Quantity, chosen: dict[str, Method], bits: int
) -> dict[str, np.ndarray]:
    """Returns the staleness of every update, `[updates]`, by method."""
    late = {name: method for name, method in chosen.items() if method.updates > 1}
    return {
        name: timed(args, method, args.workers, compute, bits, gradients=args.rounds)["staleness"]
        for name, method in late.items()
    }


def timed(
    args: Args, method: Method, N: int, compute: clusters.Quantity, bits: int, *, gradients: int
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
    history = resuming.run(method.build(optax.sgd(0.0)), problem, **run).history
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
        found = timed(
            args,
            Method(algorithms.asynchronous_sgd, N),
            N,
            clusters.constant(args.compute),
            bits,
            gradients=40,
        )
        # Average over whole laps, because the updates of a server that is not saturated come in
        # bursts.
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


def knee_of(full: Saturation) -> int:
    """Returns the smallest number of workers that reaches 99 % of the highest rate."""
    return int(full.workers[np.flatnonzero(full.rate >= FULL * full.rate.max())[0]])


def tabulate(
    args: Args, where: str, tuned: Outcomes, stale: dict[str, np.ndarray], target: float
) -> Table:
    """Tabulates the cost to reach the target, one row per method."""
    table = tables.table(
        f"{where}: cost to reach loss {target:.2g}, {args.workers} workers, "
        f"{statistics.runs(args.seeds)}",
        ("method", "step", "updates", "seconds", "updates/s", "staleness", "max"),
        "*: step size at an edge of the grid. -: not reached.\nstaleness: mean and largest, in "
        "updates, from a separate run.",
    )
    for name in args.methods:
        if (case := Case(where, name)) not in tuned:
            table.add_row(name, "diverged")
            continue
        learning_rate, history, _ = tuned[case]
        updates, _, seconds = statistics.cost_to(history, target)
        rate = history["step"][-1] / history["clock"][:, -1].mean()
        late = stale.get(name)
        table.add_row(
            name,
            statistics.step_size(learning_rate, args.learning_rates),
            updates,
            seconds,
            f"{rate:,.0f}",
            *(("0", "0") if late is None else (f"{late.mean():.1f}", f"{late.max():.0f}")),
        )
    return table


def tabulate_saturation(args: Args, full: Saturation, bits: int) -> Table:
    """Tabulates how many workers saturate one server, and the effect of twice as many."""
    knee = knee_of(full)
    table = tables.table(
        "one server with an increasing number of equal workers",
        ("", "workers", "ports", "updates/s", "staleness"),
        f"saturated: {FULL:.0%} of the highest rate. ports: the number of workers\nthat keeps the "
        "switch's ports busy, (2(l + r) + C) / (l + r).",
    )
    for name, workers, point in (
        ("saturated", knee, f"{saturation_point(args, bits):.1f}"),
        ("twice as many", 2 * knee, ""),
    ):
        rate, late = (
            np.interp(workers, full.workers, values) for values in (full.rate, full.staleness)
        )
        table.add_row(name, str(workers), point, f"{rate:,.0f}", f"{late:.0f}")
    return table


def draw(
    args: Args,
    tuned: Outcomes,
    stale: dict[str, dict[str, np.ndarray]],
    full: Saturation,
    bits: int,
    target: float,
) -> Figure:
    """Draws the loss against updates and seconds for each cluster, below them the staleness, and
    the server's saturation.
    """
    sheet = Figure(figsize=(figures.WIDTH, 13), layout="constrained")
    above, middle, below = sheet.subfigures(3, 1, height_ratios=(2.3, 1, 1), squeeze=False)[:, 0]
    rows = plots.panels(above, 2, 2, sharey=False).reshape(2, 2)
    late = plots.panels(middle, 2)
    for row, axes, where in zip(rows, late, CLUSTERS, strict=True):
        runs = {case.method: one.history for case, one in tuned.items() if case.where == where}
        for panel, cost, label in zip(
            row, ("step", "clock"), ("updates", "simulated seconds"), strict=True
        ):
            lines = {
                name: (np.atleast_2d(history[cost]).mean(axis=0), history["loss"])
                for name, history in runs.items()
            }
            figures.losses(panel, lines, target, xscale="log", xlabel=label)
        row[0].set_ylabel(f"{where}: loss f(x)")
        histogram(axes, list(runs), stale[where])
        axes.set_title(where)
    late[0].set_ylabel("share of updates")
    figures.legend(above, 4, rows[0, 0])
    draw_saturation(plots.panels(below, 2, sharey=False), full, saturation_point(args, bits))
    figures.title(
        sheet,
        f"logistic regression, {args.data} ({args.partition}), {args.workers} workers; "
        f"{args.latency * 1e3:g} ms latency, {args.bandwidth / 1e6:g} Mbit/s, gradients of "
        f"{args.compute * 1e3:g} ms; stragglers: {args.slow} of {args.workers} workers are "
        f"{args.factor:g} times slower; drop slowest {args.backups}; bounded by {args.bound}; "
        f"{statistics.errors('bands', args.seeds)}; grey: target",
    )
    return sheet


def histogram(axes: Axes, names: list[str], stale: dict[str, np.ndarray]) -> None:
    """Draws the share of updates by their staleness, in the colors of the lines."""
    most = max((values.max() for values in stale.values()), default=1)
    edges = np.unique(np.round(np.geomspace(1, most + 2, 25))) - 0.5
    for i, name in enumerate(names):
        if name in stale:
            late = np.maximum(stale[name], 1)
            share = np.histogram(late, edges)[0] / late.size
            axes.stairs(share, edges, **figures.look(i, linewidth=1.8))
    axes.set(yscale="log", ylim=(1e-4, 1))
    figures.describe(axes, "staleness t - D(t) (0 is shown as 1)", log="x")


def draw_saturation(panels: np.ndarray, full: Saturation, point: float) -> None:
    """Draws updates per second and staleness against the number of workers, with the saturation
    point.
    """
    knee, mark = knee_of(full), plots.COLOURS[1]
    labels = ("updates per second", "mean staleness, in updates")
    for axes, values, label in zip(panels, full[1:], labels, strict=True):
        axes.plot(full.workers, values, "o-", color=plots.COLOURS[0], linewidth=1.8)
        words = f"(2(l + r) + C) / (l + r) = {point:.1f}"
        axes.axvline(point, color=mark, linestyle="--", label=words)
        at_knee = values[full.workers == knee]
        words = f"saturated from {knee} on"
        axes.plot(knee, at_knee, "*", color=mark, markersize=16, label=words)
        axes.set(xlabel="workers of one server", ylabel=label, ylim=(0, None))
        axes.legend(frameon=False, loc="lower right")
    panels[0].set_xlim(0, math.ceil(full.workers.max() * 1.05))


if __name__ == "__main__":
    commands.run(main, Args)
