"""What gossip alone does to disagreement: rho as measured from the decay of the consensus distance, beside rho as computed."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from rich.table import Table

import dsgd
from dsgd import workers


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


def describe(N: int, of_N: list[dsgd.Topology], measured: dict[str, float]) -> Table:
    """The graphs' numbers."""
    caption = (
        "edges: one-way where the graph is directed; of all rounds.\nrho: of a round (of a schedule, the geometric mean).\n"
        "measured: from the decay of the consensus distance.\n1 %: rounds until at most that much disagreement is left."
    )
    table = Table(title=f"{N} workers: graphs", caption=caption)
    table.add_column("graph", no_wrap=True)
    for heading in ("degree", "edges", "rho", "measured", "1 %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for graph in of_N:
        rho = (f"{value:.5f}" for value in (per_round(graph), measured[graph.name]))
        table.add_row(short(graph), str(graph.degree), str(len(graph.edges)), *rho, str(graph.mixing_time(0.01)))
    return table


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
