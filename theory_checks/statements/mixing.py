r"""Spectra of the graphs: closed forms of $\rho$, and the contraction of disagreement by gossip.

Circulant matrices have the eigenvalues $\sum_j W_{0j} e^{2\pi i jk/N}$. With Metropolis weights:

- Complete: $\rho = 0$. Ring, N >= 3: $\max_k |1 + 2\cos(2\pi k/N)| / 3$, about $1 - 4\pi^2/(3N^2)$.
  Torus, both sides >= 3: $\max |1 + 2\cos a + 2\cos b| / 5$. Chain, N >= 3:
  $(1 + 2\cos(\pi/N)) / 3$. Hypercube of dimension k: $(k - 1)/(k + 1)$. Star: $1 - 1/N$.
- For a symmetric W, $|W^t x - \bar x| \le \rho^t |x - \bar x|$, which is attained by an
  eigenvector.
- Two workers with W = [[a, 1 - a], [1 - a, a]] have the eigenvalue 2a - 1, which is negative for
  a < 1/2: $\rho = |2a - 1|$. If every worker takes the mean of all others, W has the eigenvalue
  $-1/(N - 1)$. A directed ring on which every worker keeps the fraction a has
  $\rho = \max_k |a + (1 - a) e^{2\pi i k/N}|$.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import topologies
from dsgd import workers
from dsgd.graphs.topology import Topology
from theory_checks.machinery import instances, mixing_matrices
from theory_checks.machinery.rounds import place_on_one_device
from theory_checks.machinery.statement import Draws, Outcome, Statement


def _ring(n: int) -> float:
    return max(abs(1 + 2 * math.cos(2 * math.pi * k / n)) / 3 for k in range(1, n))


def _torus(rows: int, columns: int) -> float:
    angles = [
        (2 * math.pi * i / rows, 2 * math.pi * j / columns)
        for i in range(rows)
        for j in range(columns)
    ]
    return max(abs(1 + 2 * math.cos(a) + 2 * math.cos(b)) / 5 for a, b in angles[1:])


def closed_form(draws: Draws) -> list[Outcome]:
    """Checks rho of a random graph against its closed form."""
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


SWAP = np.array([[0.1, 0.9], [0.9, 0.1]])


def directed_ring(n: int, own: float) -> np.ndarray:
    """Returns the W of a directed ring on which every worker keeps the fraction `own` and sends the
    rest to the next one. It is not symmetric and, unless `own` is 1/2, not a shift of its
    transpose.
    """
    return own * np.eye(n) + (1 - own) * mixing_matrices.circulant(n, 1)


def negative() -> list[Outcome]:
    """Checks graphs whose second largest eigenvalue in absolute value is negative or complex, and a
    schedule that ends with the exact mean.
    """
    n, peers_of_8 = 5, topologies.one_peer_exponential(8)
    pairs = {
        "swap": (SWAP, 0.8),
        "all but oneself": ((1 - np.eye(n)) / (n - 1), 1 / (n - 1)),
        # eigenvalues 1, 0, -1/2
        "hub of two": (
            np.array([[0, 1 / 2, 1 / 2], [1 / 2, 1 / 4, 1 / 4], [1 / 2, 1 / 4, 1 / 4]]),
            1 / 2,
        ),
        "directed ring": (
            directed_ring(n, 0.25),
            max(abs(0.25 + 0.75 * np.exp(2j * math.pi * k / n)) for k in range(1, n)),
        ),
    }
    graphs = [(topologies.from_matrix(W, name), rho) for name, (W, rho) in pairs.items()]
    return [
        Outcome(graph.rho, rho, case=graph.name, equality=True, scale=1.0)
        for graph, rho in (*graphs, (peers_of_8, 0.0))
    ]


def ring_gap(draws: Draws) -> list[Outcome]:
    r"""Checks that the spectral gap of the ring is at most $4\pi^2/(3N^2)$, since $1 - \cos u \le
    u^2/2$; it converges to this value.
    """
    # For N < 6 another eigenvalue is larger in absolute value.
    return gap_of_ring(draws.integer(6, 1024))


def gap_of_ring(n: int) -> list[Outcome]:
    """Checks the spectral gap of the ring of n workers."""
    return [
        Outcome(
            topologies.ring(n).spectral_gap,
            4 * math.pi**2 / (3 * n**2),
            case=f"ring({n})",
            scale=1e-3,
        )
    ]


def gossip(draws: Draws) -> list[Outcome]:
    """Checks rounds of the project's gossip, from random values or from the slowest eigenvector."""
    topology = draws.choice(instances.graphs())
    rounds = draws.integer(1, 30)
    random = np.random.default_rng(draws.integer(0, 2**32 - 1)).normal(size=topology.n)
    return _shrinks(topology, draws.choice((_slowest(topology), random)), rounds)


def _slowest(topology: Topology) -> np.ndarray:
    values, vectors = np.linalg.eigh(topology.W)
    return vectors[:, np.argsort(np.abs(values))[-2]]


def alternating() -> list[Outcome]:
    """Checks two workers that swap most of their values: one round multiplies (1, -1) by -0.8, and
    rho is 0.8.
    """
    return _shrinks(topologies.from_matrix(SWAP, "swap"), np.array([1.0, -1.0]), 3)


def slowest() -> list[Outcome]:
    """Checks runs from the slowest eigenvectors, with which the bound is attained."""
    return [
        outcome
        for topology in instances.graphs()
        for outcome in _shrinks(topology, _slowest(topology), 3)
    ]


def _shrinks(topology: Topology, x: np.ndarray, rounds: int) -> list[Outcome]:
    after = np.asarray(_gossip(topology)(jnp.asarray(x), jnp.int32(rounds)))
    disagreement, before = (float(np.linalg.norm(y - y.mean())) for y in (after, x))
    case = f"{topology.name}, {rounds} rounds"
    mean = Outcome(
        float(after.mean()), float(x.mean()), case=f"{case}, mean", equality=True, scale=1.0
    )
    return [Outcome(disagreement, topology.rho**rounds * before, case=case, scale=1e-6), mean]


@cache
def _gossip(topology: Topology) -> Callable[..., Any]:
    def mix_rounds(x, rounds):
        return jax.lax.fori_loop(0, rounds, lambda t, x: workers.mix(x, topology, t), x)

    return jax.jit(place_on_one_device(mix_rounds))


STATEMENTS = [
    Statement(
        "rho of graphs, closed forms",
        "section 5.2.1",
        "Metropolis weights",
        closed_form,
        [negative],
    ),
    Statement(
        "spectral gap of the ring",
        "section 5.2.1",
        "weights of 1/3, N >= 6",
        ring_gap,
        [lambda: gap_of_ring(1024)],
    ),
    Statement(
        "gossip contracts by rho",
        "section 5.2.1",
        "W symmetric",
        gossip,
        [alternating, slowest],
    ),
]
