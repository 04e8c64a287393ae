"""Methods against stragglers, compared on the same axis of seconds.

    python -m experiments.stragglers --rounds 60

Waiting for all workers, backup workers, DropCompute, local SGD with and without DropCompute, and
asynchronous servers, with and without bounded staleness. There are two kinds of stragglers: B.1's
delays, of all workers at any time, and waiting in one server only. A gradient has the same number
of micro-batches for every method. Each method has the step size of the grid with which it reaches
the target loss first, and all run for the same number of simulated seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from rich.table import Table

import algorithms
import dsgd
from algorithms import dropcompute
from dsgd import clusters, network
from experiments.dropcompute import local_sgd, noises
from experiments.dropcompute.training import JUST_AFTER, MEASURED, latencies
from experiments.shared import commands, figures, resuming, statistics, studies, tables, tuning
from experiments.shared.studies import Case, Tuned, with_sgd

# rounds of the pilot run from which the seconds of a gradient are taken; every worker computes one
# gradient in each
PILOT = 20
RECORDS = 60  # approximate number of records of a run
WAITING = "synchronous"  # the method to which others are compared


@dataclass(frozen=True)
class Args(commands.Data, commands.Switch, commands.Common, commands.Tasks):
    """Compares methods against stragglers."""

    workers: commands.Count = 16
    """Number of workers N."""
    micro_batches: commands.Count = 12
    """M, number of micro-batches of every gradient."""
    batch_size: commands.Count = 4
    """Number of samples of a micro-batch."""
    learning_rates: commands.Positives = (0.1, 0.2, 0.4, 1.6, 6.4, 12.8, 25.6)
    """Candidate step sizes."""
    target: commands.Positive = 0.3
    """Target loss."""
    rounds: commands.Count = 60
    """Number of rounds of the synchronous method; the others have the same number of seconds."""
    backups: int = 4
    """Number of the slowest gradients that backup workers drop in a round."""
    period: commands.Count = 4
    """H, number of gradients between two averagings of local SGD."""
    bound: int = 32
    """Largest staleness of the bounded method."""
    straggling: float = 0.04
    """Probability, averaged over workers, that a micro-batch waits one second, if stragglers are in
    one server.
    """
    server: commands.Count = 4
    """Number of workers of this server."""
    micro_batch: commands.Positive = 0.15
    """Seconds of a micro-batch without waiting, if stragglers are in one server; with B.1's delays
    0.45.
    """
    latency: commands.NotNegative = 0.02
    """Latency of a message, seconds."""
    bandwidth: commands.Positive = 2e6
    """Bits per second of a port."""
    seeds: commands.Count = 4
    """Independent runs of each method."""
    out: Path = Path("results/stragglers")
    """Folder for config.json, history.csv and figure.png."""


class Method(NamedTuple):
    """A method to compare.

    Args:
        build: learning_rate -> method.
        updates: number of its rounds in which every worker computes one gradient.
        whole: whether a gradient is one batch of M micro-batches; otherwise the method draws them
            one by one.
        wasted: share of the work that is never used; None: the share that its history reports as
            dropped.
    """

    build: studies.Build
    updates: int = 1
    whole: bool = True
    wasted: float | None = 0.0


def main(args: Args) -> None:
    places = stragglers(args)
    whole, single = (
        tuning.logistic_regression(args, args.workers, "iid", batch_size=number * args.batch_size)
        for number in (args.micro_batches, 1)
    )
    methods, cases = {}, {}
    for where, cluster in places.items():
        for name, method in make_methods(args, cluster, whole).items():
            methods[where, name] = method
            cases[where, name] = Case(
                method.build,
                whole if method.whole else single,
                cluster,
                records=RECORDS,
                cost=lambda history: rank(history, args.target),
            )
    studies.check(args, cases)
    commands.begin(args)
    seconds = {
        key: measure_round(case, PILOT * methods[key].updates, args.seed)
        for key, case in cases.items()
    }
    for (where, name), case in cases.items():
        steps = math.ceil(args.rounds * seconds[where, WAITING] / seconds[where, name])
        cases[where, name] = case._replace(steps=steps)
    found = studies.run(args, "stragglers", cases)
    shown, panels = {}, []
    for where, file in zip(places, ("delays", "server"), strict=False):
        compared = {name: method for (each, name), method in methods.items() if each == where}
        outcomes = {name: found[where, name] for name in compared if (where, name) in found}
        shown[file] = tabulate(args, where, compared, outcomes)
        x = "simulated seconds"
        lines = studies.lines(outcomes, x)
        panels.append(figures.curves(lines, args.target, xlabel=x, ylabel="loss f(x)", title=where))
    sheet = figures.sheet(
        panels,
        len(places),
        f"logistic regression, {args.data} (iid), {args.workers} workers x {args.micro_batches} "
        f"micro-batches; {args.backups} backup workers; averaging every {args.period}; staleness "
        f"up to {args.bound}; {statistics.errors('bands', args.seeds)}; grey: target",
        height=4.6,
    )
    commands.finish(args, {"figure": sheet}, shown)


def stragglers(args: Args) -> dict[str, clusters.Cluster]:
    """Returns the clusters by kind of stragglers."""
    N, server = args.workers, args.server
    _, single = local_sgd.scenarios(N, server, args.straggling, args.micro_batch)
    kinds = {"B.1's delays": noises.delays().seconds, "single server": single.cluster.compute}
    ports = {"up": clusters.constant(args.bandwidth), "latency": args.latency}
    return {
        where: clusters.Cluster(seconds, micro_batches=args.micro_batches, **ports)
        for where, seconds in kinds.items()
    }


def make_methods(args: Args, cluster: clusters.Cluster, problem: dsgd.Problem) -> dict[str, Method]:
    """Returns the methods by name."""
    N, M, H = args.workers, args.micro_batches, args.period
    bits = 32 * tuning.elements(problem)
    communication = network.cost(network.ring_all_reduce, N, args.latency, bits / args.bandwidth)

    def threshold(period: int) -> float:
        """Returns the planner's threshold, seconds of computation in this number of rounds, from
        independent draws.
        """
        times = latencies(cluster, N, M, args.seed, MEASURED * period).reshape(
            MEASURED, period, N, M
        )
        times = times.transpose(0, 2, 1, 3).reshape(MEASURED, N, period * M)
        return JUST_AFTER * float(dropcompute.threshold(times, np.full(MEASURED, communication)))

    step, steps = threshold(1), threshold(H)

    def drop(optimizer):
        return algorithms.drop_compute(algorithms.minibatch_sgd(optimizer), step, M)

    def drop_locally(optimizer):
        return algorithms.drop_compute(
            algorithms.local_sgd(optimizer, H), steps, M, period=H, correction="local"
        )

    late = with_sgd(algorithms.asynchronous_sgd, bound=args.bound)
    return {
        WAITING: Method(with_sgd(algorithms.minibatch_sgd)),
        "backup workers": Method(
            with_sgd(algorithms.backup_workers_sgd, args.backups), wasted=args.backups / N
        ),
        "DropCompute": Method(with_sgd(drop), whole=False, wasted=None),
        "local SGD": Method(with_sgd(algorithms.local_sgd, H)),
        "local, DropCompute": Method(with_sgd(drop_locally), whole=False, wasted=None),
        "asynchronous": Method(with_sgd(algorithms.asynchronous_sgd), updates=N),
        "bounded staleness": Method(late, updates=N),
    }


def measure_round(case: Case, rounds: int, seed: int) -> float:
    """Returns the mean seconds of a round in a run of `rounds` rounds with step size 0."""
    history = resuming.run(
        case.build(0.0),
        case.problem,
        steps=rounds,
        record_every=rounds,
        key=jax.random.key(seed),
        cluster=case.cluster,
        mesh=tuning.devices_for(case.problem.workers),
    ).history
    return float(history["clock"][-1]) / rounds


def rank(history: studies.History, target: float) -> tuple[float, float]:
    """Returns what the best step size minimizes: the mean seconds to the target, and if no step
    size reaches it with all seeds, the last loss.
    """
    last = np.nan_to_num(history["loss"][:, -1], nan=np.inf)
    return crossing(history, target).mean(), last.mean()


def crossing(history: dict[str, np.ndarray], target: float) -> np.ndarray:
    """Returns the seconds until each seed's loss first reaches the target, by linear interpolation
    between records, `[seeds]`; infinite if it never does.
    """
    return statistics.crossing(history["clock"], history["loss"], target, never=math.inf)


def tabulate(
    args: Args, where: str, methods: Mapping[str, Method], found: Mapping[str, Tuned]
) -> Table:
    """Tabulates one row per method."""
    sure = "mean ± half-width of the 95 % interval over seeds" if args.seeds > 1 else "one seed"
    table = tables.table(
        f"{where}: cost to reach loss {args.target:g}, {args.workers} workers, "
        f"{statistics.runs(args.seeds)}",
        ("method", "step", "s/update", "wasted", "seconds", "times as fast"),
        "s/update: seconds of an update of all workers; of asynchronous methods, of one\n"
        f"gradient. wasted: % of the work that is never used.\n{sure}.\ntimes as fast: as "
        "synchronous SGD, paired over seeds.\n*: step size at an edge of the grid. -: not reached "
        "by all seeds.",
    )
    times = {name: crossing(one.history, args.target) for name, one in found.items()}
    waiting = times.get(WAITING, np.full(args.seeds, math.inf))

    def cells(name: str) -> list[str]:
        one, seconds, wasted = found[name], times[name], methods[name].wasted
        history, costs = one.history, ["-", "-"]
        if np.isfinite(seconds + waiting).all():
            costs = [
                statistics.format_with_interval(seconds, 0),
                statistics.format_with_interval(waiting / seconds),
            ]
        update = history["clock"][:, -1].mean() / history["step"][-1]
        if wasted is None:
            wasted = history["dropped"][:, 1:].mean()
        return [one.cell(), f"{update:.2f}", f"{100 * wasted:.1f}", *costs]

    studies.fill(table, {name: name if name in found else None for name in methods}, cells)
    return table


if __name__ == "__main__":
    commands.run(main, Args)
