"""The cost of partial participation and of message loss: loss against rounds and seconds as the
share of participating workers, or of delivered messages, falls from 1 to 0.3.

    python -m experiments.availability --shares 1.0 0.5 0.1

The participating workers are drawn in every round, without replacement; for local SGD and SCAFFOLD
they are drawn once per averaging period, as clients are sampled in federated learning. Messages are
lost independently: in gossip those of single links, in averages over all workers a worker's
contribution. For each method and share, the step size is the one of the grid with the smallest loss
over the second half of the run. Workers' data differ by label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optax
from matplotlib.figure import Figure
from rich.table import Table

import algorithms
import dsgd
import topologies
from dsgd import clusters, plots, records
from experiments.shared import commands, figures, statistics, tables, tuning

WHAT = {"present": "workers present", "delivered": "messages delivered"}
SLACK = 1.5  # the target: the highest loss that a method ends at where most is there, times this
COSTS = ("rounds", "simulated seconds")


@dataclass(frozen=True)
class Args:
    """Compares methods with partial participation or message loss."""

    shares: tuple[float, ...] = (1.0, 0.9, 0.7, 0.5, 0.3)
    """Shares of workers that participate, and of messages that are delivered."""
    workers: commands.Count = 16
    """Number of workers."""
    data: str = "digits"
    """Data for logistic regression: digits, breast-cancer, or images or a LIBSVM file in --data-dir
    (mnist, a9a; see `problems.load`).
    """
    data_dir: commands.DataDir = None
    partition: str = "by-label"
    """Partition of the samples: iid or by-label."""
    batch_size: commands.Count = 16
    """Number of samples that each worker draws in a round."""
    period: commands.Count = 4
    """Number of rounds of an averaging period of local SGD and SCAFFOLD."""
    learning_rates: tuple[commands.Positive, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)
    """Candidate step sizes."""
    steps: commands.Count = 600
    """Number of rounds."""
    seeds: commands.Count = 3
    """Number of independent runs."""
    seed: commands.Seed = 0
    """Seed of all random numbers."""
    latency: commands.NotNegative = 1e-4
    """Latency of a message, seconds."""
    bandwidth: commands.Positive = 1e8
    """Bandwidth of a worker's port, bits per second."""
    cluster: commands.ClusterFile = None
    compute: commands.SampleSeconds = 1e-4
    """Computation time of one sample, seconds."""
    delay: commands.NotNegative = 1e-3
    """Mean of an exponentially distributed random delay of each worker's batch, seconds."""
    out: Path = field(default=Path("results/availability"))
    """Folder for config.json, history.csv and figure.png."""
    progress: bool = True
    """Show progress bars."""
    cache: commands.Cache = None


class Case(NamedTuple):
    """A method with this share of participating workers, or of delivered messages."""

    method: str
    what: str
    share: float

    @property
    def name(self) -> str:
        """Name in the file of histories."""
        return f"{self.method}, {self.what} {self.share:g}"


def main(args: Args) -> None:
    for share in args.shares:
        if not 0 < share <= 1:
            raise ValueError(f"--shares {share:g}: need parts of all, above 0 and at most 1")
    problem = tuning.logistic_regression(args, args.workers, args.partition)
    methods = build(args)
    cases = [
        Case(name, what, share)
        for what in WHAT
        for share in sorted(args.shares, reverse=True)
        for name in methods
    ]
    by_case = {case: make_cluster(args, case) for case in cases}
    commands.begin(args)
    found: dict[str, dict[str, np.ndarray]] = {}
    with commands.kept(records.write_histories, args.out / "history.csv", found):
        for case, history in train(args, problem, methods, by_case):
            found[case.name] = history
    histories = {case: found[case.name] for case in cases if case.name in found}
    if not histories:
        raise ValueError(
            f"every method diverged at every step size of {args.learning_rates}; need smaller ones"
        )
    commands.finish(
        args,
        {"figure": draw(args, histories)},
        {"losses": losses(args, histories), "seconds": seconds(args, histories)},
    )


def build(args: Args) -> dict[str, Callable[[Any], dsgd.Algorithm]]:
    """Returns the methods by name, each a function of the step size."""
    ring, peers = topologies.ring(args.workers), topologies.one_peer_exponential(args.workers)
    return {
        "mb-sgd": lambda learning_rate: algorithms.minibatch_sgd(optax.sgd(learning_rate)),
        "local-sgd": lambda learning_rate: algorithms.local_sgd(
            optax.sgd(learning_rate), args.period
        ),
        "scaffold": lambda learning_rate: algorithms.scaffold(
            optax.sgd(learning_rate), args.period
        ),
        "dsgd": lambda learning_rate: algorithms.decentralized_sgd(optax.sgd(learning_rate), ring),
        "gradient-tracking": lambda learning_rate: algorithms.gradient_tracking(
            optax.sgd(learning_rate), ring
        ),
        "sgp": lambda learning_rate: algorithms.stochastic_gradient_push(
            optax.sgd(learning_rate), peers
        ),
    }


def make_cluster(args: Args, case: Case) -> clusters.Cluster:
    """Returns equal workers with random delays, with this share of participating workers or of
    delivered messages; with a share of 1 nothing is drawn.
    """
    some: dict[str, Any] = {}
    if case.share < 1 and case.what == "present":
        some["present"] = clusters.sampled(
            max(1, round(case.share * args.workers)), of=args.workers
        )
        some["present_for"] = args.period if case.method in ("local-sgd", "scaffold") else 1
    elif case.share < 1:
        some["delivered"] = clusters.bernoulli(case.share, 1.0)
    return tuning.equal_workers(
        args.compute * args.batch_size, args.bandwidth, args.latency, args.delay, **some
    )


def train(
    args: Args,
    problem: dsgd.Problem,
    methods: dict[str, Callable[[Any], dsgd.Algorithm]],
    by_case: dict[Case, clusters.Cluster],
) -> Iterator[tuple[Case, dict[str, np.ndarray]]]:
    """Returns the history of each case at its best step size, without the cases that diverged at
    every step size.
    """
    done: dict[tuple[str, str], tuning.Tuned | None] = {}  # where all are there, all arrives
    for case in tables.bar(list(by_case), "availability", args.progress):
        cluster = by_case[case]
        if (case.method, cluster.name) not in done:
            done[case.method, cluster.name] = tuning.tune(
                args, methods[case.method], problem, cluster=cluster
            )
        if tuned := done[case.method, cluster.name]:
            # the same columns for all
            yield (
                case,
                {
                    name: values
                    for name, values in tuned.with_step_size.items()
                    if name != "present"
                },
            )


def target(histories: dict[Case, dict[str, np.ndarray]]) -> float:
    """Returns a loss that every method reaches well before its end at the largest share."""
    most = max(case.share for case in histories)
    return SLACK * max(
        float(dsgd.tail_mean(history["loss"]).mean())
        for case, history in histories.items()
        if case.share == most
    )


def losses(args: Args, histories: dict[Case, dict[str, np.ndarray]]) -> Table:
    """Returns the final loss of each case."""

    def cell(history: dict[str, np.ndarray]) -> str:
        edge = statistics.edge(history["learning_rate"][0, 0], args.learning_rates)
        return f"{edge}{dsgd.tail_mean(history['loss']).mean():.3g}"

    what = f"{args.data}, {args.partition}, {args.workers} workers, {statistics.runs(args.seeds)}"
    title = f"{what}:\nloss over the last tenth of {args.steps:,} rounds"
    return tabulate(
        histories, cell, title, "*: the best step size is at an edge of the grid. -: diverged."
    )


def seconds(args: Args, histories: dict[Case, dict[str, np.ndarray]]) -> Table:
    """Returns the seconds of each case to the target."""
    goal = target(histories)
    caption = (
        f"-: not reached. Target: {SLACK:g} times the highest loss\nthat a method ends at in the "
        "first row."
    )
    return tabulate(
        histories,
        lambda history: statistics.cost_to(history, goal)[-1],
        f"seconds to loss {goal:.3g}",
        caption,
    )


def tabulate(
    histories: dict[Case, dict[str, np.ndarray]],
    cell: Callable[[dict[str, np.ndarray]], str],
    title: str,
    caption: str,
) -> Table:
    """Tabulates one row per share, with one column per method."""
    methods = list(dict.fromkeys(case.method for case in histories))
    table = tables.table(
        title, ("share of", *(name.replace("-", "\n") for name in methods)), caption
    )
    for what, words in WHAT.items():
        table.add_section()
        table.add_row(words)
        for share in sorted({case.share for case in histories}, reverse=True):
            row = (histories.get(Case(name, what, share)) for name in methods)
            table.add_row(
                f"{share:.0%}", *("-" if history is None else cell(history) for history in row)
            )
    return table


def draw(args: Args, histories: dict[Case, dict[str, np.ndarray]]) -> Figure:
    """Draws a column for each method, a row for each kind of absence and cost, and a line for each
    share.
    """
    methods = list(dict.fromkeys(case.method for case in histories))
    shares = sorted({case.share for case in histories}, reverse=True)
    sheet = Figure(figsize=(3 * len(methods), 11), layout="constrained")
    panels = plots.panels(sheet, len(methods), len(WHAT) * len(COSTS)).reshape(
        len(WHAT), len(COSTS), len(methods)
    )
    for (what, words), rows in zip(WHAT.items(), panels, strict=True):
        for label, row in zip(COSTS, rows, strict=True):
            for name, axes in zip(methods, row, strict=True):
                shown = {
                    share: histories[case]
                    for share in shares
                    if (case := Case(name, what, share)) in histories
                }
                lines = {
                    f"{share:.0%}": (statistics.COSTS[label](history), history["loss"])
                    for share, history in shown.items()
                }
                figures.losses(axes, lines, xlabel=label)
            row[0].set_ylabel(f"share of {words}:\nloss f(mean x)")
    for name, axes in zip(methods, panels[0, 0], strict=True):
        axes.set_title(name)
    figures.legend(sheet, panels[0, 0, 0], columns=len(shares))
    what = (
        f"{args.data}, {args.partition}, {args.workers} workers, each share at its best step size"
    )
    figures.title(sheet, f"{what}; {statistics.errors('bands', args.seeds)}")
    return sheet


if __name__ == "__main__":
    commands.run(main, Args)
