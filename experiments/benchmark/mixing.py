"""Seconds of one gossip round on sparse graphs, compared with the dense product with W and a copy
of the models.

    python -m experiments.benchmark mixing

A round must read the models once and write them once: the same as a copy. The dense product is the
obvious implementation that ignores the graph. Rounds are executed in a loop, as in a run; copies
are written to memory that is already allocated. All take turns; medians are reported.

A second table evaluates the choice between two implementations of the sums, by the time of a whole
round including gradients: row by row over a worker's neighbours, or as a product with all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from rich.table import Table

import dsgd
import topologies
from dsgd import records, workers, xla
from dsgd.workers import mixing as gossip
from dsgd.workers import routes
from experiments.benchmark import by_hand
from experiments.shared import commands, tables, timing


@dataclass(frozen=True)
class Args:
    """Times gossip rounds next to dense products and copies."""

    workers: commands.Count = 1024
    """Number of workers N."""
    dimension: commands.Count = 10_000
    """Elements d of a model."""
    repeats: commands.Count = 15
    """Timings of each program."""
    dimensions: tuple[commands.Count, ...] = (100, 1_000, 10_000, 100_000)
    """Elements d for which both implementations of the sums are timed, if all models together have
    at most 8 M elements.
    """
    out: Path = Path("results/benchmark/mixing")
    """Folder for config.json, mixing.csv, sums.csv and the tables."""


MOST = 8_000_000  # maximal number of elements of all models
LOOP = 10_000_000  # elements that are mixed in one timing of the sums
ROUNDS = 10  # rounds in one timing of the models of `Args`


def graphs_of_all_degrees() -> list[dsgd.Topology]:
    """Returns graphs with few to many neighbours."""
    regular = [
        (16, 10),
        (32, 14),
        (32, 18),
        (64, 10),
        (64, 20),
        (64, 32),
        (256, 16),
        (256, 32),
        (1024, 4),
        (1024, 32),
    ]
    others = [
        graph(n) for n in (16, 64, 256) for graph in (topologies.ring, topologies.exponential)
    ]
    return [
        *others,
        topologies.hypercube(6),
        *(topologies.random_regular(n, degree) for n, degree in regular),
    ]


def main(args: Args) -> None:
    commands.begin(args)
    graphs = [
        topologies.ring(args.workers),
        topologies.exponential(args.workers),
        topologies.random_regular(args.workers, 4),
    ]
    x = jax.random.normal(jax.random.key(0), (args.workers, args.dimension))
    programs = {"copy": timing.program(lambda x: x * np.float32(1.5), x)}
    for graph in graphs:
        programs[f"{graph.name} dense"] = timing.program(repeat_rounds(dense(graph), ROUNDS), x)
        programs[graph.name] = timing.program(repeat_rounds(mixing(graph), ROUNDS), x)
    taken = timing.time_in_turn(programs, args.repeats)
    rows = [make_row(graph, taken) for graph in graphs]
    sums = [
        (graph, [rows_over_product(graph, d, args.repeats) for d in args.dimensions])
        for graph in graphs_of_all_degrees()
    ]
    records.write_rows(
        args.out / "mixing.csv",
        ("graph", "degree", "seconds", "dense", "times faster", "of copy"),
        rows,
    )
    heading = ("graph", "degree", "chosen", *map(str, args.dimensions))
    records.write_rows(
        args.out / "sums.csv",
        heading,
        [(graph.name, graph.degree, kind(graph), *ratios) for graph, ratios in sums],
    )
    copied = 8 * x.size / float(np.median(taken["copy"])) / 1e9
    commands.finish(
        args,
        {},
        {"mixing_table": tabulate(args, rows, copied), "sums_table": tabulate_sums(args, sums)},
    )


def repeat_rounds(
    once: Callable[[jax.Array], jax.Array], rounds: int
) -> Callable[[jax.Array], jax.Array]:
    """Returns a program with an even number of rounds, two per iteration of a loop: after two
    rounds, the state is in its original buffer. After one round XLA would copy it, which does not
    happen in a run.
    """
    return lambda x: jax.lax.fori_loop(0, rounds // 2, lambda _, x: once(once(x)), x)


def kind(graph: dsgd.Topology) -> str:
    """Returns the implementation of the sums that a round on one device uses."""
    return "product" if routes.routes_of(graph, 1).places is None else "rows"


def rows_over_product(graph: dsgd.Topology, d: int, repeats: int) -> float:
    """Returns the time of rounds with sums row by row over that with the product; NaN if the models
    are too large.
    """
    if graph.n * d > MOST:
        return float("nan")
    x, A, b = jax.random.uniform(jax.random.key(0), (3, graph.n, d))
    rounds = 2 * max(1, LOOP // (2 * graph.n * d))
    programs = {}
    for name, rows in (("rows", True), ("product", False)):
        plan = routes.routes_of(graph, 1, rows)
        programs[name] = timing.program(
            lambda x, A, b, plan=plan: repeat_rounds(partial(step_and_mix, plan, A, b), rounds)(x),
            x,
            A,
            b,
        )
    taken = timing.time_in_turn(programs, repeats)
    return float(np.median(taken["rows"] / taken["product"]))


def step_and_mix(plan: routes.Routes, A: jax.Array, b: jax.Array, x: jax.Array) -> jax.Array:
    """Returns a round of DSGD on quadratics, with one implementation of the sums."""
    x = xla.materialize(x - by_hand.LEARNING_RATE * (A * x - b))  # in memory, as in `mix`
    return gossip.add_neighbours(plan, (0, 0), x, x, onto=True)


def mixing(graph: dsgd.Topology) -> Callable[[jax.Array], jax.Array]:
    """Returns a gossip round as in methods, on one device."""
    return jax.shard_map(
        lambda x: workers.mix(x, graph),
        mesh=workers.mesh(1),
        in_specs=P(workers.AXIS),
        out_specs=P(workers.AXIS),
        check_vma=False,
    )


def dense(graph: dsgd.Topology) -> Callable[[jax.Array], jax.Array]:
    """Returns a gossip round as a product with the dense matrix W."""
    W = np.asarray(graph.W, np.float32)
    return lambda x: jnp.matmul(W, x, precision=jax.lax.Precision.HIGHEST)


def make_row(
    graph: dsgd.Topology, taken: dict[str, np.ndarray]
) -> tuple[str, int, float, float, float, float]:
    """Returns a row: medians of times, and of ratios over pairs of timings."""
    mix, product, copy = (
        taken[graph.name] / ROUNDS,
        taken[f"{graph.name} dense"] / ROUNDS,
        taken["copy"],
    )
    seconds, dense, faster, share = (
        float(np.median(values)) for values in (mix, product, product / mix, copy / mix)
    )
    return graph.name, graph.degree, seconds, dense, faster, share


def tabulate(args: Args, rows: list[tuple], copied: float) -> Table:
    """Tabulates one row per graph.

    Args:
        args, rows: arguments and results.
        copied: throughput of a copy, GB/s.
    """
    table = tables.table(
        f"a gossip round, {args.workers:,} workers x {args.dimension:,} elements (medians)",
        ("graph", "degree", "ms", "dense, ms", "faster", "of copy"),
        f"of copy: share of the throughput of a copy, {copied:.3g} GB/s, if a round only\nread "
        "and wrote the models once",
    )
    for name, degree, mix, product, faster, share in rows:
        table.add_row(
            name,
            str(degree),
            f"{mix * 1e3:.2f}",
            f"{product * 1e3:.1f}",
            f"{faster:.1f} x",
            f"{share:.2f}",
        )
    return table


def tabulate_sums(args: Args, sums: list[tuple[dsgd.Topology, list[float]]]) -> Table:
    """Tabulates one row per graph."""
    table = tables.table(
        "time of a round of DSGD with sums row by row / with a product,\nby elements of a model "
        "(medians)",
        ("graph", "deg", "sums", *(f"{d:,}" for d in args.dimensions)),
        "below 1: sums row by row are faster. sums: implementation that a round uses,\nfor any "
        "size of the model.",
    )
    for graph, ratios in sums:
        does = "rows" if kind(graph) == "rows" else "all"
        table.add_row(
            graph.name,
            str(graph.degree),
            does,
            *("" if np.isnan(ratio) else f"{ratio:.2f}" for ratio in ratios),
        )
    return table
