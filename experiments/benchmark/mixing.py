"""Seconds of one gossip round on sparse graphs, beside the dense product with W and a copy of the models.

    python -m experiments.benchmark mixing

A round must read the models once and write them once: what a copy does. The dense product is what one writes without thinking about
the graph. All are compiled programs that write into memory which is there already, and take turns; medians are reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from rich.table import Table

import dsgd
import topologies
from dsgd import records, workers
from experiments import common


@dataclass(frozen=True)
class Args:
    """Times gossip rounds on one device beside dense products and copies."""

    workers: int = 1024
    """Number of workers N."""
    dimension: int = 10_000
    """Elements d of a model."""
    repeats: int = 15
    """Timings of each program."""
    out: Path = field(default=Path("results/benchmark/mixing"))
    """Folder for config.json and mixing.csv."""


def main(args: Args) -> None:
    args.out.mkdir(parents=True, exist_ok=True)  # fails now, not after the work
    graphs = [topologies.ring(args.workers), topologies.exponential(args.workers), topologies.random_regular(args.workers, 4)]
    x = jax.random.normal(jax.random.key(0), (args.workers, args.dimension))
    programs = {"copy": common.program(lambda x: x * np.float32(1.5), x)}
    for graph in graphs:
        programs[f"{graph.name} dense"] = common.program(dense(graph), x)
        programs[graph.name] = common.program(mixing(graph), x)
    taken = {name: [] for name in programs}
    for _ in range(args.repeats):
        for name, run in programs.items():
            taken[name].append(common.seconds(run))
    rows = [measured(graph, {name: np.array(values) for name, values in taken.items()}) for graph in graphs]
    records.write_config(args.out / "config.json", args)
    records.write_rows(args.out / "mixing.csv", ("graph", "degree", "seconds", "dense", "times faster", "of copy"), rows)
    common.console().print(tabulate(args, rows, 8 * x.size / float(np.median(taken["copy"])) / 1e9))


def mixing(graph: dsgd.Topology) -> Callable[[jax.Array], jax.Array]:
    """A gossip round as methods make it, on one device."""
    return jax.shard_map(
        lambda x: workers.mix(x, graph), mesh=workers.mesh(1), in_specs=P(workers.AXIS), out_specs=P(workers.AXIS), check_vma=False
    )


def dense(graph: dsgd.Topology) -> Callable[[jax.Array], jax.Array]:
    """The same as a product."""
    W = np.asarray(graph.W, np.float32)
    return lambda x: jnp.matmul(W, x, precision=jax.lax.Precision.HIGHEST)


def measured(graph: dsgd.Topology, taken: dict[str, np.ndarray]) -> tuple[str, int, float, float, float, float]:
    """A row: medians, of ratios over pairs of timings."""
    mix, product, copy = taken[graph.name], taken[f"{graph.name} dense"], taken["copy"]
    seconds, dense, faster, share = (float(np.median(values)) for values in (mix, product, product / mix, copy / mix))
    return graph.name, graph.degree, seconds, dense, faster, share


def tabulate(args: Args, rows: list[tuple], copied: float) -> Table:
    caption = f"of copy: share of the rate of a copy, {copied:.3g} GB/s, as if only reading\nand writing the models once were needed"
    table = Table(title=f"a gossip round, {args.workers:,} workers x {args.dimension:,} elements (medians)", caption=caption)
    table.add_column("graph", no_wrap=True)
    for heading in ("degree", "ms", "dense, ms", "faster", "of copy"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, degree, mix, product, faster, share in rows:
        table.add_row(name, str(degree), f"{mix * 1e3:.2f}", f"{product * 1e3:.1f}", f"{faster:.1f} x", f"{share:.2f}")
    return table
