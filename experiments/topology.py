"""The cost of a graph: consensus and loss of decentralized SGD on every topology, and measured and
computed values of rho.

    python -m experiments.topology --workers 16 64

On each graph, with data partitioned iid and by label, decentralized SGD is run at the step size of
the grid with the smallest loss over the second half of the run. Figures show the loss against
rounds, bits and simulated seconds, the consensus distance, and the graphs; tables show the graphs'
properties and the cost to a target loss. Fixed graphs and schedules have a figure each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

import algorithms
import dsgd
import topologies
from dsgd import plots, problems, records, workers
from experiments.shared import commands, figures, statistics, tables, tuning

PARTITIONS = ("iid", "by-label")
RINGS = (8, 16, 32, 64, 128, 256)
SLACK = 1.5  # target: this factor times the final loss of the complete graph


@dataclass(frozen=True)
class Args(commands.Data, commands.Switch, commands.Common):
    """Compares topologies under decentralized SGD."""

    workers: tuple[commands.Count, ...] = (16, 64)
    """Numbers of workers N."""
    learning_rates: tuple[commands.Positive, ...] = (0.3, 1.0, 3.0, 10.0, 30.0)
    """Candidate step sizes."""
    steps: commands.Count = 600
    """Number of rounds."""
    seeds: commands.Count = 3
    """Independent runs on each graph."""
    compute: commands.SampleSeconds = 1e-4
    """Computation time of one sample, seconds."""
    out: Path = Path("results/topology")
    """Folder for config.json, graphs.csv, and for each N history-N.csv, figures and tables."""


class Case(NamedTuple):
    """A graph, and the partition of the data."""

    partition: str
    graph: str

    def __str__(self) -> str:
        return f"{self.partition} {self.graph}"


Outcomes = dict[Case, tuning.Tuned]


def main(args: Args) -> None:
    problems.load(args.data, args.data_dir)  # a missing file is reported at once
    by_N = {N: graphs(N, args.seed) for N in args.workers}
    commands.begin(args)
    rings = [topologies.ring(n) for n in RINGS]
    measured = {
        graph.name: decay(graph, args.seed)
        for all_of in (rings, *by_N.values())
        for graph in all_of
    }
    rows = [
        (graph.name, N, graph.degree, len(graph.edges), per_round(graph), measured[graph.name])
        for N in by_N
        for graph in by_N[N]
    ]
    records.write_rows(
        args.out / "graphs.csv", ("graph", "workers", "degree", "edges", "rho", "measured"), rows
    )
    sheets: dict[str, Figure] = {}
    shown = {"rings": ring_gaps(rings, measured)}
    for N, of_N in by_N.items():
        found = train(args, N, of_N)
        for group, members in groups(of_N).items():
            sheets[f"{group}-{N}"] = draw(args, N, found, members)
        sheets[f"pictures-{N}"] = draw_graphs(of_N)
        shown[f"graphs-{N}"] = describe(N, of_N, measured)
        shown |= {
            f"costs-{N}-{partition}": tabulate(args, N, partition, of_N, found)
            for partition in PARTITIONS
        }
    commands.finish(args, sheets, shown)


def graphs(N: int, seed: int) -> list[dsgd.Topology]:
    """Returns every kind of topology that exists for N workers, schedules first, the complete graph
    last.
    """
    rows = max(d for d in range(1, math.isqrt(N) + 1) if N % d == 0)
    torus, log = topologies.torus(rows, N // rows), (N - 1).bit_length()
    cubes = [topologies.one_peer_hypercube(log), topologies.hypercube(log)] if 1 << log == N else []
    edges = min(1.0, 2 * math.log(N) / N)
    return [
        topologies.one_peer_exponential(N),
        *cubes[:1],
        topologies.base_graph(N, 3),
        topologies.random_matchings(N, seed=seed),
        topologies.equi_dynamic(N, seed=seed),
        topologies.matcha(torus, 0.5, seed=seed),
        topologies.chain(N),
        topologies.ring(N),
        topologies.star(N),
        torus,
        *([topologies.random_regular(N, 4, seed)] if N > 4 else []),
        *cubes[1:],
        topologies.exponential(N),
        connected(lambda draw: topologies.equi_static(N, log, draw), seed),
        connected(lambda draw: topologies.erdos_renyi(N, edges, draw), seed),
        topologies.complete(N),
    ]


def connected(build: Callable[[int], dsgd.Topology], seed: int) -> dsgd.Topology:
    """Returns the first connected draw of a random graph.

    Args:
        build: seed -> the graph; raises ValueError if it is not connected.
        seed: the first of 100 seeds.
    """
    for attempt in range(seed, seed + 99):
        try:
            return build(attempt)
        except ValueError:
            continue
    return build(seed + 99)


def groups(of_N: list[dsgd.Topology]) -> dict[str, list[str]]:
    """Returns the names of the fixed graphs and of the schedules, both with the complete graph."""
    names = {
        "fixed": [short(graph) for graph in of_N if graph.period == 1],
        "schedules": [short(graph) for graph in of_N if graph.period > 1 or graph is of_N[-1]],
    }
    return {group: members for group, members in names.items() if len(members) > 1}


def short(graph: dsgd.Topology) -> str:
    """Returns the name without its arguments."""
    return graph.name.partition("(")[0]


def per_round(graph: dsgd.Topology) -> float:
    """Returns rho of one round; for a schedule, the geometric mean over its period."""
    return graph.rho ** (1 / graph.period)


def decay(graph: dsgd.Topology, seed: int) -> float:
    """Returns the factor by which the root of the consensus distance decreases per round, when only
    the slowest mode is left.

    Simulates gossip from a random start, without gradients. The vector is scaled to norm 1 in every
    round, because otherwise only rounding errors would soon be left.
    """
    first = graph.period * math.ceil(8 * graph.n**2 / graph.period)
    counted = graph.period * math.ceil(1_000 / graph.period)

    def body(t, carry):
        x, logs = carry
        x = workers.mix(x, graph, t)
        x = x - jnp.mean(x, axis=0, keepdims=True)
        norm = jnp.linalg.norm(x)
        return x / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny), logs + jnp.where(
            t >= first, jnp.log(norm), 0.0
        )

    def gossip(x):
        return jax.lax.fori_loop(0, first + counted, body, (x, jnp.float32(0)))[1]

    x = jax.random.normal(jax.random.key(seed), (graph.n, 16))
    one = jax.shard_map(
        gossip, mesh=workers.mesh(1), in_specs=P(workers.AXIS), out_specs=P(), check_vma=False
    )
    return float(jnp.exp(jax.jit(one)(x) / counted))


def train(args: Args, N: int, of_N: list[dsgd.Topology]) -> Outcomes:
    """Trains on each graph at its best step size; graphs on which every step size diverged are left
    out.

    Raises:
        ValueError: if the complete graph, which sets the target, diverged.
    """
    cluster = tuning.equal_workers(args.batch_size * args.compute, args.bandwidth, args.latency)
    by_case = {Case(partition, short(graph)): graph for partition in PARTITIONS for graph in of_N}
    on = {partition: tuning.logistic_regression(args, N, partition) for partition in PARTITIONS}

    def tune(case: Case) -> tuning.Tuned | None:
        graph = by_case[case]

        def build(learning_rate):
            return algorithms.decentralized_sgd(optax.sgd(learning_rate), graph)

        found = tuning.tune(args, build, on[case.partition], cluster=cluster)
        if found is None and graph is of_N[-1]:
            raise ValueError(
                f"on the complete graph every step size of {args.learning_rates} diverged; "
                "expected smaller ones (--learning-rates)"
            )
        return found

    path = args.out / f"history-{N}.csv"
    return commands.collect(args, f"{N} workers", by_case, tune, tuning.write_histories, path)


def target(found: Outcomes, partition: str) -> float:
    """Returns a loss that the complete graph reaches well before its end."""
    history = found[Case(partition, "complete")].history
    return SLACK * float(dsgd.tail_mean(history["loss"]).mean())


def describe(N: int, of_N: list[dsgd.Topology], measured: dict[str, float]) -> Table:
    """Tabulates the graphs' properties."""
    caption = (
        "edges: one-way if the graph is directed; of all rounds.\nrho: of a round (of a schedule, "
        "the geometric mean).\nmeasured: from the decay of the consensus distance.\n1 %: rounds "
        "until at most 1 % of the disagreement remains."
    )
    table = tables.table(
        f"{N} workers: graphs", ("graph", "degree", "edges", "rho", "measured", "1 %"), caption
    )
    for graph in of_N:
        rho = (f"{value:.5f}" for value in (per_round(graph), measured[graph.name]))
        table.add_row(
            short(graph),
            str(graph.degree),
            str(len(graph.edges)),
            *rho,
            str(graph.mixing_time(0.01)),
        )
    return table


def ring_gaps(rings: list[dsgd.Topology], measured: dict[str, float]) -> Table:
    """Tabulates 1 - rho of rings, the survey's numbers, and their corrections."""
    caption = "for large N, rho is 1 - 4 pi^2/(3N^2); the survey\nprints 1 - 16 pi^2/(3N^2)"
    table = tables.table(
        "rings: 1 - rho",
        ("N", "computed", "measured", "4 pi^2/(3N^2)", "16 pi^2/(3N^2)"),
        caption,
        left=0,
    )
    for ring in rings:
        right = 4 * math.pi**2 / (3 * ring.n**2)
        gaps = (ring.spectral_gap, 1 - measured[ring.name], right, 4 * right)
        table.add_row(str(ring.n), *(f"{gap:.3e}" for gap in gaps))
    return table


def tabulate(
    args: Args, N: int, partition: str, of_N: list[dsgd.Topology], found: Outcomes
) -> Table:
    """Tabulates the cost to the target, one row per graph."""
    goal = target(found, partition)
    table = tables.table(
        f"{N} workers, {partition}: cost to reach loss {goal:.2g}\n(latency {args.latency:g} s, "
        f"{args.bandwidth / 1e6:g} Mbit/s, {statistics.runs(args.seeds)})",
        ("graph", "step size", "rounds", "Mbit", "seconds"),
        "*: step size at an edge of the grid. -: not reached.\nMbit: sent and received per "
        f"worker.\nTarget: {SLACK:g} times the final loss of the complete graph.",
    )
    for name in map(short, of_N):
        if one := found.get(Case(partition, name)):
            step = statistics.step_size(one.learning_rate, args.learning_rates)
            table.add_row(name, step, *statistics.cost_to(one.history, goal))
        else:
            table.add_row(name, "diverged", *["-"] * 3)
    return table


def draw(args: Args, N: int, found: Outcomes, members: list[str]) -> Figure:
    """Draws the loss against all costs and the consensus distance against rounds, for each
    partition, on these graphs.
    """
    goals = {partition: target(found, partition) for partition in PARTITIONS}
    found = {case: one for case, one in found.items() if case.graph in members}
    sheet = Figure(figsize=(figures.WIDTH, 10.5), layout="constrained")
    above, below = sheet.subfigures(2, 1, height_ratios=(2, 1.15), squeeze=False)[:, 0]
    rows = plots.panels(above, len(statistics.COSTS), 2, sharey="row").reshape(2, -1)
    pair = plots.panels(below, 2, sharey=True)
    for row, axes, partition in zip(rows, pair, PARTITIONS, strict=True):
        draw_losses(row, found, partition, goals[partition])
        row[0].set_ylabel(f"{partition}: loss f(mean x)")
        draw_consensus(axes, found, partition)
    pair[0].set_ylabel("consensus distance")
    figures.legend(below, 4, rows[0, 0])
    switch = f"{args.latency * 1e3:g} ms latency, {args.bandwidth / 1e6:g} Mbit/s"
    figures.title(
        sheet,
        f"decentralized SGD, {args.data}, {N} workers, {switch}; "
        f"{statistics.errors('bands', args.seeds)}; grey: target",
    )
    return sheet


def draw_graphs(of_N: list[dsgd.Topology]) -> Figure:
    """Draws pictures of the graphs."""
    columns = 4
    rows = math.ceil(len(of_N) / columns)
    sheet = Figure(figsize=(figures.WIDTH, 2.7 * rows), layout="constrained")
    strip = sheet.subplots(rows, columns, squeeze=False).ravel()
    for axes, graph in zip(strip, of_N, strict=False):
        topologies.draw(graph, axes)
    for axes in strip[len(of_N) :]:
        axes.set_axis_off()
    return sheet


def draw_losses(row: Iterable[Axes], found: Outcomes, partition: str, goal: float) -> None:
    """Draws the loss against each of the costs. The start, which has no cost, is omitted, because
    it has no logarithm.
    """
    shown = {case.graph: one.history for case, one in found.items() if case.partition == partition}
    for axes, (label, cost) in zip(row, statistics.COSTS.items(), strict=True):
        lines = {
            name: (cost(history)[1:], history["loss"][:, 1:]) for name, history in shown.items()
        }
        words = label.replace(" sent and received", "")
        axes.set(xscale="linear" if label == "rounds" else "log")
        figures.losses(axes, lines, goal, xlabel=words)


def draw_consensus(axes: Axes, found: Outcomes, partition: str) -> None:
    """Draws the consensus distance against rounds, except of graphs on which all models are always
    equal. The start, where all models are equal, is omitted, because it has no logarithm.
    """
    lines = {
        case.graph: (one.history["step"][1:].astype(float), one.history["consensus"][:, 1:])
        for case, one in found.items()
        if case.partition == partition and one.history["consensus"].max() > 1e-9
    }
    axes.set(yscale="log", xlabel="rounds", title=partition)
    plots.draw_lines(axes, lines)


if __name__ == "__main__":
    commands.run(main, Args)
