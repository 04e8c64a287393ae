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

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

import algorithms
import dsgd
import topologies
from dsgd import problems
from experiments.shared import commands, figures, statistics, studies, tables

FIXED, CHANGING = "fixed", "changing"


@dataclass(frozen=True)
class Args(commands.Tuning):
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
    learning_rates: commands.Positives = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
    """Candidate step sizes; the largest curvature is at most 1."""
    steps: commands.Count = 500
    """Number of rounds."""
    target: commands.Positive = 1e-3
    """Squared distance to the optimum; the cost to reach it is tabulated."""
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


BALANCED = ("decentralized_sgd", "atc_tracking")  # methods that need a doubly stochastic W
DISTANCE = "squared distance to the optimum"


def make_methods(on: Graphs) -> dict[str, studies.Build]:
    """Returns the methods by name, each a function of the step size."""
    return studies.name_methods(
        (algorithms.stochastic_gradient_push, on.push),
        (algorithms.push_diging, on.push),
        (algorithms.push_pull, on.pull, on.push),
        (algorithms.ab, on.pull, on.push),
        (algorithms.decentralized_sgd, on.balanced),
        (algorithms.atc_tracking, on.balanced),
    )


def main(args: Args) -> None:
    graphs, problem = make_graphs(args), make_problem(args)
    cases = {
        (method, graph): studies.Case(build, problem)
        for graph, on in graphs.items()
        for method, build in make_methods(on).items()
    }
    found = studies.run(args, "methods", cases)
    table = tables.table(
        f"{args.workers} workers on directed graphs: {DISTANCE}",
        ("method", "graph", "step\nsize", f"after\n{args.steps:,}", "rounds", "kbit"),
        "*: step size at an edge of the grid. -: not reached.\nrounds, kbit (sent and received per "
        f"worker): to a distance of {args.target:g}.\nmeans over {statistics.runs(args.seeds)}",
        left=2,
    )
    panels = []
    for graph, on in graphs.items():
        outcomes = {method: found.get((method, graph)) for method, each in cases if each == graph}
        rows = {(tables.wrap(name), name_graph(on, name)): one for name, one in outcomes.items()}
        studies.fill(table, rows, partial(cells, args.target))
        table.add_section()
        shown = {name: one for name, one in outcomes.items() if one}
        titles = (
            f"{graph} graph: {name_graph(on, '')}",
            f"{' and '.join(BALANCED)}:\n{name_graph(on, BALANCED[0])}",
        )
        panels += [
            figures.curves(
                studies.lines(shown, x, "distance"), xlabel=x, ylabel=DISTANCE, title=title
            )
            for x, title in zip(list(statistics.COSTS)[:2], titles, strict=True)
        ]
    sheet = figures.sheet(
        panels,
        2,
        f"directed graphs, {args.workers} workers, quadratics in {args.dimension} dimensions, each "
        f"method at its best step size; {statistics.errors('bands', args.seeds)}",
        height=3.7,
    )
    pictures = [partial(topologies.draw, on.push) for on in graphs.values()]
    graphs_sheet = figures.sheet(pictures, 2, height=5.0, legend_columns=None)
    commands.finish(args, {"figure": sheet, "graphs": graphs_sheet}, {"costs": table})


def cells(target: float, one: studies.Tuned) -> list[str]:
    """Returns the step size, the distance at the end, and the cost to the target."""
    history = one.history
    at = statistics.first_reaching(history["distance"], target)
    cost = ["-", "-"]
    if at is not None:
        cost = [f"{history['step'][at]:,}", f"{history['bits'][:, at].mean() / 1e3:,.0f}"]
    return [one.cell(), f"{history['distance'][:, -1].mean():.1e}", *cost]


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
    0, so that small distances have no rounding errors, with random starts.
    """
    drawn = problems.random_quadratic(
        args.workers, args.dimension, heterogeneity=args.heterogeneity, seed=args.seed
    )
    A, b = (np.asarray(leaf, np.float64) for leaf in drawn.data[:2])
    b = b - A @ np.linalg.solve(A.mean(axis=0), b.mean(axis=0))
    scale = np.geomspace(1, args.condition**-0.5, args.dimension)
    around = problems.quadratic(scale[:, None] * A * scale, b - b.mean(axis=0), noise=args.noise)
    return around._replace(
        init=lambda key: jax.random.normal(key, (args.dimension,)) / np.sqrt(args.dimension),
    )


def name_graph(graphs: Graphs, method: str) -> str:
    """Returns the graph of a method, without the seed and the weights."""
    graph = graphs.balanced if method in BALANCED else graphs.push
    return graph.name.partition("(")[0].replace("_", " ")


if __name__ == "__main__":
    commands.run(main, Args)
