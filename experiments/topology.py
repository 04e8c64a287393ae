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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from matplotlib.figure import Figure
from rich.table import Table

import algorithms
import dsgd
import topologies
from dsgd import problems, records, workers
from experiments.shared import commands, figures, statistics, studies, tables, tuning

PARTITIONS = ("iid", "by-label")
RINGS = (8, 16, 32, 64, 128, 256)
SLACK = 1.5  # target: this factor times the final loss of the complete graph


@dataclass(frozen=True)
class Args(commands.Data, commands.Switch, commands.Tuning):
    """Compares topologies under decentralized SGD."""

    workers: commands.Counts = (16, 64)
    """Numbers of workers N."""
    learning_rates: commands.Positives = (0.3, 1.0, 3.0, 10.0, 30.0)
    """Candidate step sizes."""
    steps: commands.Count = 600
    """Number of rounds."""
    compute: commands.SampleSeconds = 1e-4
    """Computation time of one sample, seconds."""
    out: Path = Path("results/topology")
    """Folder for config.json, graphs.csv, and for each N history-N.csv, figures and tables."""


Outcomes = Mapping[tuple[str, str], studies.Tuned]  # by partition and graph


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
        (graph.name, N, graph.degree, len(graph.edges), mean_rho(graph), measured[graph.name])
        for N in by_N
        for graph in by_N[N]
    ]
    records.write_rows(
        args.out / "graphs.csv", ("graph", "workers", "degree", "edges", "rho", "measured"), rows
    )
    sheets: dict[str, Figure] = {}
    shown = {"rings": tabulate_rings(rings, measured)}
    for N, of_N in by_N.items():
        found = train(args, N, of_N)
        targets = {each: SLACK * found[each, "complete"].loss for each in PARTITIONS}
        heading = (
            f"decentralized_sgd, {args.data}, {N} workers, {args.latency * 1e3:g} ms latency, "
            f"{args.bandwidth / 1e6:g} Mbit/s; {statistics.errors('bands', args.seeds)}; grey: "
            "target"
        )
        for group, members in group_graphs(of_N).items():
            sheets[f"{group}-{N}"] = draw(heading, found, targets, members)
        pictures = [partial(topologies.draw, graph) for graph in of_N]
        sheets[f"pictures-{N}"] = figures.sheet(
            pictures, 4, height=2.7, legend_columns=None, sharey=False
        )
        shown[f"graphs-{N}"] = tabulate_graphs(N, of_N, measured)
        for partition, target in targets.items():
            shown[f"costs-{N}-{partition}"] = table = tables.table(
                f"{N} workers, {partition}: cost to reach loss {target:.2g}\n(latency "
                f"{args.latency:g} s, {args.bandwidth / 1e6:g} Mbit/s, "
                f"{statistics.runs(args.seeds)})",
                ("graph", "step size", "rounds", "Mbit", "seconds"),
                "*: step size at an edge of the grid. -: not reached.\nMbit: sent and received per "
                f"worker.\nTarget: {SLACK:g} times the final loss of the complete graph.",
            )
            studies.fill(
                table,
                {name: found.get((partition, name)) for name in map(short, of_N)},
                lambda one, target=target: [one.cell(), *statistics.cost_to(one.history, target)],
            )
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
        draw_connected(lambda draw: topologies.equi_static(N, log, draw), seed),
        draw_connected(lambda draw: topologies.erdos_renyi(N, edges, draw), seed),
        topologies.complete(N),
    ]


def draw_connected(build: Callable[[int], dsgd.Topology], seed: int) -> dsgd.Topology:
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


def group_graphs(of_N: list[dsgd.Topology]) -> dict[str, list[str]]:
    """Returns the names of the fixed graphs and of the schedules, both with the complete graph."""
    names = {
        "fixed": [short(graph) for graph in of_N if graph.period == 1],
        "schedules": [short(graph) for graph in of_N if graph.period > 1 or graph is of_N[-1]],
    }
    return {group: members for group, members in names.items() if len(members) > 1}


def short(graph: dsgd.Topology) -> str:
    """Returns the name without its arguments."""
    return graph.name.partition("(")[0]


def mean_rho(graph: dsgd.Topology) -> float:
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


def train(args: Args, N: int, of_N: Sequence[dsgd.Topology]) -> Outcomes:
    """Trains on each graph at its best step size; graphs on which every step size diverged are left
    out.

    Raises:
        ValueError: if the complete graph, which sets the target, diverged.
    """
    cluster = tuning.equal_workers(args.batch_size * args.compute, args.bandwidth, args.latency)
    cases = {
        (partition, short(graph)): studies.Case(
            studies.with_sgd(algorithms.decentralized_sgd, graph), problem, cluster
        )
        for partition in PARTITIONS
        for problem in [tuning.logistic_regression(args, N, partition)]
        for graph in of_N
    }
    found = studies.run(args, f"{N} workers", cases, f"history-{N}.csv")
    if not all((partition, short(of_N[-1])) in found for partition in PARTITIONS):
        raise ValueError(
            f"on the complete graph every step size of {args.learning_rates} diverged; expected "
            "smaller ones (--learning-rates)"
        )
    return found


def tabulate_graphs(N: int, of_N: Sequence[dsgd.Topology], measured: Mapping[str, float]) -> Table:
    """Tabulates the graphs' properties."""
    table = tables.table(
        f"{N} workers: graphs",
        ("graph", "degree", "edges", "rho", "measured", "1 %"),
        "edges: one-way if the graph is directed; of all rounds.\nrho: of a round (of a schedule, "
        "the geometric mean).\nmeasured: from the decay of the consensus distance.\n1 %: rounds "
        "until at most 1 % of the disagreement remains.",
    )
    for graph in of_N:
        rho = (f"{value:.5f}" for value in (mean_rho(graph), measured[graph.name]))
        numbers = (graph.degree, len(graph.edges), *rho, graph.mixing_time(0.01))
        table.add_row(short(graph), *map(str, numbers))
    return table


def tabulate_rings(rings: Sequence[dsgd.Topology], measured: Mapping[str, float]) -> Table:
    """Tabulates 1 - rho of rings, the survey's numbers, and their corrections."""
    table = tables.table(
        "rings: 1 - rho",
        ("N", "computed", "measured", "4 pi^2/(3N^2)", "16 pi^2/(3N^2)"),
        "for large N, rho is 1 - 4 pi^2/(3N^2); the survey\nprints 1 - 16 pi^2/(3N^2)",
        left=0,
    )
    for ring in rings:
        right = 4 * math.pi**2 / (3 * ring.n**2)
        gaps = (ring.spectral_gap, 1 - measured[ring.name], right, 4 * right)
        table.add_row(str(ring.n), *(f"{gap:.3e}" for gap in gaps))
    return table


def draw(
    heading: str, found: Outcomes, targets: Mapping[str, float], members: Sequence[str]
) -> Figure:
    """Draws the loss against all costs and the consensus distance against rounds, for each
    partition, on these graphs. The consensus distance is not shown of graphs on which all models
    are always equal.
    """
    panels = []
    for partition, target in targets.items():
        shown = {name: found[partition, name] for name in members if (partition, name) in found}
        for x in statistics.COSTS:
            look = {"xlabel": x, "ylabel": "loss f(mean x)", "title": partition}
            look["log"] = "y" if x == "rounds" else "xy"
            panels.append(figures.curves(studies.lines(shown, x), target, **look))
        apart = {
            name: (x, y)
            for name, (x, y) in studies.lines(shown, "rounds", "consensus").items()
            if y.max() > 1e-9
        }
        look: dict[str, Any] = {
            "xlabel": "rounds",
            "ylabel": "consensus distance",
            "title": partition,
        }
        panels.append(figures.curves(apart, **look))
    return figures.sheet(panels, 2, heading, height=2.6, sharey=False)


if __name__ == "__main__":
    commands.run(main, Args)
