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

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.table import Table

import algorithms
import topologies
from dsgd import clusters
from experiments.shared import commands, figures, statistics, studies, tables, tuning
from experiments.shared.studies import Case, Tuned

WHAT = {"present": "participating workers", "delivered": "delivered messages"}
SLACK = 1.5  # target: this factor times the highest final loss of any method at the largest share


@dataclass(frozen=True)
class Args(commands.Data, commands.Workers, commands.Tuning):
    """Compares methods under partial participation and message loss."""

    shares: tuple[commands.Share, ...] = (1.0, 0.9, 0.7, 0.5, 0.3)
    """Shares of workers that participate, and of messages that are delivered."""
    workers: commands.Count = 16
    """Number of workers."""
    partition: str = "by-label"
    """Which worker gets which samples: iid or by-label."""
    period: commands.Count = 4
    """Number of rounds of an averaging period of local SGD and SCAFFOLD."""
    learning_rates: commands.Positives = (0.1, 0.3, 1.0, 3.0, 10.0)
    """Candidate step sizes."""
    steps: commands.Count = 600
    """Number of rounds."""
    delay: commands.NotNegative = 1e-3
    """Mean of an exponentially distributed random delay of each worker's batch, seconds."""
    out: Path = Path("results/availability")
    """Folder for config.json, history.csv and figure.png."""


Outcomes = dict[tuple[str, str], Tuned]  # by method and share, see `label`


def main(args: Args) -> None:
    methods = make_methods(args.workers, args.period)
    shares = sorted(args.shares, reverse=True)
    found = studies.run(args, "availability", make_cases(args, methods, shares))
    most = [one.loss for (_, share), one in found.items() if share.endswith(f" {shares[0]:g}")]
    target = SLACK * max(most)
    what = f"{args.data}, {args.partition}, {args.workers} workers"

    def tabulate(title: str, caption: str, cell: Callable[[Tuned], str]) -> Table:
        """Returns a table with one row per method and one column per share."""
        headings = [f"{share:.0%}" for share in shares]
        table = tables.table(title, ("share of", *headings), caption)
        for kind, words in WHAT.items():
            table.add_section()
            table.add_row(words)
            for name in methods:
                row = (found.get((name, label(kind, share))) for share in shares)
                table.add_row(name, *("-" if one is None else cell(one) for one in row))
        return table

    losses = tabulate(
        f"{what}, {statistics.runs(args.seeds)}:\nloss over the last tenth of {args.steps:,} "
        "rounds",
        "*: step size at an edge of the grid. -: diverged.",
        lambda one: f"{one.edge()}{one.loss:.3g}",
    )
    seconds = tabulate(
        f"seconds to loss {target:.3g}",
        f"-: not reached. Target: {SLACK:g} times the highest\nfinal loss of any method in the "
        "first column.",
        lambda one: statistics.cost_to(one.history, target)[-1],
    )
    sheet = draw(found, list(methods), shares)
    bands = statistics.errors("bands", args.seeds)
    figures.title(sheet, f"{what}, each share at its best step size; {bands}")
    commands.finish(args, {"figure": sheet}, {"losses": losses, "seconds": seconds})


def make_methods(workers: int, period: int) -> dict[str, studies.Build]:
    """Returns the methods by name, each a function of the step size."""
    ring, peers = topologies.ring(workers), topologies.one_peer_exponential(workers)
    return studies.name_methods(
        (algorithms.minibatch_sgd,),
        (algorithms.local_sgd, period),
        (algorithms.scaffold, period),
        (algorithms.decentralized_sgd, ring),
        (algorithms.gradient_tracking, ring),
        (algorithms.stochastic_gradient_push, peers),
    )


def make_cases(
    args: Args, methods: dict[str, studies.Build], shares: Sequence[float]
) -> dict[tuple[str, str], Case]:
    """Returns the cases by method and share: equal workers with random delays, of which a share
    participates, or whose messages are delivered with this probability. With a share of 1 nothing
    is drawn, and both are one case.
    """
    problem = tuning.logistic_regression(args, args.workers, args.partition)
    cases: dict[tuple[str, str], Case] = {}
    for share, (name, build) in itertools.product(shares, methods.items()):
        every = args.period if name in ("local_sgd", "scaffold") else 1
        number = max(1, round(share * args.workers))
        some: dict[str, Any] = {
            "present": {
                "present": clusters.sampled(number, of=args.workers),
                "participation_period": every,
            },
            "delivered": {"delivered": clusters.bernoulli(share, 1.0)},
        }
        whole = Case(build, problem, tuning.make_cluster(args))
        for kind, absence in some.items():
            cases[name, label(kind, share)] = (
                whole
                if share == 1
                else whole._replace(cluster=tuning.make_cluster(args, **absence))
            )
    return cases


def label(kind: str, share: float) -> str:
    """Returns the label of a share of participating workers, or of delivered messages."""
    return f"{kind} {share:g}"


def draw(found: Outcomes, methods: Sequence[str], shares: Sequence[float]) -> Figure:
    """Draws the loss against rounds: a panel for each kind of absence and each method, with a line
    for each share.
    """
    panels = []
    for (kind, words), name in itertools.product(WHAT.items(), methods):
        keys = {f"{share:.0%}": (name, label(kind, share)) for share in shares}
        one = {share: found[key] for share, key in keys.items() if key in found}
        title = f"{name}\n{words}"
        labels: dict[str, Any] = {"xlabel": "rounds", "ylabel": "loss f(mean x)", "title": title}
        panels.append(figures.curves(studies.lines(one, "rounds"), **labels))
    return figures.sheet(panels, min(3, len(methods)), legend_columns=len(shares), height=2.4)


if __name__ == "__main__":
    commands.run(main, Args)
