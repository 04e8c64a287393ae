"""What a graph costs: consensus and loss of decentralized SGD on every topology, and rho as measured beside rho as computed.

    python -m experiments.topology --workers 16 64

On each graph, with data spread at random and by label, decentralized SGD at the step size of the grid with the smallest loss over the
second half of the run. Figures have loss and consensus distance against rounds, bits and modelled seconds, and the graphs; tables have
the graphs' numbers and the cost to a target loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from jax.sharding import PartitionSpec as P
from matplotlib.figure import Figure
from rich.console import Group
from rich.table import Table

import algorithms
import dsgd
import topologies
from dsgd import problems, records, workers
from experiments import common

PARTITIONS = ("iid", "by-label")
RINGS = (8, 16, 32, 64, 128, 256)
SLACK = 1.5  # the target: the complete graph's last loss, times this


@dataclass(frozen=True)
class Args:
    """Compares topologies under decentralized SGD."""

    workers: tuple[int, ...] = (16, 64)
    """Numbers of workers N."""
    data: str = "digits"
    """digits or breast-cancer, for logistic regression."""
    batch_size: int = 16
    """Samples that each worker draws in a round."""
    learning_rates: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0)
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
    compute: float = 1e-4
    """Seconds that a worker computes for one sample."""
    out: Path = field(default=Path("results/topology"))
    """Folder for config.json, graphs.csv, and for each N history-N.csv and figure-N.png."""
    progress: bool = True
    """Show progress bars."""


def main(args: Args) -> None:
    args.out.mkdir(parents=True, exist_ok=True)  # fails now, not after the work
    by_N = {N: graphs(N, args.seed) for N in args.workers}
    screen = common.console()
    rings = [topologies.ring(n) for n in RINGS]
    measured = {graph.name: decay(graph, args.seed) for all_of in (rings, *by_N.values()) for graph in all_of}
    records.write_config(args.out / "config.json", args)
    rows = [(graph.name, N, graph.degree, len(graph.edges), per_round(graph), measured[graph.name]) for N in by_N for graph in by_N[N]]
    records.write_rows(args.out / "graphs.csv", ("graph", "workers", "degree", "edges", "rho", "measured"), rows)
    for N, of_N in by_N.items():
        histories = {partition: train(args, N, partition, of_N) for partition in PARTITIONS}
        flat = {f"{partition} {name}": history for partition, runs in histories.items() for name, history in runs.items()}
        records.write_histories(args.out / f"history-{N}.csv", flat)
        common.save_figure(draw(args, N, of_N, histories), args.out / f"figure-{N}.png")
        screen.print(Group(describe(N, of_N, measured), tabulate(args, N, histories)))
    screen.print(ring_gaps(rings, measured))
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


def short(graph: dsgd.Topology) -> str:
    """Its name without its arguments."""
    return graph.name.partition("(")[0]


def per_round(graph: dsgd.Topology) -> float:
    """rho of one round: of a schedule, the geometric mean over its period."""
    return graph.rho ** (1 / graph.period)


def decay(graph: dsgd.Topology, seed: int) -> float:
    """What is left after a round of the root of the consensus distance, once the slowest direction is all that there is.

    Gossip from a random start, without gradients. Every round it is scaled back to norm 1, or it would soon be rounding errors only.
    """
    first = graph.period * math.ceil(8 * graph.n**2 / graph.period)
    counted = graph.period * math.ceil(1_000 / graph.period)

    def body(t, carry):
        x, logs = carry
        x = workers.mix(x, graph, t)
        x = x - jnp.mean(x, axis=0, keepdims=True)
        norm = jnp.linalg.norm(x)
        return x / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny), logs + jnp.where(t >= first, jnp.log(norm), 0.0)

    def gossip(x):
        return jax.lax.fori_loop(0, first + counted, body, (x, jnp.float32(0)))[1]

    x = jax.random.normal(jax.random.key(seed), (graph.n, 16))
    one = jax.shard_map(gossip, mesh=workers.mesh(1), in_specs=P(workers.AXIS), out_specs=P(), check_vma=False)
    return float(jnp.exp(jax.jit(one)(x) / counted))


def train(args: Args, N: int, partition: str, of_N: list[dsgd.Topology]) -> dict[str, dict[str, np.ndarray]]:
    """Histories at the best step size, with `seconds`, by graph; without those that diverged at every one."""
    problem = problems.logistic_regression(args.data, N, partition, batch_size=args.batch_size, seed=args.seed)
    histories = {}
    for graph in common.bar(of_N, f"{N} workers, {partition}", args.progress):
        tuned = common.tune(
            lambda learning_rate, graph=graph: algorithms.decentralized_sgd(optax.sgd(learning_rate), graph),
            problem,
            args.learning_rates,
            steps=args.steps,
            seeds=args.seeds,
            seed=args.seed,
            progress=False,
        )
        if tuned:
            method = algorithms.decentralized_sgd(optax.sgd(tuned.learning_rate), graph)
            switch = common.Switch(args.latency, args.bandwidth)
            seconds = common.modelled_seconds(method, N, tuned.history, switch, args.batch_size * args.compute)
            histories[short(graph)] = {**tuned.history, "seconds": seconds}
    return histories


def target(histories: dict[str, dict[str, np.ndarray]]) -> float:
    """A loss that the complete graph reaches well before its end."""
    last = list(histories.values())[-1]["loss"]
    return SLACK * float(dsgd.tail_mean(last).mean())


def describe(N: int, of_N: list[dsgd.Topology], measured: dict[str, float]) -> Table:
    """The graphs' numbers."""
    caption = "rho: of a round (of a schedule, the geometric mean).\nmeasured: from the decay of the consensus distance."
    table = Table(title=f"{N} workers: graphs", caption=f"{caption}\n1 %: rounds until at most that much disagreement is left.")
    table.add_column("graph", no_wrap=True)
    for heading in ("degree", "edges", "rho", "measured", "1 %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for graph in of_N:
        rho = (f"{value:.5f}" for value in (per_round(graph), measured[graph.name]))
        table.add_row(short(graph), str(graph.degree), str(len(graph.edges)), *rho, str(graph.mixing_time(0.01)))
    return table


def tabulate(args: Args, N: int, histories: dict[str, dict[str, dict[str, np.ndarray]]]) -> Table:
    """Cost to the target, for both partitions."""
    goals = {partition: target(runs) for partition, runs in histories.items()}
    switch = f"latency {args.latency:g} s, {args.bandwidth / 1e6:g} Mbit/s, {args.seeds} seeds"
    what = ", ".join(f"{goal:.2g} {partition}" for partition, goal in goals.items())
    caption = (
        "left: iid, right: by label. Mbit: sent and received per worker.\n-: not reached. Targets: 1.5 times where the complete graph ends."
    )
    table = Table(title=f"{N} workers: cost to loss {what}\n({switch})", caption=caption)
    table.add_column("graph", no_wrap=True)
    for heading in ("rounds", "Mbit", "s") * 2:
        table.add_column(heading, justify="right", no_wrap=True)
    for name in histories["iid"]:
        cells = [cell for partition, goal in goals.items() for cell in costs(histories[partition].get(name), goal)]
        table.add_row(name, *cells)
    return table


def costs(history: dict[str, np.ndarray] | None, goal: float) -> list[str]:
    at = None if history is None else common.first_reaching(history["loss"], goal)
    if history is None or at is None:
        return ["-"] * 3
    return [f"{history['step'][at]:,}", f"{history['bits'][:, at].mean() / 1e6:.3g}", f"{history['seconds'][:, at].mean():.3g}"]


def ring_gaps(rings: list[dsgd.Topology], measured: dict[str, float]) -> Table:
    """1 - rho of rings beside what the survey prints, and what it should have printed."""
    table = Table(title="rings: 1 - rho", caption="for large N, rho is 1 - 4 pi^2/(3N^2); the survey\nprints 1 - 16 pi^2/(3N^2)")
    for heading in ("N", "computed", "measured", "4 pi^2/(3N^2)", "16 pi^2/(3N^2)"):
        table.add_column(heading, justify="right", no_wrap=True)
    for ring in rings:
        right = 4 * math.pi**2 / (3 * ring.n**2)
        gaps = (ring.spectral_gap, 1 - measured[ring.name], right, 4 * right)
        table.add_row(str(ring.n), *(f"{gap:.3e}" for gap in gaps))
    return table


def draw(args: Args, N: int, of_N: list[dsgd.Topology], histories: dict[str, dict[str, dict[str, np.ndarray]]]) -> Figure:
    """The graphs; below them loss and consensus distance, a row for each partition."""
    sheet = Figure(figsize=(18, 13), layout="constrained")
    above, below = sheet.subfigures(2, 1, height_ratios=(5, 8), squeeze=False)[:, 0]
    strip = above.subplots(2, math.ceil(len(of_N) / 2), squeeze=False).ravel()
    for axes, graph in zip(strip, of_N, strict=False):
        topologies.draw(graph, axes)
    for axes in strip[len(of_N) :]:
        axes.set_axis_off()
    panels = common.panels(below, 4, 2, sharey=False)
    xs: list[tuple[str, Callable]] = [
        ("rounds", lambda history: history["step"].astype(float)),
        ("megabits sent and received per worker", lambda history: history["bits"].mean(axis=0) / 1e6),
        ("modelled seconds", lambda history: history["seconds"].mean(axis=0)),
    ]
    for row, (partition, runs) in zip(panels.reshape(2, 4), histories.items(), strict=True):
        for axes, (label, x) in zip(row, [*xs, xs[0]], strict=True):
            what = "consensus" if axes is row[-1] else "loss"
            if label != "rounds":
                axes.set_xscale("log")
            shown = {name: history for name, history in runs.items() if what == "loss" or history[what].max() > 1e-9}
            since = 0 if what == "loss" else 1  # at the start everybody agrees
            common.draw_lines(axes, {name: (x(history)[since:], history[what][:, since:]) for name, history in shown.items()})
            axes.set(xlabel=label, yscale="log", title=partition)
            axes.set_ylabel("loss f(mean x)" if what == "loss" else "consensus distance")
            if what == "loss":
                axes.axhline(target(runs), color="0.4", linewidth=0.8)
                common.plain_log(axes.yaxis)
    handles, labels = panels[0].get_legend_handles_labels()
    below.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 6), frameon=False)
    switch = f"{args.latency * 1e3:g} ms latency, {args.bandwidth / 1e6:g} Mbit/s"
    common.title(
        sheet, f"decentralized SGD, {args.data}, {N} workers, {switch}; bands: standard error over {args.seeds} seeds; grey: target"
    )
    return sheet


if __name__ == "__main__":
    main(tyro.cli(Args))
