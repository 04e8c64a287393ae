"""What a graph costs: consensus and loss of decentralized SGD on every topology, and rho as measured beside rho as computed.

    python -m experiments.topology --workers 16 64

On each graph, with data spread at random and by label, decentralized SGD at the step size of the grid with the smallest loss over the
second half of the run. Figures have loss and consensus distance against rounds, bits and modelled seconds, and the graphs; tables have
the graphs' numbers and the cost to a target loss.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import optax
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Group
from rich.table import Table

import algorithms
import dsgd
import topologies
from dsgd import clusters, plots, problems, records
from experiments.shared import commands, common, figures
from experiments.survey import gossip_decay
from experiments.survey.gossip_decay import short

PARTITIONS = ("iid", "by-label")
RINGS = (8, 16, 32, 64, 128, 256)
COSTS: dict[str, Callable[[dict[str, np.ndarray]], np.ndarray]] = {
    "rounds": lambda history: history["step"].astype(float),
    "megabits sent and received per worker": lambda history: history["bits"].mean(axis=0) / 1e6,
    "modelled seconds": lambda history: history["clock"].mean(axis=0),
}
SLACK = 1.5  # the target: the complete graph's last loss, times this


@dataclass(frozen=True)
class Args:
    """Compares topologies under decentralized SGD."""

    workers: tuple[int, ...] = (16, 64)
    """Numbers of workers N."""
    data: str = "digits"
    """digits, breast-cancer, or images or a LIBSVM file of --data-dir (mnist, a9a; see `problems.load`), for logistic regression."""
    data_dir: commands.DataDir = None
    batch_size: int = 16
    """Samples that each worker draws in a round."""
    learning_rates: tuple[float, ...] = (0.3, 1.0, 3.0, 10.0, 30.0)
    """Step sizes to choose from."""
    steps: int = 600
    """Rounds."""
    seeds: int = 3
    """Independent runs on each graph."""
    seed: int = 0
    """Of everything random, graphs included."""
    latency: float = 1e-4
    """Seconds that a message takes besides its transfer."""
    bandwidth: float = 1e8
    """Bits per second of a worker's port."""
    cluster: commands.ClusterFile = None
    compute: commands.SampleSeconds = 1e-4
    """Seconds that a worker computes for one sample."""
    out: Path = field(default=Path("results/topology"))
    """Folder for config.json, graphs.csv, and for each N history-N.csv and figure-N.png."""
    progress: bool = True
    """Show progress bars."""
    cache: commands.Cache = None


def main(args: Args) -> None:
    problems.load(args.data, args.data_dir)  # what is missing is told at once
    by_N = {N: graphs(N, args.seed) for N in args.workers}
    commands.begin(args)
    screen = common.console()
    rings = [topologies.ring(n) for n in RINGS]
    measured = {graph.name: gossip_decay.decay(graph, args.seed) for all_of in (rings, *by_N.values()) for graph in all_of}
    rows = [
        (graph.name, N, graph.degree, len(graph.edges), gossip_decay.per_round(graph), measured[graph.name])
        for N in by_N
        for graph in by_N[N]
    ]
    records.write_rows(args.out / "graphs.csv", ("graph", "workers", "degree", "edges", "rho", "measured"), rows)
    for N, of_N in by_N.items():
        histories: dict[str, dict[str, dict[str, np.ndarray]]] = {partition: {} for partition in PARTITIONS}
        flat: dict[str, dict[str, np.ndarray]] = {}
        with commands.kept(records.write_histories, args.out / f"history-{N}.csv", flat):
            for partition in PARTITIONS:
                for name, history in train(args, N, partition, of_N):
                    histories[partition][name] = flat[f"{partition} {name}"] = history
        figures.save_figure(draw(args, N, of_N, histories), args.out / f"figure-{N}.png")
        tables = [tabulate(args, N, partition, of_N, runs) for partition, runs in histories.items()]
        screen.print(Group(gossip_decay.describe(N, of_N, measured), *tables))
    screen.print(gossip_decay.ring_gaps(rings, measured))
    screen.print(f"Written: {args.out}/config.json, graphs.csv, history-N.csv, figure-N.png", soft_wrap=True)


def graphs(N: int, seed: int) -> list[dsgd.Topology]:
    """Every topology that there is for N workers, the sparsest first."""
    rows = max(d for d in range(1, math.isqrt(N) + 1) if N % d == 0)
    cube = [topologies.hypercube(N.bit_length() - 1)] if N & (N - 1) == 0 else []
    return [
        topologies.one_peer_exponential(N),
        topologies.random_matchings(N, seed=seed),
        topologies.chain(N),
        topologies.ring(N),
        topologies.star(N),
        topologies.torus(rows, N // rows),
        *([topologies.random_regular(N, 4, seed)] if N > 4 else []),
        *cube,
        topologies.exponential(N),
        connected(N, min(1.0, 2 * math.log(N) / N), seed),
        topologies.complete(N),
    ]


def connected(N: int, probability: float, seed: int) -> dsgd.Topology:
    """The first connected draw."""
    for attempt in range(seed, seed + 100):
        try:
            return topologies.erdos_renyi(N, probability, attempt)
        except ValueError:
            continue
    raise ValueError(f"no connected graph of {N} workers in 100 draws with probability {probability:.3g}")


def train(args: Args, N: int, partition: str, of_N: list[dsgd.Topology]) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Graph by graph, its name and the history at the best step size; without those that diverged at every one."""
    shared = {"batch_size": args.batch_size, "seed": args.seed, "data_dir": args.data_dir}
    problem = problems.logistic_regression(args.data, N, partition, **shared)
    compute = clusters.constant(args.batch_size * args.compute)
    cluster = clusters.Cluster(compute, up=clusters.constant(args.bandwidth), latency=args.latency)
    for graph in common.bar(of_N, f"{N} workers, {partition}", args.progress):
        tuned = common.tune(
            lambda learning_rate, graph=graph: algorithms.decentralized_sgd(optax.sgd(learning_rate), graph),
            problem,
            args.learning_rates,
            steps=args.steps,
            seeds=args.seeds,
            seed=args.seed,
            progress=False,
            cluster=cluster,
        )
        if tuned:
            yield short(graph), tuned.with_step_size
        elif graph is of_N[-1]:  # the complete one, which sets the target
            raise ValueError(f"on the complete graph every step size of {args.learning_rates} diverged: need smaller ones")


def target(histories: dict[str, dict[str, np.ndarray]]) -> float:
    """A loss that the complete graph reaches well before its end."""
    return SLACK * float(dsgd.tail_mean(histories["complete"]["loss"]).mean())


def tabulate(args: Args, N: int, partition: str, of_N: list[dsgd.Topology], runs: dict[str, dict[str, np.ndarray]]) -> Table:
    """Cost to the target, one row a graph."""
    switch = f"latency {args.latency:g} s, {args.bandwidth / 1e6:g} Mbit/s, {common.runs(args.seeds)}"
    caption = (
        "*: at an edge of the step sizes. -: not reached.\nMbit: sent and received per worker.\n"
        f"Target: {SLACK:g} times where the complete graph ends."
    )
    table = Table(title=f"{N} workers, {partition}: cost to loss {target(runs):.2g}\n({switch})", caption=caption)
    table.add_column("graph", no_wrap=True)
    for heading in ("step size", "rounds", "Mbit", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in map(short, of_N):
        table.add_row(name, *costs(args, runs.get(name), target(runs)))
    return table


def costs(args: Args, history: dict[str, np.ndarray] | None, goal: float) -> list[str]:
    """Cells of one graph."""
    if history is None:
        return ["diverged", *["-"] * 3]
    rate, at = float(history["learning_rate"][0, 0]), common.first_reaching(history["loss"], goal)
    step = f"{common.edge(rate, args.learning_rates)}{rate:g}"
    if at is None:
        return [step, *["-"] * 3]
    return [step, f"{history['step'][at]:,}", f"{history['bits'][:, at].mean() / 1e6:.3g}", f"{history['clock'][:, at].mean():.3g}"]


def draw(args: Args, N: int, of_N: list[dsgd.Topology], histories: dict[str, dict[str, dict[str, np.ndarray]]]) -> Figure:
    """The graphs; below them loss and consensus distance against all costs, for each partition."""
    sheet = Figure(figsize=(16, 20), layout="constrained")
    above, below = sheet.subfigures(2, 1, height_ratios=(5, 13), squeeze=False)[:, 0]
    strip = above.subplots(2, math.ceil(len(of_N) / 2), squeeze=False).ravel()
    for axes, graph in zip(strip, of_N, strict=False):
        topologies.draw(graph, axes)
    for axes in strip[len(of_N) :]:
        axes.set_axis_off()
    panels = plots.panels(below, 3, 4, sharey="row").reshape(4, 3)
    for row, (partition, what) in zip(panels, itertools.product(PARTITIONS, ("loss", "consensus")), strict=True):
        curves(row, histories[partition], what)
        row[0].set_ylabel(f"{partition}: {'loss f(mean x)' if what == 'loss' else 'consensus distance'}")
        if what == "loss":
            for axes in row:
                axes.axhline(target(histories[partition]), color="0.4", linewidth=0.8)
            plots.plain_log(row[0].yaxis)
    for axes, label in zip(panels[-1], COSTS, strict=True):
        axes.set_xlabel(label)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    below.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 6), frameon=False)
    switch = f"{args.latency * 1e3:g} ms latency, {args.bandwidth / 1e6:g} Mbit/s"
    figures.title(sheet, f"decentralized SGD, {args.data}, {N} workers, {switch}; {common.errors('bands', args.seeds)}; grey: target")
    return sheet


def curves(row: Iterable[Axes], runs: dict[str, dict[str, np.ndarray]], what: str) -> None:
    """Loss, or consensus distance, against each of the costs. The start, where everybody agrees, has no logarithm."""
    shown = {name: history for name, history in runs.items() if what == "loss" or history[what].max() > 1e-9}
    for axes, (label, cost) in zip(row, COSTS.items(), strict=True):
        axes.set(xscale="linear" if label == "rounds" else "log", yscale="log")
        plots.draw_lines(axes, {name: (cost(history)[1:], history[what][:, 1:]) for name, history in shown.items()})


if __name__ == "__main__":
    commands.run(main, Args)
