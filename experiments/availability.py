"""The cost of partial participation and of message loss: loss against rounds, and seconds to a
target, as the share of participating workers, or of delivered messages, falls from 1 to 0.3.

    python -m experiments.availability --shares 1.0 0.5 0.1

The participating workers are drawn in every round, without replacement; for local SGD and SCAFFOLD
they are drawn once per averaging period, as clients are sampled in federated learning. Messages are
lost independently: in gossip those of single links, in averages over all workers a worker's
contribution. For each method and share, the step size is the one of the grid with the smallest loss
over the second half of the run. Workers' data differ by label.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import optax
from matplotlib.figure import Figure
from rich.table import Table

import algorithms
import dsgd
import topologies
from dsgd import clusters, plots
from experiments.shared import commands, figures, statistics, tables, tuning

WHAT = {"present": "participating workers", "delivered": "delivered messages"}
SLACK = 1.5  # target: this factor times the highest final loss of any method at the largest share


@dataclass(frozen=True)
class Args(commands.Data, commands.Switch, commands.Common):
    """Compares methods under partial participation and message loss."""

    shares: tuple[commands.Share, ...] = (1.0, 0.9, 0.7, 0.5, 0.3)
    """Shares of workers that participate, and of messages that are delivered."""
    workers: commands.Count = 16
    """Number of workers."""
    partition: str = "by-label"
    """Which worker gets which samples: iid or by-label."""
    period: commands.Count = 4
    """Number of rounds of an averaging period of local SGD and SCAFFOLD."""
    learning_rates: tuple[commands.Positive, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)
    """Candidate step sizes."""
    steps: commands.Count = 600
    """Number of rounds."""
    seeds: commands.Count = 3
    """Independent runs."""
    compute: commands.SampleSeconds = 1e-4
    """Computation time of one sample, seconds."""
    delay: commands.NotNegative = 1e-3
    """Mean of an exponentially distributed random delay of each worker's batch, seconds."""
    out: Path = Path("results/availability")
    """Folder for config.json, history.csv and figure.png."""


class Case(NamedTuple):
    """A method with this share of participating workers, or of delivered messages."""

    method: str
    what: str
    share: float

    def __str__(self) -> str:
        return f"{self.method}, {self.what} {self.share:g}"


Outcomes = dict[Case, tuning.Tuned]


def main(args: Args) -> None:
    problem = tuning.logistic_regression(args, args.workers, args.partition)
    methods = build(args)
    cases = [
        Case(name, what, share)
        for what in WHAT
        for share in sorted(args.shares, reverse=True)
        for name in methods
    ]
    by_case = {case: make_cluster(args, case) for case in cases}
    by_name = {cluster.name: cluster for cluster in by_case.values()}

    @functools.cache  # at a share of 1 both kinds of cases are the same
    def tune(method: str, cluster: str) -> tuning.Tuned | None:
        found = tuning.tune(args, methods[method], problem, cluster=by_name[cluster])
        if found:
            found.history.pop("present", None)  # gives all cases the same columns
        return found

    commands.begin(args)
    found = tuning.compare(
        args, "availability", cases, lambda case: tune(case.method, by_case[case].name)
    )
    commands.finish(
        args,
        {"figure": draw(args, found)},
        {"losses": losses(args, found), "seconds": seconds(args, found)},
    )


def build(args: Args) -> dict[str, Callable[[Any], dsgd.Algorithm]]:
    """Returns the methods by name, each a function of the step size."""
    ring, peers = topologies.ring(args.workers), topologies.one_peer_exponential(args.workers)
    return {
        "minibatch_sgd": lambda learning_rate: algorithms.minibatch_sgd(optax.sgd(learning_rate)),
        "local_sgd": lambda learning_rate: algorithms.local_sgd(
            optax.sgd(learning_rate), args.period
        ),
        "scaffold": lambda learning_rate: algorithms.scaffold(
            optax.sgd(learning_rate), args.period
        ),
        "decentralized_sgd": lambda learning_rate: algorithms.decentralized_sgd(
            optax.sgd(learning_rate), ring
        ),
        "gradient_tracking": lambda learning_rate: algorithms.gradient_tracking(
            optax.sgd(learning_rate), ring
        ),
        "stochastic_gradient_push": lambda learning_rate: algorithms.stochastic_gradient_push(
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
        some["participation_period"] = (
            args.period if case.method in ("local_sgd", "scaffold") else 1
        )
    elif case.share < 1:
        some["delivered"] = clusters.bernoulli(case.share, 1.0)
    return tuning.equal_workers(
        args.compute * args.batch_size, args.bandwidth, args.latency, args.delay, **some
    )


def target(found: Outcomes) -> float:
    """Returns a loss that every method reaches well before its end at the largest share."""
    most = max(case.share for case in found)
    ends = (dsgd.tail_mean(o.history["loss"]) for case, o in found.items() if case.share == most)
    return SLACK * max(float(end.mean()) for end in ends)


def losses(args: Args, found: Outcomes) -> Table:
    """Returns the final loss of each case."""

    def cell(one: tuning.Tuned) -> str:
        edge = statistics.edge(one.learning_rate, args.learning_rates)
        return f"{edge}{dsgd.tail_mean(one.history['loss']).mean():.3g}"

    what = f"{args.data}, {args.partition}, {args.workers} workers, {statistics.runs(args.seeds)}"
    title = f"{what}:\nloss over the last tenth of {args.steps:,} rounds"
    return tabulate(found, cell, title, "*: step size at an edge of the grid. -: diverged.")


def seconds(args: Args, found: Outcomes) -> Table:
    """Returns the seconds of each case to the target."""
    goal = target(found)
    return tabulate(
        found,
        lambda one: statistics.cost_to(one.history, goal)[-1],
        f"seconds to loss {goal:.3g}",
        f"-: not reached. Target: {SLACK:g} times the highest\nfinal loss of any method in the "
        "first row.",
    )


def tabulate(
    found: Outcomes, cell: Callable[[tuning.Tuned], str], title: str, caption: str
) -> Table:
    """Tabulates one row per share, with one column per method."""
    methods = list(dict.fromkeys(case.method for case in found))
    table = tables.table(
        title, ("share of", *(name.replace("-", "\n") for name in methods)), caption
    )
    for what, words in WHAT.items():
        table.add_section()
        table.add_row(words)
        for share in sorted({case.share for case in found}, reverse=True):
            row = (found.get(Case(name, what, share)) for name in methods)
            table.add_row(f"{share:.0%}", *("-" if one is None else cell(one) for one in row))
    return table


def draw(args: Args, found: Outcomes) -> Figure:
    """Draws the loss against rounds: a panel for each kind of absence and each method, with a line
    for each share.
    """
    methods = list(dict.fromkeys(case.method for case in found))
    shares = sorted({case.share for case in found}, reverse=True)
    columns = min(3, len(methods))
    rows = math.ceil(len(methods) / columns)
    sheet = Figure(figsize=(figures.WIDTH, 2.3 * len(WHAT) * rows + 1), layout="constrained")
    parts = sheet.subfigures(len(WHAT), 1, squeeze=False)[:, 0]
    for part, (what, label) in zip(parts, WHAT.items(), strict=True):
        panels = plots.panels(part, columns, rows)
        for name, axes in zip(methods, panels, strict=False):
            cases = (Case(name, what, share) for share in shares)
            histories = {
                f"{case.share:.0%}": found[case].history for case in cases if case in found
            }
            lines = {
                share: (history["step"].astype(float), history["loss"])
                for share, history in histories.items()
            }
            figures.losses(axes, lines, title=name)
        for axes in panels[len(methods) :]:
            axes.set_axis_off()
        for axes in panels[max(0, len(methods) - columns) : len(methods)]:
            axes.set_xlabel("rounds")
        for axes in panels[::columns]:
            axes.set_ylabel("loss f(mean x)")
        figures.legend(part, len(shares), panels[0], title=f"share of {label}")
    what = (
        f"{args.data}, {args.partition}, {args.workers} workers, each share at its best step size"
    )
    figures.title(sheet, f"{what}; {statistics.errors('bands', args.seeds)}")
    return sheet


if __name__ == "__main__":
    commands.run(main, Args)
