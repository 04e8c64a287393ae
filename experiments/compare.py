"""Methods of all families on the same model, data and workers: rounds, bits and seconds to a target loss, each at its tuned step size.

    python -m experiments.compare --partition by-label --latency 1e-3 --bandwidth 1e8

Each method's step size is the one of the grid with the smallest loss over the second half of the run, averaged over the seeds that are
shown. A round lasts as long as the workers compute their samples, and as the survey's switch needs for the messages ("blocking" costs);
asynchronous methods have a round for each gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import optax
import tyro
from matplotlib.figure import Figure
from rich.table import Table

import algorithms
import dsgd
from dsgd import clusters, problems, records
from experiments.helpers import common

# One or two of each family; the figure and the table hold no more.
FAMILIES = (
    "gd",
    "sgd",
    "mb-sgd",
    "asgd",
    "csgd",
    "ec-sgd",
    "ef21",
    "local-sgd",
    "dsgd",
    "exact-diffusion",
    "gradient-tracking",
    "sgp",
    "choco-sgd",
)


@dataclass(frozen=True)
class Args:
    """Compares distributed methods on one problem."""

    model: Literal["logistic", "mlp", "cnn"] = "logistic"
    """What is trained."""
    data: str = "digits"
    """digits, breast-cancer, mnist or cifar-10 (the last two are read from --data-dir)."""
    data_dir: Path | None = None
    """Folder with the files of mnist or cifar-10 as published."""
    partition: str = "by-label"
    """Who gets which samples: iid, by-label or dirichlet."""
    alpha: float = 0.5
    """Concentration of the dirichlet partition: small is heterogeneous."""
    workers: int = 16
    """Number of workers."""
    batch_size: int = 16
    """Samples that each worker draws in a round."""
    methods: tuple[str, ...] = FAMILIES
    """Which methods, by the short names in `algorithms.ALGORITHMS`."""
    learning_rates: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)
    """Step sizes to choose from."""
    steps: int = 600
    """Rounds."""
    seeds: int = 3
    """Independent runs of each method."""
    seed: int = 0
    """Of everything random."""
    target: float | None = None
    """Loss to reach; by default the highest of the methods' losses over the last tenth of the run."""
    latency: float = 1e-4
    """Seconds that a message takes besides its transfer."""
    bandwidth: float = 1e8
    """Bits per second of a worker's port."""
    compute: float = 1e-4
    """Seconds that a worker computes for one sample."""
    delay: float = 0.0
    """Mean of a random delay of each worker's batch, in seconds (exponentially distributed)."""
    out: Path = field(default=Path("results/compare"))
    """Folder for config.json, history.csv and figure.png."""
    progress: bool = True
    """Show progress bars."""
    cache: common.Cache = None


def main(args: Args) -> None:
    if not args.methods:
        raise ValueError("no methods: need at least one")
    problem, cluster = make_problem(args), make_cluster(args)
    names = {name: algorithms.make(name, optax.sgd(1.0), args.workers).name for name in args.methods}  # what is wrong is refused now
    args.out.mkdir(parents=True, exist_ok=True)  # fails now, not after the work
    tuned = {name: tune(args, problem, cluster, name) for name in args.methods}
    outcomes = {name: outcome for name, outcome in tuned.items() if outcome}
    if not outcomes:
        raise ValueError(f"every method diverged at every step size of {args.learning_rates}; need smaller ones")
    histories = {name: outcome.history for name, outcome in outcomes.items()}
    target = args.target if args.target is not None else default_target(histories)
    records.write_config(args.out / "config.json", args)
    records.write_histories(args.out / "history.csv", histories)
    common.save_figure(draw(args, problem, histories, target), args.out / "figure.png")
    screen = common.console()
    screen.print(tabulate(args, problem, outcomes, target))
    for name in tuned.keys() - outcomes.keys():
        screen.print(f"{name} diverged at every step size and is left out.")
    screen.print("\n".join(f"{name}: {names[name]}" for name in outcomes), highlight=False)
    screen.print(f"Written: {args.out}/config.json, history.csv, figure.png", soft_wrap=True)


def make_problem(args: Args) -> dsgd.Problem:
    """The model on the partitioned data."""
    shared = {"alpha": args.alpha, "batch_size": args.batch_size, "seed": args.seed, "data_dir": args.data_dir}
    if args.model == "logistic":
        return problems.logistic_regression(args.data, args.workers, args.partition, **shared)
    return problems.neural_network(args.model, args.data, args.workers, args.partition, **shared)


def make_cluster(args: Args) -> clusters.Cluster:
    """Equal workers on the survey's switch, with random delays if there are any."""
    compute = clusters.constant(args.compute * args.batch_size)
    if args.delay:
        compute += clusters.exponential(args.delay)
    return clusters.Cluster(compute, up=clusters.constant(args.bandwidth), latency=args.latency)


def tune(args: Args, problem: dsgd.Problem, cluster: clusters.Cluster, name: str) -> common.Tuned | None:
    """At its best step size; None where every one diverged."""
    return common.tune(
        lambda learning_rate: algorithms.make(name, optax.sgd(learning_rate), args.workers),
        problem,
        args.learning_rates,
        steps=args.steps,
        seeds=args.seeds,
        seed=args.seed,
        progress=args.progress,
        cluster=cluster,
    )


def default_target(histories: dict[str, dict[str, np.ndarray]]) -> float:
    """The highest of the methods' losses over the last tenth of the run, rounded up to two digits."""
    worst = max(dsgd.tail_mean(history["loss"]).mean() for history in histories.values())
    unit = 10.0 ** (math.floor(math.log10(worst)) - 1)
    return math.ceil(worst / unit) * unit


def tabulate(args: Args, problem: dsgd.Problem, outcomes: dict[str, common.Tuned], target: float) -> Table:
    """Cost to the target, and final test accuracy, one row a method."""
    what = f"{problem.name}: to loss {target:.2g} on {args.workers} workers,"
    switch = f"latency {args.latency:g} s, {args.bandwidth / 1e6:g} Mbit/s, {args.seeds} seeds"
    signs = "*: at an edge of the grid. Mbit: sent and received per worker.\nsgd, asgd: a round is one gradient."
    table = Table(title=f"{what}\n{switch}", caption=f"{signs}\n-: not reached. Accuracy: mean ± standard error over seeds.")
    table.add_column("method", no_wrap=True)
    for heading in ("step size", "rounds", "Mbit", "seconds", "test accuracy"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, (learning_rate, history) in outcomes.items():
        at = common.first_reaching(history["loss"], target)
        costs = (history["step"], history["bits"].mean(axis=0) / 1e6, history["clock"].mean(axis=0))
        accuracy, error = common.mean_and_error(100 * history["test_accuracy"][:, -1])
        cells = ["-" if at is None else f"{cost[at]:{form}}" for cost, form in zip(costs, (",.0f", ",.3g", ".3g"), strict=True)]
        edge = "*" * (learning_rate in (min(args.learning_rates), max(args.learning_rates)))
        table.add_row(name, f"{edge}{learning_rate:g}", *cells, f"{accuracy:.1f} ± {error:.1f} %")
    return table


def draw(args: Args, problem: dsgd.Problem, histories: dict[str, dict[str, np.ndarray]], target: float) -> Figure:
    """Loss against rounds, bits and seconds."""
    sheet, panels = common.figure(3)
    switch = f"{args.latency * 1e3:g} ms latency, {args.bandwidth / 1e6:g} Mbit/s"
    xs = (
        ("rounds", lambda history: history["step"].astype(float)),
        ("megabits sent and received per worker", lambda history: history["bits"].mean(axis=0) / 1e6),
        (f"simulated seconds ({switch})", lambda history: history["clock"].mean(axis=0)),
    )
    for axes in panels[1:]:
        axes.set_xscale("log")
    for axes, (label, x) in zip(panels, xs, strict=True):
        common.draw_lines(axes, {name: (x(history), history["loss"]) for name, history in histories.items()})
        axes.axhline(target, color="0.4", linewidth=0.8)
        axes.set(xlabel=label, yscale="log")
    panels[0].set_ylabel("loss f(x)")
    common.plain_log(panels[0].yaxis)
    handles, labels = panels[0].get_legend_handles_labels()
    silent = [name for name, history in histories.items() if not history["bits"].any()]
    if silent:
        panels[1].set_title(f"{', '.join(silent)} sends nothing", fontsize=9, color="0.4")
    sheet.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 8), frameon=False)
    bands = f"bands: standard error over {args.seeds} seeds; grey line: target {target:.2g}"
    common.title(sheet, f"{problem.name}, {args.workers} workers; {bands}")
    return sheet


if __name__ == "__main__":
    common.launch(main, tyro.cli(Args))
