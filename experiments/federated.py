"""Federated methods on clients of different sizes, of which a few are sampled in each round: test
accuracy against communication rounds and bits, each method at its tuned step sizes.

    python -m experiments.federated --alpha 0.1 --sampled 5

A multilayer perceptron is trained on clients whose data come from a Dirichlet partition. The
objective weights clients by their numbers of samples. In the group "epochs" each sampled client
passes a number of times through its own samples, so that large clients make more local steps. In
the group "equal" all sampled clients make the mean of these numbers of steps, as SCAFFOLD, Mime and
Scaffnew assume. Scaffnew needs all clients in each round; FedAvg with all clients is its reference.
For each method the step size, and a second parameter if it has one, are those of the grid with the
smallest loss over the second half of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import optax
from matplotlib.figure import Figure
from rich.table import Table

import algorithms
import dsgd
from dsgd import clusters, network, plots, problems, work
from experiments.shared import commands, figures, statistics, tables, tuning

EPOCHS, EQUAL = "epochs", "equal"


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
    rounds: commands.Count = 80
    """Number of communication rounds."""
    learning_rates: tuple[commands.Positive, ...] = (0.1, 0.2, 0.5, 1.0)
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
        local: `EPOCHS` or `EQUAL`.
        everybody: whether all clients participate in each communication round.
        grid: name and candidates of the second parameter.
    """

    build: Callable[..., dsgd.Algorithm]
    period: int
    local: str
    everybody: bool = False
    grid: dict[str, tuple[float, ...]] = {}


def main(args: Args) -> None:
    clients = make_clients(args)
    cases = build(clients)
    commands.begin(args)
    found = tuning.compare(
        args, "methods", cases, lambda name: tune(args, clients.problem, cases[name])
    )
    commands.finish(
        args,
        {"figure": draw(args, cases, found)},
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
    parts = problems.split(
        labels, args.clients, "dirichlet", alpha=args.alpha, seed=args.seed
    )
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

    def epochs(factory, everybody=False, **grid):
        def made(learning_rate, **second):
            method = factory(optax.sgd(learning_rate), most, *second.values())
            return algorithms.with_local_work(method, computing)

        return Case(made, most, EPOCHS, everybody, grid)

    def mime(learning_rate, momentum):
        return algorithms.mime(optax.sgd(learning_rate, momentum=momentum), equal)

    return {
        "fed-avg": epochs(algorithms.fed_avg),
        "fed-prox": epochs(algorithms.fed_prox, proximal=(0.01, 0.1, 1.0)),
        "fed-nova": epochs(algorithms.fed_nova),
        "fed-dyn": epochs(algorithms.fed_dyn, regularization=(0.1, 0.3, 1.0)),
        "fed-adam": epochs(algorithms.fed_adam, step=(0.01, 0.03, 0.1)),
        "fed-avg, equal steps": Case(
            lambda learning_rate: algorithms.fed_avg(optax.sgd(learning_rate), equal),
            equal,
            EQUAL,
        ),
        "scaffold": Case(
            lambda learning_rate: algorithms.scaffold(
                optax.sgd(learning_rate), equal, via=network.star
            ),
            equal,
            EQUAL,
        ),
        "mime": Case(mime, 2 * equal - 1, EQUAL, grid={"momentum": (0.0, 0.9)}),
        "fed-avg, all clients": epochs(algorithms.fed_avg, everybody=True),
        "scaffnew, all clients": Case(
            lambda learning_rate: algorithms.scaffnew(
                optax.sgd(learning_rate), 1 / equal, via=network.star
            ),
            equal,
            EQUAL,
            everybody=True,
        ),
    }


def tune(args: Args, problem: dsgd.Problem, case: Case) -> tuning.Tuned | None:
    """Returns the history at the best parameters, with one record for each communication round;
    None if the method diverged at all of them.
    """
    sampled = clusters.Cluster(
        clusters.constant(0.0),
        present=clusters.sampled(args.sampled, of=args.clients),
        participation_period=case.period,
    )
    found = tuning.tune(
        args,
        case.build,
        problem,
        steps=case.period * args.rounds,
        cluster=None if case.everybody else sampled,
        records=args.rounds,
        **case.grid,
    )
    if found:
        history = found.history
        history.pop("samples", None)  # a column for each client
        history["rounds"] = np.broadcast_to(history["step"] / case.period, history["loss"].shape)
        history["megabits"] = history["bits"] * args.clients / 1e6
    return found


COSTS = {"rounds": "communication rounds", "megabits": "megabits sent and received by all clients"}


def tabulate(
    args: Args, clients: Clients, cases: dict[str, Case], found: dict[str, tuning.Tuned]
) -> Table:
    """Tabulates parameters, costs to the target and the final accuracy, one row per method."""
    goal = f"{args.target:.0%}"
    table = tables.table(
        f"{args.data}, Dirichlet {args.alpha:g}, {args.clients} clients, {args.sampled} sampled:\n"
        f"{args.rounds} communication rounds, {statistics.runs(args.seeds)}",
        (
            "method",
            "local steps",
            "step size",
            "second parameter",
            f"rounds\nto {goal}",
            f"Mbit\nto {goal}",
            "loss",
            "test accuracy",
        ),
        "*: step size at an edge of the grid. Mbit: sent and received by all clients. -: not "
        "reached.\nLoss and accuracy: mean over the last tenth of the rounds"
        f"{', ± standard error' * (args.seeds > 1)}.",
        left=4,
    )
    for name, (rate, history, second) in found.items():
        at = statistics.first_reaching(1 - history["test_accuracy"], 1 - args.target)
        costs = ["-"] * len(COSTS)
        if at is not None:
            costs = [f"{history[cost][:, at].mean():,.3g}" for cost in COSTS]
        table.add_row(
            name,
            f"1 to {clients.steps.max()}" if cases[name].local == EPOCHS else f"{clients.equal}",
            statistics.step_size(rate, args.learning_rates),
            ", ".join(f"{label} {value:g}" for label, value in second.items()),
            *costs,
            f"{dsgd.tail_mean(history['loss']).mean():.3f}",
            f"{statistics.with_error(100 * dsgd.tail_mean(history['test_accuracy']))} %",
        )
    return table


def draw(args: Args, cases: dict[str, Case], found: dict[str, tuning.Tuned]) -> Figure:
    """Draws the accuracy against communication rounds and bits."""
    sheet, panels = plots.figure(2, width=figures.WIDTH / 2, height=5.0)
    for axes, (cost, label) in zip(panels, COSTS.items(), strict=True):
        axes.set(xlabel=label, xscale="log" if cost == "megabits" else "linear")
        lines = {
            name: (history[cost].mean(axis=0), smoothed(100 * history["test_accuracy"]))
            for name, (_, history, _) in found.items()
        }
        plots.draw_lines(axes, lines)
        axes.axhline(100 * args.target, color="0.4", linewidth=0.8)
    panels[0].set(ylabel="test accuracy in %", ylim=(50, 100))
    figures.legend(sheet, 3, panels[0])
    figures.title(
        sheet,
        f"{args.data}, Dirichlet {args.alpha:g}, {args.sampled} of {args.clients} clients in each "
        f"round; {statistics.errors('bands', args.seeds)}\nmeans over {WINDOW} rounds; grey line: "
        f"target {args.target:.0%}",
    )
    return sheet


WINDOW = 5


def smoothed(values: np.ndarray) -> np.ndarray:
    """Returns the mean of each record and those before it in a window, `[seeds, records]`."""
    sums = np.cumsum(values, axis=1)
    before = np.pad(sums, ((0, 0), (WINDOW, 0)))[:, : values.shape[1]]
    return (sums - before) / np.minimum(np.arange(values.shape[1]) + 1, WINDOW)


if __name__ == "__main__":
    commands.run(main, Args)
