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

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optax
from matplotlib.figure import Figure
from rich.table import Table

import algorithms
import dsgd
from dsgd import clusters, network, plots, problems, work
from experiments.shared import commands, figures, statistics, tables, tuning

EPOCHS, EQUAL, ALL = "epochs", "equal", "all clients"
WINDOW = 5  # rounds over which figures average the accuracy
COSTS = {"rounds": "communication rounds", "megabits": "Mbit sent and received"}
SYMBOLS = {"proximal": "μ", "regularization": "α", "step": "η", "momentum": "β"}


@dataclass(frozen=True)
class Args(commands.Data, commands.Common):
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
    learning_rates: tuple[commands.Positive, ...] = (0.2, 0.5, 1.0, 2.0)
    """Candidate step sizes of the clients."""
    seeds: commands.Count = 2
    """Independent runs of each method."""
    target: commands.Share = 0.9
    """Target of the test accuracy, as a share."""
    out: Path = Path("results/federated")
    """Folder for config.json, history.csv and figure.png."""


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


class Case(NamedTuple):
    """A method.

    Args:
        build: (learning_rate, and the names of the grid) -> the method.
        period: rounds of the run in a communication round.
        group: `EPOCHS`; `EQUAL`; or `ALL`, if all clients participate in each communication round.
        grid: name and candidates of the second parameter.
    """

    build: Callable[..., dsgd.Algorithm]
    period: int
    group: str
    grid: Mapping[str, Any] = {}


def main(args: Args) -> None:
    present = clusters.sampled(args.sampled, of=args.clients)
    clients = make_clients(args)
    cases = build(clients)
    commands.begin(args)
    found = tuning.compare(
        args, "methods", cases, lambda name: tune(args, clients.problem, cases[name], present)
    )
    commands.finish(
        args,
        {"figure": draw(args, clients, cases, found)},
        {"costs": tabulate(args, clients, cases, found)},
    )


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
    labels = problems.load(args.data, args.data_dir).train_targets
    parts = problems.split(labels, args.clients, "dirichlet", alpha=args.alpha, seed=args.seed)
    sizes = np.array([len(part) for part in parts])
    steps = np.ceil(args.epochs * sizes / np.minimum(sizes, args.batch_size)).astype(int)
    return Clients(problem, steps, int(np.ceil(steps.mean())))


def build(clients: Clients) -> dict[str, Case]:
    """Returns the methods by name."""
    most, equal = int(clients.steps.max()), clients.equal

    def computing(state, round):
        """Each client stops after its own number of steps."""
        counted = round.step % most < clients.steps
        return work.micro_batches(counted[:, None], average="workers")

    def epochs(factory, group=EPOCHS, **grid):
        def made(learning_rate, **second):
            method = factory(optax.sgd(learning_rate), most, *second.values())
            return algorithms.with_local_work(method, computing)

        return Case(made, most, group, grid)

    def equal_steps(factory, argument: float = equal, group=EQUAL, **options):
        def made(learning_rate):
            return factory(optax.sgd(learning_rate), argument, **options)

        return Case(made, equal, group)

    def mime(learning_rate, momentum):
        # In Mime's paper the gradient has the weight 1 - momentum.
        optimizer = optax.sgd(learning_rate * (1 - momentum), momentum=momentum)
        return algorithms.mime(optimizer, equal)

    return {
        "fed_avg": epochs(algorithms.fed_avg),
        "fed_prox": epochs(algorithms.fed_prox, proximal=(0.01, 0.1, 1.0)),
        "fed_nova": epochs(algorithms.fed_nova),
        "fed_dyn": epochs(algorithms.fed_dyn, regularization=(0.03, 0.1, 0.3)),
        "fed_adam": epochs(algorithms.fed_adam, step=(0.01, 0.03, 0.1)),
        "fed_avg_equal": equal_steps(algorithms.fed_avg),
        "scaffold": equal_steps(algorithms.scaffold, via=network.star),
        "mime": Case(mime, equal, EQUAL, {"momentum": (0.0, 0.9)}),
        "fed_avg_all": epochs(algorithms.fed_avg, group=ALL),
        "scaffnew-all": equal_steps(algorithms.scaffnew, 1 / equal, group=ALL, via=network.star),
    }


def tune(
    args: Args, problem: dsgd.Problem, case: Case, present: clusters.Quantity
) -> tuning.Tuned | None:
    """Returns the history at the best parameters, with one record for each communication round;
    None if the method diverged at all of them.
    """
    sampled = clusters.Cluster(
        clusters.constant(0.0), present=present, participation_period=case.period
    )
    found = tuning.tune(
        args,
        case.build,
        problem,
        steps=case.period * args.rounds,
        cluster=None if case.group == ALL else sampled,
        records=args.rounds,
        **case.grid,
    )
    if found:
        history = found.history
        history.pop("samples", None)  # a column for each client
        history["rounds"] = np.broadcast_to(history["step"] / case.period, history["loss"].shape)
        history["megabits"] = history["bits"] * args.clients / 1e6
    return found


def tabulate(
    args: Args, clients: Clients, cases: dict[str, Case], found: dict[str, tuning.Tuned]
) -> Table:
    """Tabulates parameters, costs to the target and the final accuracy, one row per method."""
    goal = f"{args.target:.0%}"
    table = tables.table(
        f"{args.data}, Dirichlet {args.alpha:g}, {args.sampled} of {args.clients} clients in each "
        f"round,\n{args.rounds} rounds of communication, {statistics.runs(args.seeds)}",
        (
            "method",
            "parameters",
            f"rounds\nto {goal}",
            f"Mbit\nto {goal}",
            "loss",
            "accuracy",
        ),
        "Step size of the clients (*: at an edge of the grid), other parameter.\n"
        "Mbit: sent and received by all clients. -: not reached. Loss, accuracy\n"
        "in %: means over the last tenth of the rounds"
        f"{'; ±: standard error' * (args.seeds > 1)}.",
        left=2,
    )
    for group, heading in describe(clients).items():
        table.add_section()
        table.add_row(heading)
        for name, outcome in found.items():
            if cases[name].group == group:
                table.add_row(name, *cells(args, outcome))
    return table


def describe(clients: Clients) -> dict[str, str]:
    """Returns the headings of the groups, with the numbers of local steps."""
    return {
        EPOCHS: f"{EPOCHS}: {clients.steps.min()}-{clients.steps.max()} steps",
        EQUAL: f"{EQUAL}: {clients.equal} steps",
        ALL: ALL,
    }


def cells(args: Args, outcome: tuning.Tuned) -> list[str]:
    """Returns the cells of a method: its parameters, costs to the target, loss and accuracy."""
    rate, history, second = outcome
    at = statistics.first_reaching(1 - history["test_accuracy"], 1 - args.target)
    others = [f"{SYMBOLS[name]} {value:g}" for name, value in second.items()]
    return [
        ", ".join([statistics.step_size(rate, args.learning_rates), *others]),
        *("-" if at is None else f"{history[cost][:, at].mean():,.3g}" for cost in COSTS),
        f"{dsgd.history.tail_mean(history['loss']).mean():.3f}",
        statistics.with_error(100 * dsgd.history.tail_mean(history["test_accuracy"])),
    ]


def draw(
    args: Args, clients: Clients, cases: dict[str, Case], found: dict[str, tuning.Tuned]
) -> Figure:
    """Draws the accuracy against communication rounds and bits: a column of panels for each group,
    in which the first line is FedAvg.
    """
    headings = describe(clients)
    sheet, panels = plots.figure(
        len(headings), len(COSTS), width=figures.WIDTH / len(headings), height=3.2
    )
    for row, (cost, label) in zip(panels.reshape(len(COSTS), -1), COSTS.items(), strict=True):
        values = np.array([history[cost].mean(axis=0) for _, history, _ in found.values()])
        limits = values[values > 0].min(), values.max()
        for axes, (group, heading) in zip(row, headings.items(), strict=True):
            lines = {
                name: (history[cost].mean(axis=0), smoothed(100 * history["test_accuracy"]))
                for name, (_, history, _) in found.items()
                if cases[name].group == group
            }
            axes.set(xlabel=label, title=heading if cost == "rounds" else "")
            axes.set(xscale="linear" if cost == "rounds" else "log", xlim=limits)
            plots.draw_lines(axes, lines)
            axes.axhline(100 * args.target, color="0.4", linewidth=0.8)
            if lines and cost == "rounds":
                axes.legend(frameon=False, loc="lower right", fontsize=9)
        row[0].set(ylabel="test accuracy in %", ylim=(max(0, 100 * args.target - 20), 100))
    figures.title(
        sheet,
        f"{args.data}, Dirichlet {args.alpha:g}, {args.sampled} of {args.clients} clients in each "
        f"round; {statistics.errors('bands', args.seeds)}\nmeans over {WINDOW} rounds; grey line: "
        f"target {args.target:.0%}",
    )
    return sheet


def smoothed(values: np.ndarray) -> np.ndarray:
    """Returns the mean of each record and those before it in a window, `[seeds, records]`."""
    sums = np.cumsum(values, axis=1)
    before = np.pad(sums, ((0, 0), (WINDOW, 0)))[:, : values.shape[1]]
    return (sums - before) / np.minimum(np.arange(values.shape[1]) + 1, WINDOW)


if __name__ == "__main__":
    commands.run(main, Args)
