r"""Spectral facts of the graphs: closed forms of $\rho$, and that gossip shrinks disagreement by it.

Circulant matrices have the eigenvalues $\sum_j W_{0j} e^{2\pi i jk/N}$. With Metropolis weights:

- complete: $\rho = 0$. Ring, N >= 3: $\max_k |1 + 2\cos(2\pi k/N)| / 3$, about $1 - 4\pi^2/(3N^2)$. Torus, both sides >= 3:
  $\max |1 + 2\cos a + 2\cos b| / 5$. Chain, N >= 3: $(1 + 2\cos(\pi/N)) / 3$. Hypercube of dimension k: $(k - 1)/(k + 1)$. Star: $1 - 1/N$.
- For a symmetric W, $|W^t x - \bar x| \le \rho^t |x - \bar x|$, reached by an eigenvector.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import topologies
from dsgd import workers
from dsgd.graphs.topology import Topology
from theory_checks.machinery import instances
from theory_checks.machinery.statement import Draws, Outcome, Statement


def _ring(n: int) -> float:
    return max(abs(1 + 2 * math.cos(2 * math.pi * k / n)) / 3 for k in range(1, n))


def _torus(rows: int, columns: int) -> float:
    angles = [(2 * math.pi * i / rows, 2 * math.pi * j / columns) for i in range(rows) for j in range(columns)]
    return max(abs(1 + 2 * math.cos(a) + 2 * math.cos(b)) / 5 for a, b in angles[1:])


def closed_form(draws: Draws) -> list[Outcome]:
    """One graph."""
    kind = draws.choice(("complete", "ring", "torus", "chain", "hypercube", "star"))
    n, k = draws.integer(3, 200), draws.integer(1, 7)
    rows, columns = draws.integer(3, 12), draws.integer(3, 12)
    made: tuple[Topology, float] = {
        "complete": lambda: (topologies.complete(n), 0.0),
        "ring": lambda: (topologies.ring(n), _ring(n)),
        "torus": lambda: (topologies.torus(rows, columns), _torus(rows, columns)),
        "chain": lambda: (topologies.chain(n), (1 + 2 * math.cos(math.pi / n)) / 3),
        "hypercube": lambda: (topologies.hypercube(k), (k - 1) / (k + 1)),
        "star": lambda: (topologies.star(n), 1 - 1 / n),
    }[kind]()
    return [Outcome(made[0].rho, made[1], case=made[0].name, equality=True, scale=1.0)]


def ring_gap(draws: Draws) -> list[Outcome]:
    r"""The ring's gap is at most $4\pi^2/(3N^2)$, which it approaches: $1 - \cos u \le u^2/2$."""
    n = draws.integer(6, 1024)  # below, another eigenvalue is larger in absolute value
    return [Outcome(topologies.ring(n).spectral_gap, 4 * math.pi**2 / (3 * n**2), case=f"ring({n})", scale=1e-3)]


def gossip(draws: Draws) -> list[Outcome]:
    """Rounds of the project's gossip from a random start, or from the slowest eigenvector."""
    topology = draws.choice(instances.graphs())
    rounds = draws.integer(1, 30)
    values, vectors = np.linalg.eigh(topology.W)
    slowest = vectors[:, np.argsort(np.abs(values))[-2]] if topology.n > 1 else vectors[:, 0]
    random = np.random.default_rng(draws.integer(0, 2**32 - 1)).normal(size=topology.n)
    x = draws.choice((slowest, random))
    after = np.asarray(_gossip(topology)(jnp.asarray(x), jnp.int32(rounds)))
    apart, before = (float(np.linalg.norm(y - y.mean())) for y in (after, x))
    case = f"{topology.name}, {rounds} rounds"
    kept = Outcome(float(after.mean()), float(x.mean()), case=f"{case}, mean", equality=True, scale=1.0)
    return [Outcome(apart, topology.rho**rounds * before, case=case, scale=1e-6), kept]


@cache
def _gossip(topology: Topology) -> Callable[..., Any]:
    def mixed(x, rounds):
        return jax.lax.fori_loop(0, rounds, lambda t, x: workers.mix(x, topology, t), x)

    one: Any = P(workers.AXIS)
    everywhere: Any = P()
    return jax.jit(jax.shard_map(mixed, mesh=workers.mesh(1), in_specs=(one, everywhere), out_specs=one, check_vma=False))


STATEMENTS = [
    Statement("rho of graphs, closed forms", "section 5.2.1", "Metropolis weights", closed_form),
    Statement("gap of the ring", "section 5.2.1", "weights of 1/3, N >= 6", ring_gap),
    Statement("gossip contracts by rho", "section 5.2.1", "W symmetric", gossip),
]
