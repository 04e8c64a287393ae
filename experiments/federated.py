"""Federated methods on clients of different sizes, with a few sampled clients in each round: test
accuracy against communication rounds and bits, each method at its tuned step sizes.

    python -m experiments.federated --alpha 0.1 --sampled 5

A multilayer perceptron is trained on clients with data from a Dirichlet partition. The
objective weights clients by their numbers of samples. In the group "epochs" each sampled client
passes a number of times through its own samples, so that large clients make more local steps. In
the group "equal" all sampled clients make the mean of these numbers of steps, as SCAFFOLD, Mime and
Scaffnew assume. Scaffnew needs all clients in each round; FedAvg with all clients is its reference.
For each method the step size, and a second parameter if it has one, are those of the grid with the
smallest loss over the second half of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import optax
from matplotlib.axes import Axes

import algorithms
import dsgd
from dsgd import clusters, network, plots, problems, work
from experiments.shared import commands, figures, statistics, studies, tables
from experiments.shared.studies import Case, Tuned

EPOCHS, EQUAL, ALL = "epochs", "equal", "all clients"
WINDOW = 5  # rounds over which figures average the accuracy
COSTS = {"rounds": "communication rounds", "megabits": "Mbit sent and received"}
SYMBOLS = {"penalty": "μ", "outer_step": "η", "momentum": "β"}


@dataclass(frozen=True)
class Args(commands.Data, commands.Common, commands.Tasks):
    """Compares federated methods on sampled clients of different sizes."""

    batch_size: commands.Count = 10
    """Samples of a local step; a client with fewer samples uses all of them."""
    clients: commands.Count = 100
    """Number of clients."""
    sampled: commands.Count = 10
    """Number of clients that participate in a communication round."""
    alpha: commands.Positive = 0.3
    """Concentration of the Dirichlet partition; smaller values are more heterogeneous."""
    epochs: commands.Count = 2
    """Passes of a client through its samples in a communication round."""
    rounds: commands.Count = 60
    """Number of communication rounds."""
    learning_rates: commands.Positives = (0.2, 0.5, 1.0, 2.0)
    """Candidate step sizes of the clients."""
    seeds: commands.Count = 2
    """Independent runs of each method."""
    target: commands.Share = 0.9
    """Target of the test accuracy, as a share."""
    out: Path = Path("results/federated")
    """Folder for config.json, history.csv, figure.png and partition.png."""


class Clients(NamedTuple):
    """The clients' problem and their local steps.

    Args:
        problem: the problem, weighted by numbers of samples.
        steps: number of local steps of each client in its epochs, `[N]`.
        equal: mean of `steps` over the clients, rounded up.
    """

    problem: dsgd.Problem
    steps: np.ndarray
    equal: int


def main(args: Args) -> None:
    clients = make_clients(args)
    cases = make_cases(args, clients)
    found = studies.run(args, "methods", {name: case for (_, name), case in cases.items()})
    goal = f"{args.target:.0%}"
    setting = (
        f"{args.data}, Dirichlet {args.alpha:g}, {args.sampled} of {args.clients} clients in each "
        "round"
    )
    table = tables.table(
        f"{setting},\n{args.rounds} rounds of communication, {statistics.runs(args.seeds)}",
        (
            "method",
            "parameters",
            f"rounds\nto {goal}",
            f"Mbit\nto {goal}",
            "loss",
            "accuracy",
            "lowest\ntenth",
        ),
        "Step size of the clients (*: at an edge of the grid), other parameter.\n"
        "Mbit: sent and received by all clients. -: not reached. Loss, accuracy\n"
        "in %: means over the last tenth of the rounds. Lowest tenth: mean accuracy\n"
        "of the clients with the lowest accuracy on their own samples"
        f"{'; ±: standard error' * (args.seeds > 1)}.",
        left=2,
    )
    groups = {
        EPOCHS: f"{EPOCHS}: {clients.steps.min()}-{clients.steps.max()} steps",
        EQUAL: f"{EQUAL}: {clients.equal} steps",
        ALL: ALL,
    }
    by_group = {
        group: {name: found.get(name) for each, name in cases if each == group} for group in groups
    }
    for group, heading in groups.items():
        table.add_section()
        # The whole heading would make the table wider than 80 columns.
        table.add_row(heading.removeprefix(f"{group}: "))
        studies.fill(table, by_group[group], partial(cells, args.target))
    panels = [
        partial(draw, args.target, cost, groups[group], outcomes)
        for cost in COSTS
        for group, outcomes in by_group.items()
    ]
    bands = statistics.errors("bands", args.seeds)
    sheet = figures.sheet(
        panels,
        len(groups),
        f"{setting}; {bands}\nmeans over {WINDOW} rounds; grey line: target {goal}",
        legend_columns=None,
    )
    sheets = {"figure": sheet, "partition": plots.partition(clients.problem)}
    commands.finish(args, sheets, {"costs": table})


def make_clients(args: Args) -> Clients:
    """Returns the problem and the numbers of local steps."""
    problem = problems.neural_network(
        "mlp",
        args.data,
        args.clients,
        "dirichlet",
        alpha=args.alpha,
        weights="samples",
        batch_size=args.batch_size,
        replacement="epoch",
        seed=args.seed,
        data_dir=args.data_dir,
    )
    sizes = problems.class_counts(problem).samples
    steps = np.ceil(args.epochs * sizes / np.minimum(sizes, args.batch_size)).astype(int)
    problem = problems.with_client_metrics(problem)
    return Clients(problem, steps, int(np.ceil(steps.mean())))


def make_cases(args: Args, clients: Clients) -> dict[tuple[str, str], Case]:
    """Returns the cases by group and method. Their histories have a record for each communication
    round.
    """
    most, equal = int(clients.steps.max()), clients.equal
    present = clusters.sampled(args.sampled, of=args.clients)
    cases: dict[tuple[str, str], Case] = {}

    def add(name, build, period=equal, group=EQUAL, **grid):
        """Adds a method with this number of rounds in a communication round."""

        def convert(history):
            """Replaces the columns of single clients by communication rounds and megabits."""
            kept = {column: values for column, values in history.items() if column != "samples"}
            rounds = np.broadcast_to(history["step"] / period, history["loss"].shape)
            megabits = history["bits"] * args.clients / 1e6
            return {**kept, "rounds": rounds, "megabits": megabits}

        sampled = clusters.Cluster(
            clusters.constant(0.0), present=present, participation_period=period
        )
        cases[group, name] = Case(
            build,
            clients.problem,
            None if group == ALL else sampled,
            steps=period * args.rounds,
            records=args.rounds,
            grid=grid,
            convert=convert,
        )

    def count_steps(state, round):
        """Each client stops after its own number of steps."""
        counted = round.step % most < clients.steps
        return work.micro_batches(counted[:, None], average="workers")

    def add_epochs(name, factory, group=EPOCHS, **grid):
        def build(learning_rate, **second):
            method = factory(optax.sgd(learning_rate), most, *second.values())
            return algorithms.with_local_work(method, count_steps)

        add(name, build, most, group, **grid)

    def mime(learning_rate, momentum):
        # In Mime's paper the gradient has the weight 1 - momentum.
        optimizer = optax.sgd(learning_rate * (1 - momentum), momentum=momentum)
        return algorithms.mime(optimizer, equal)

    sgd, star = studies.with_sgd, network.star
    add_epochs("fed_avg", algorithms.fed_avg)
    add_epochs("fed_prox", algorithms.fed_prox, penalty=(0.01, 0.1, 1.0))
    add_epochs("fed_nova", algorithms.fed_nova)
    add_epochs("fed_dyn", algorithms.fed_dyn, penalty=(0.03, 0.1, 0.3))
    add_epochs("fed_adam", algorithms.fed_adam, outer_step=(0.01, 0.03, 0.1))
    add("fed_avg_equal", sgd(algorithms.fed_avg, equal))
    add("scaffold", sgd(algorithms.scaffold, equal, via=star))
    add("mime", mime, momentum=(0.0, 0.9))
    add_epochs("fed_avg_all", algorithms.fed_avg, ALL)
    add("scaffnew_all", sgd(algorithms.scaffnew, 1 / equal, via=star), group=ALL)
    return cases


def cells(target: float, one: Tuned) -> list[str]:
    """Returns the cells of a method: its parameters, costs to the target, loss and accuracies."""
    history = one.history
    at = statistics.first_reaching(1 - history["test_accuracy"], 1 - target)
    others = [f"{SYMBOLS[name]} {x:g}" for name, x in one.values.items() if name in SYMBOLS]
    return [
        ", ".join([one.cell(), *others]),
        *("-" if at is None else f"{history[cost][:, at].mean():,.3g}" for cost in COSTS),
        f"{one.loss:.3f}",
        statistics.format_with_error(100 * dsgd.history.tail_mean(history["test_accuracy"])),
        f"{100 * dsgd.history.tail_mean(history['client_accuracy_lowest_decile']).mean():.1f}",
    ]


def draw(
    target: float, cost: str, heading: str, found: dict[str, Tuned | None], axes: Axes
) -> None:
    """Draws the accuracy of a group against communication rounds or bits; the first line is
    FedAvg.
    """
    lines = {
        name: (one.history[cost].mean(axis=0), smooth(100 * one.history["test_accuracy"]))
        for name, one in found.items()
        if one
    }
    by_rounds = cost == "rounds"
    figures.curves(
        lines,
        100 * target,
        legend="lower right" if by_rounds and lines else "",
        xlabel=COSTS[cost],
        ylabel="test accuracy in %",
        title=heading if by_rounds else "",
        log="" if by_rounds else "x",
        ylim=(max(0, 100 * target - 20), 100),
    )(axes)


def smooth(values: np.ndarray) -> np.ndarray:
    """Returns the mean of each record and those before it in a window, `[seeds, records]`."""
    sums = np.cumsum(values, axis=1)
    before = np.pad(sums, ((0, 0), (WINDOW, 0)))[:, : values.shape[1]]
    return (sums - before) / np.minimum(np.arange(values.shape[1]) + 1, WINDOW)


if __name__ == "__main__":
    commands.run(main, Args)
