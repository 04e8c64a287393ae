"""Decentralized methods on directed graphs, one that is the same in all rounds and one that changes
from round to round: distance to the optimum against rounds and bits.

    python -m experiments.directed --workers 16 --degree 4

On directed graphs on which workers receive different numbers of messages, stochastic gradient push
converges to a point other than the optimum, and Push-DIGing, Push-Pull and AB converge to the
optimum. Decentralized SGD and gradient tracking need a doubly stochastic W. They are run on
exponential graphs, on which each worker sends about as many messages. The workers have different
quadratic objectives and exact gradients; each method has the step size of the grid with the
smallest loss over the second half of the run. The seeds differ in the start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from rich.table import Table

import algorithms
import dsgd
import topologies
from dsgd import plots, problems
from experiments.shared import commands, figures, statistics, tables, tuning

FIXED, CHANGING = "fixed", "changing"


@dataclass(frozen=True)
class Args(commands.Common):
    """Compares decentralized methods on directed and time-varying graphs."""

    workers: commands.Several = 16
    """Number of workers."""
    degree: commands.Several = 4
    """Number of workers to which each worker sends on the fixed graph; on the changing one it sends
    to one.
    """
    period: commands.Count = 32
    """Number of rounds of the changing graph that are drawn."""
    dimension: commands.Several = 20
    """Number of elements of the model."""
    condition: commands.Positive = 10.0
    """Condition number of the scaling of the elements, by which that of the objective grows."""
    heterogeneity: commands.NotNegative = 1.0
    """Root mean square of the workers' gradients at the optimum."""
    noise: commands.NotNegative = 0.0
    """Root mean square of the noise of a gradient."""
    learning_rates: tuple[commands.Positive, ...] = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
    """Candidate step sizes; the largest curvature is at most 1."""
    steps: commands.Count = 500
    """Number of rounds."""
    target: commands.Positive = 1e-3
    """Squared distance to the optimum; the cost to reach it is tabulated."""
    seeds: commands.Count = 3
    """Independent starts."""
    out: Path = Path("results/directed")
    """Folder for config.json, history.csv, figure.png, graphs.png and costs.csv."""


class Graphs(NamedTuple):
    """The graphs of a comparison. Each worker sends about as many messages on each of them.

    Args:
        push: directed; senders divide equally, so that the columns of W sum to 1.
        pull: the same edges; receivers average equally, so that the rows of W sum to 1.
        balanced: doubly stochastic.
    """

    push: dsgd.Topology
    pull: dsgd.Topology
    balanced: dsgd.Topology


Build = Callable[[optax.GradientTransformation, Graphs], dsgd.Algorithm]

METHODS: dict[str, Build] = {
    "SGP": lambda step, on: algorithms.stochastic_gradient_push(step, on.push),
    "Push-DIGing": lambda step, on: algorithms.push_diging(step, on.push),
    "Push-Pull": lambda step, on: algorithms.push_pull(step, on.pull, on.push),
    "AB": lambda step, on: algorithms.ab(step, on.pull, on.push),
    "DSGD": lambda step, on: algorithms.decentralized_sgd(step, on.balanced),
    "ATC tracking": lambda step, on: algorithms.atc_tracking(step, on.balanced),
}
ON_BALANCED = ("DSGD", "ATC tracking")


class Case(NamedTuple):
    """A method on the fixed or the changing graph."""

    method: str
    graph: str

    def __str__(self) -> str:
        return f"{self.method}, {self.graph}"


def main(args: Args) -> None:
    graphs, problem = make_graphs(args), make_problem(args)
    commands.begin(args)
    cases = [Case(method, graph) for graph in graphs for method in METHODS]

    def tune(case: Case) -> tuning.Tuned | None:
        build, on = METHODS[case.method], graphs[case.graph]
        return tuning.tune(args, lambda learning_rate: build(optax.sgd(learning_rate), on), problem)

    found = tuning.compare(args, "methods", cases, tune)
    sheets = {"figure": draw(args, graphs, found), "graphs": draw_graphs(graphs)}
    commands.finish(args, sheets, {"costs": tabulate(args, graphs, found)})


def make_graphs(args: Args) -> dict[str, Graphs]:
    """Returns the fixed and the changing graphs.

    Raises:
        ValueError: if the degree is not below the number of workers.
    """
    fixed = (args.workers, args.degree, args.seed)
    changing = (args.workers, args.period, args.seed)
    return {
        FIXED: Graphs(
            topologies.random_directed(*fixed),
            topologies.random_directed(*fixed, topologies.pull),
            topologies.exponential(args.workers),
        ),
        CHANGING: Graphs(
            topologies.random_pushes(*changing),
            topologies.random_pushes(*changing, topologies.pull),
            topologies.one_peer_exponential(args.workers),
        ),
    }


def make_problem(args: Args) -> dsgd.Problem:
    """Returns quadratics of the workers, different from each other, around an optimum at 0 with f =
    0, so that small distances have no rounding errors; with the metric `distance`, the squared
    distance to the optimum, and random starts.
    """
    drawn = problems.random_quadratic(
        args.workers, args.dimension, heterogeneity=args.heterogeneity, seed=args.seed
    )
    A, b = (np.asarray(leaf, np.float64) for leaf in drawn.data[:2])
    b = b - A @ np.linalg.solve(A.mean(axis=0), b.mean(axis=0))
    scale = np.geomspace(1, args.condition**-0.5, args.dimension)
    around = problems.quadratic(scale[:, None] * A * scale, b - b.mean(axis=0), noise=args.noise)
    evaluate: Any = around.evaluation.function

    def with_distance(x, data, mean):
        scalars, slope = evaluate(x, data, mean)
        return {**scalars, "distance": jnp.sum((x - mean.minimizer) ** 2)}, slope

    return around._replace(
        init=lambda key: jax.random.normal(key, (args.dimension,)) / np.sqrt(args.dimension),
        evaluate=dsgd.Evaluation(with_distance, around.evaluation.replicated),
    )


def named(graphs: Graphs, method: str) -> str:
    """Returns the graph of a method, without the seed and the weights."""
    graph = graphs.balanced if method in ON_BALANCED else graphs.push
    return graph.name.partition("(")[0].replace("_", " ")


def tabulate(args: Args, graphs: dict[str, Graphs], found: dict[Case, tuning.Tuned]) -> Table:
    """Tabulates the distance at the end, and the cost to the target, one row per case."""
    table = tables.table(
        f"{args.workers} workers on directed graphs: squared distance to the optimum",
        ("method", "graph", "step\nsize", f"after\n{args.steps:,}", "rounds", "kbit"),
        "*: step size at an edge of the grid. -: not reached.\nrounds, kbit (sent and received per "
        f"worker): to a distance of {args.target:g}.\nmeans over {statistics.runs(args.seeds)}",
        left=2,
    )
    for graph, on in graphs.items():
        for method in METHODS:
            label = (method, named(on, method))
            if not (one := found.get(Case(method, graph))):
                table.add_row(*label, "diverged", *["-"] * 3)
                continue
            history = one.history
            at = statistics.first_reaching(history["distance"], args.target)
            cost = (
                ("-", "-")
                if at is None
                else (f"{history['step'][at]:,}", f"{history['bits'][:, at].mean() / 1e3:,.0f}")
            )
            step = statistics.step_size(one.learning_rate, args.learning_rates)
            table.add_row(*label, step, f"{history['distance'][:, -1].mean():.1e}", *cost)
        table.add_section()
    return table


def draw(args: Args, graphs: dict[str, Graphs], found: dict[Case, tuning.Tuned]) -> Figure:
    """Draws the distance against rounds and bits, for each graph."""
    sheet = Figure(figsize=(figures.WIDTH, 7.4), layout="constrained")
    panels = plots.panels(sheet, 2, 2, sharey=True).reshape(2, 2)
    for row, (graph, on) in zip(panels, graphs.items(), strict=True):
        shown = {name: one for name in METHODS if (one := found.get(Case(name, graph)))}
        for axes, (label, cost) in zip(row, list(statistics.COSTS.items())[:2], strict=True):
            axes.set(yscale="log", xlabel=label)
            plots.draw_lines(
                axes,
                {name: (cost(one.history), one.history["distance"]) for name, one in shown.items()},
            )
        balanced = f"{' and '.join(ON_BALANCED)}: {named(on, 'DSGD')}"
        row[0].set(
            ylabel="squared distance to the optimum", title=f"{graph} graph: {named(on, 'SGP')}"
        )
        row[1].set(title=balanced)
    figures.legend(sheet, 6, panels[0, 0])
    bands = statistics.errors("bands", args.seeds)
    figures.title(
        sheet,
        f"directed graphs, {args.workers} workers, quadratics in {args.dimension} dimensions, each "
        f"method at its best step size; {bands}",
    )
    return sheet


def draw_graphs(graphs: dict[str, Graphs]) -> Figure:
    """Draws pictures of the graphs."""
    sheet = Figure(figsize=(figures.WIDTH, 5.0), layout="constrained")
    strip = sheet.subplots(1, 2)
    for axes, graph in zip(strip, graphs.values(), strict=True):
        topologies.draw(graph.push, axes)
    return sheet


if __name__ == "__main__":
    commands.run(main, Args)
