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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from matplotlib.figure import Figure
from rich.table import Table

import algorithms
import dsgd
from algorithms import dropcompute
from dsgd import clusters, network, plots
from experiments.dropcompute import local_sgd, noises
from experiments.dropcompute.training import JUST_AFTER, MEASURED, latencies
from experiments.shared import commands, figures, resuming, statistics, tables, tuning

# rounds of the pilot run from which the seconds of a gradient are taken; every worker computes one
# gradient in each
PILOT = 20
RECORDS = 60  # approximate number of records of a run
WAITING = "synchronous"  # the method to which others are compared


@dataclass(frozen=True)
class Args(commands.Data, commands.Switch, commands.Common):
    """Compares methods against stragglers."""

    workers: commands.Count = 16
    """Number of workers N."""
    micro_batches: commands.Count = 12
    """M, number of micro-batches of every gradient."""
    batch_size: commands.Count = 4
    """Number of samples of a micro-batch."""
    learning_rates: tuple[commands.Positive, ...] = (0.1, 0.2, 0.4, 1.6, 6.4, 12.8, 25.6)
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
        build: optimizer -> method.
        updates: number of its rounds in which every worker computes one gradient.
        whole: whether a gradient is one batch of M micro-batches; otherwise the method draws them
            one by one.
        wasted: share of the work that is never used; None: the share that its history reports as
            dropped.
    """

    build: Callable[[optax.GradientTransformation], dsgd.Algorithm]
    updates: int = 1
    whole: bool = True
    wasted: float | None = 0.0


class Case(NamedTuple):
    """A method with one kind of stragglers."""

    where: str
    method: str

    def __str__(self) -> str:
        return f"{self.where}: {self.method}"


Outcomes = dict[Case, tuning.Tuned]


def main(args: Args) -> None:
    on = stragglers(args)
    both = {whole: problem(args, whole) for whole in (False, True)}
    chosen = {where: methods(args, cluster, both[True]) for where, cluster in on.items()}
    for where, cluster in on.items():  # invalid arguments are reported before the first run
        for method in chosen[where].values():
            dsgd.exchanges(method.build(optax.sgd(1.0)), both[method.whole], cluster=cluster)
    commands.begin(args)
    horizons = {
        where: args.rounds * pilot(args, cluster, both, chosen[where][WAITING])
        for where, cluster in on.items()
    }
    tuned = tuning.compare(
        args,
        "stragglers",
        [Case(where, name) for where in on for name in chosen[where]],
        lambda case: train(
            args, on[case.where], both, case, chosen[case.where][case.method], horizons[case.where]
        ),
    )
    shown = {
        name: tabulate(args, where, chosen[where], tuned)
        for where, name in zip(on, ("delays", "server"), strict=False)
    }
    commands.finish(args, {"figure": draw(args, tuned)}, shown)


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


def problem(args: Args, whole: bool) -> dsgd.Problem:
    """Returns the problem on the same data, with batches of all samples of a gradient, or of a
    micro-batch.
    """
    return tuning.logistic_regression(args, args.workers, "iid", args.micro_batches if whole else 1)


def methods(args: Args, cluster: clusters.Cluster, on: dsgd.Problem) -> dict[str, Method]:
    """Returns the methods by name."""
    N, M, H = args.workers, args.micro_batches, args.period
    bits = 32 * tuning.elements(on)
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

    def dropping(optimizer):
        return algorithms.drop_compute(algorithms.minibatch_sgd(optimizer), step, M)

    def dropping_locally(optimizer):
        return algorithms.drop_compute(
            algorithms.local_sgd(optimizer, H), steps, M, period=H, correction="local"
        )

    return {
        WAITING: Method(algorithms.minibatch_sgd),
        "backup workers": Method(
            lambda optimizer: algorithms.backup_workers_sgd(optimizer, args.backups),
            wasted=args.backups / N,
        ),
        "DropCompute": Method(dropping, whole=False, wasted=None),
        "local SGD": Method(lambda optimizer: algorithms.local_sgd(optimizer, H)),
        "local, DropCompute": Method(dropping_locally, whole=False, wasted=None),
        "asynchronous": Method(algorithms.asynchronous_sgd, updates=N),
        "bounded staleness": Method(
            lambda optimizer: algorithms.asynchronous_sgd(optimizer, bound=args.bound), updates=N
        ),
    }


def pilot(
    args: Args, cluster: clusters.Cluster, both: dict[bool, dsgd.Problem], method: Method
) -> float:
    """Returns the mean seconds of a round in a short run with step size 0."""
    rounds = PILOT * method.updates
    run: dict[str, Any] = {
        "steps": rounds,
        "record_every": rounds,
        "key": jax.random.key(args.seed),
        "cluster": cluster,
    }
    history = resuming.run(
        method.build(optax.sgd(0.0)),
        both[method.whole],
        mesh=tuning.devices_for(args.workers),
        **run,
    ).history
    return float(history["clock"][-1]) / rounds


def train(
    args: Args,
    cluster: clusters.Cluster,
    both: dict[bool, dsgd.Problem],
    case: Case,
    method: Method,
    horizon: float,
) -> tuning.Tuned:
    """Trains the method at its best step size, for approximately the given seconds."""
    steps = math.ceil(horizon / pilot(args, cluster, both, method))
    sweep = resuming.sweep(
        lambda learning_rate: method.build(optax.sgd(learning_rate)),
        both[method.whole],
        steps=steps,
        key=jax.random.key(args.seed),
        seeds=args.seeds,
        cluster=cluster,
        record_every=max(1, steps // RECORDS),
        mesh=tuning.devices_for(args.workers),
        learning_rate=args.learning_rates,
    )
    histories = [sweep.at((i,)) for i in range(len(args.learning_rates))]
    if not any(np.isfinite(history["loss"]).all() for history in histories):
        raise ValueError(
            f"{case} diverged at every step size of {args.learning_rates}; expected smaller ones "
            "(--learning-rates)"
        )

    # If no step size reaches the target with all seeds, the one with the smallest last loss.
    def cost(one: tuning.Tuned) -> tuple[float, float]:
        last = np.nan_to_num(one.history["loss"][:, -1], nan=np.inf)
        return reached(one.history, args.target).mean(), last.mean()

    return min(map(tuning.Tuned, args.learning_rates, histories), key=cost)


def reached(history: dict[str, np.ndarray], target: float) -> np.ndarray:
    """Returns the seconds until each seed's loss first reaches the target, by linear interpolation
    between records, `[seeds]`; infinite if it never does.
    """
    return statistics.crossing(history["clock"], history["loss"], target, never=math.inf)


def tabulate(args: Args, where: str, chosen: dict[str, Method], tuned: Outcomes) -> Table:
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
    waiting = reached(tuned[Case(where, WAITING)].history, args.target)
    for name, method in chosen.items():
        learning_rate, history, _ = tuned[Case(where, name)]
        seconds = reached(history, args.target)
        costs = ["-", "-"]
        if np.isfinite(seconds + waiting).all():
            costs = [statistics.within(seconds, 0), statistics.within(waiting / seconds)]
        each = history["clock"][:, -1].mean() / history["step"][-1]
        wasted = method.wasted
        if wasted is None:
            wasted = history["dropped"][:, 1:].mean()
        table.add_row(
            name,
            statistics.step_size(learning_rate, args.learning_rates),
            f"{each:.2f}",
            f"{100 * wasted:.1f}",
            *costs,
        )
    return table


def draw(args: Args, tuned: Outcomes) -> Figure:
    """Draws a panel for each kind of stragglers."""
    kinds = list(dict.fromkeys(case.where for case in tuned))
    sheet, panels = plots.figure(len(kinds), width=6.0, height=4.6)
    for axes, where in zip(panels, kinds, strict=True):
        runs = {case.method: one.history for case, one in tuned.items() if case.where == where}
        lines = {
            name: (history["clock"].mean(axis=0), history["loss"]) for name, history in runs.items()
        }
        figures.losses(axes, lines, args.target, xlabel="simulated seconds", title=where)
    panels[0].set_ylabel("loss f(x)")
    figures.legend(sheet, 4, panels[0])
    figures.title(
        sheet,
        f"logistic regression, {args.data} (iid), {args.workers} workers x {args.micro_batches} "
        f"micro-batches; {args.backups} backup workers; averaging every {args.period}; staleness "
        f"up to {args.bound}; {statistics.errors('bands', args.seeds)}; grey: target",
    )
    return sheet


if __name__ == "__main__":
    commands.run(main, Args)
