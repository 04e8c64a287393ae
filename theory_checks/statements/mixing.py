r"""Spectral facts of the graphs: closed forms of $\rho$, and that gossip shrinks disagreement by it.

Circulant matrices have the eigenvalues $\sum_j W_{0j} e^{2\pi i jk/N}$. With Metropolis weights:

- complete: $\rho = 0$. Ring, N >= 3: $\max_k |1 + 2\cos(2\pi k/N)| / 3$, about $1 - 4\pi^2/(3N^2)$. Torus, both sides >= 3:
  $\max |1 + 2\cos a + 2\cos b| / 5$. Chain, N >= 3: $(1 + 2\cos(\pi/N)) / 3$. Hypercube of dimension k: $(k - 1)/(k + 1)$. Star: $1 - 1/N$.
- For a symmetric W, $|W^t x - \bar x| \le \rho^t |x - \bar x|$, reached by an eigenvector.
- Two workers with W = [[a, 1 - a], [1 - a, a]] have the eigenvalue 2a - 1, which is negative for a < 1/2: $\rho = |2a - 1|$. Who
  takes the mean of all others has $-1/(N - 1)$. A directed ring on which everybody keeps a: $\rho = \max_k |a + (1 - a) e^{2\pi i k/N}|$.
- W from its graph: on an edge $1/(1 + \max(d_i, d_j))$ (Metropolis), half of that (lazy), $1/(1 + \max_k d_k)$ (max_degree), and
  $1/(1 + d_j)$ of what j sends (uniform); the rest of each column is its own.
- A round of gossip is $x_i \leftarrow \sum_j W_{ij} x_j$ (5.2): of the identity it is W, whatever W is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import networkx as nx
import numpy as np
from jax.sharding import PartitionSpec as P

import topologies
from dsgd import workers
from dsgd.graphs.topology import Topology
from theory_checks.machinery import instances
from theory_checks.machinery.statement import Draws, Outcome, Statement
from theory_checks.recursions import graphs


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


SWAP = np.array([[0.1, 0.9], [0.9, 0.1]])


def directed_ring(n: int, own: float) -> np.ndarray:
    """Everybody keeps a share, and sends the rest to the next one: neither symmetric nor, where it is not a half, its own transpose's."""
    return own * np.eye(n) + (1 - own) * graphs.around(n, 1)


def negative() -> list[Outcome]:
    """Graphs whose second largest eigenvalue in absolute value is negative, or not real; and a schedule that ends with the exact mean."""
    n, peers_of_8 = 5, topologies.one_peer_exponential(8)
    pairs = {
        "swap": (SWAP, 0.8),
        "all but oneself": ((1 - np.eye(n)) / (n - 1), 1 / (n - 1)),
        "hub of two": (np.array([[0, 1 / 2, 1 / 2], [1 / 2, 1 / 4, 1 / 4], [1 / 2, 1 / 4, 1 / 4]]), 1 / 2),  # eigenvalues 1, 0, -1/2
        "directed ring": (directed_ring(n, 0.25), max(abs(0.25 + 0.75 * np.exp(2j * math.pi * k / n)) for k in range(1, n))),
    }
    graphs = [(topologies.from_matrix(W, name), rho) for name, (W, rho) in pairs.items()]
    return [Outcome(graph.rho, rho, case=graph.name, equality=True, scale=1.0) for graph, rho in (*graphs, (peers_of_8, 0.0))]


def ring_gap(draws: Draws) -> list[Outcome]:
    r"""The ring's gap is at most $4\pi^2/(3N^2)$, which it approaches: $1 - \cos u \le u^2/2$."""
    return of_ring(draws.integer(6, 1024))  # below, another eigenvalue is larger in absolute value


def of_ring(n: int) -> list[Outcome]:
    """Of n workers."""
    return [Outcome(topologies.ring(n).spectral_gap, 4 * math.pi**2 / (3 * n**2), case=f"ring({n})", scale=1e-3)]


def gossip(draws: Draws) -> list[Outcome]:
    """Rounds of the project's gossip from a random start, or from the slowest eigenvector."""
    topology = draws.choice(instances.graphs())
    rounds = draws.integer(1, 30)
    random = np.random.default_rng(draws.integer(0, 2**32 - 1)).normal(size=topology.n)
    return _shrinks(topology, draws.choice((_slowest(topology), random)), rounds, workers.mix)


def _slowest(topology: Topology) -> np.ndarray:
    values, vectors = np.linalg.eigh(topology.W)
    return vectors[:, np.argsort(np.abs(values))[-2]]


def alternating(mix: Callable[..., Any] = workers.mix) -> list[Outcome]:
    """Two workers who swap most of what they have: one round takes (1, -1) to -0.8 of it, and rho is 0.8."""
    return _shrinks(topologies.from_matrix(SWAP, "swap"), np.array([1.0, -1.0]), 3, mix)


def slowest(mix: Callable[..., Any] = workers.mix) -> list[Outcome]:
    """From slowest eigenvectors: the bound is reached."""
    return [outcome for topology in instances.graphs() for outcome in _shrinks(topology, _slowest(topology), 3, mix)]


def _shrinks(topology: Topology, x: np.ndarray, rounds: int, mix: Callable[..., Any]) -> list[Outcome]:
    after = np.asarray(_gossip(topology, mix)(jnp.asarray(x), jnp.int32(rounds)))
    apart, before = (float(np.linalg.norm(y - y.mean())) for y in (after, x))
    case = f"{topology.name}, {rounds} rounds"
    kept = Outcome(float(after.mean()), float(x.mean()), case=f"{case}, mean", equality=True, scale=1.0)
    return [Outcome(apart, topology.rho**rounds * before, case=case, scale=1e-6), kept]


@cache
def _gossip(topology: Topology, mix: Callable[..., Any]) -> Callable[..., Any]:
    def mixed(x, rounds):
        return jax.lax.fori_loop(0, rounds, lambda t, x: mix(x, topology, t), x)

    return _on_one_device(mixed)


def _on_one_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of a block, and of a number that is the same for all."""
    one: Any = P(workers.AXIS)
    everywhere: Any = P()
    specs = {"in_specs": (one, everywhere), "out_specs": one}
    return jax.jit(jax.shard_map(function, mesh=workers.mesh(1), check_vma=False, **specs))


# --- Weights and rounds.


def weights(draws: Draws) -> list[Outcome]:
    """Of a random graph."""
    n = draws.integer(2, 8)
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    chain = np.eye(n, k=1)  # so that it is connected
    A = np.maximum(chain, np.triu(rng.random((n, n)) < draws.real(0.0, 1.0), 1))
    return of_graph(draws.choice(graphs.WEIGHTS), A + A.T, topologies.WEIGHTS)


def of_graph(name: str, A: np.ndarray, all_weights: dict[str, Callable[[Any], Any]] = topologies.WEIGHTS) -> list[Outcome]:
    """The matrix that the project makes of it."""
    off = float(np.abs(topologies.from_graph(nx.Graph(A), all_weights[name]).W - graphs.weighted(name, A)).max())
    return [Outcome(off, 0.0, case=f"{name}, {len(A)} workers", equality=True, scale=1.0)]


TADPOLE = graphs.edges(5, [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4)])  # degrees 2, 2, 3, 2, 1: all weights differ


def sent_on(kind: str, mix: Callable[..., Any] = workers.mix) -> list[Outcome]:
    """What each round makes of the identity: its matrix; and the one after the last, which is the first again."""
    topology, rounds = gossip_on(kind)
    step, x = _step(topology, mix), np.eye(topology.n)
    found = []
    for t in range(len(rounds) + 1):
        off = np.abs(np.asarray(step(jnp.asarray(x), jnp.int32(t))) - rounds[t % len(rounds)])
        found.append(float(off.max()))
    return [Outcome(max(found), 0.0, case=f"{topology.name}, all rounds", equality=True, scale=1.0)]


@cache
def _step(topology: Topology, mix: Callable[..., Any]) -> Callable[..., Any]:
    return _on_one_device(lambda x, t: mix(x, topology, t))


PUSH = np.array([[0.5, 0.2, 0.1], [0.25, 0.5, 0.4], [0.25, 0.3, 0.5]])  # only its columns sum to 1


def _schedule() -> tuple[Topology, list[np.ndarray]]:
    back = PUSH.T / PUSH.sum(axis=1)[None, :]
    return Topology("schedule", [PUSH, back]), [PUSH, back]


# Made when they are asked for: where making one fails, the other statements are still to be tried.
GOSSIPS: dict[str, Callable[[], tuple[Topology, list[np.ndarray]]]] = {
    "push": lambda: (topologies.from_matrix(PUSH, "push"), [PUSH]),
    "directed ring": lambda: (topologies.from_matrix(directed_ring(5, 0.25), "directed ring"), [directed_ring(5, 0.25)]),
    "tadpole": lambda: (topologies.from_graph(nx.Graph(TADPOLE), name="tadpole"), [graphs.weighted("metropolis", TADPOLE)]),
    "two": lambda: (topologies.ring(2), [np.full((2, 2), 1 / 2)]),
    "complete": lambda: (topologies.complete(4), [np.full((4, 4), 1 / 4)]),
    "peers": lambda: (topologies.one_peer_exponential(6), graphs.one_peer(6)),
    "schedule": _schedule,
}
"""Graphs of all kinds, directed ones among them, and schedules; with what each round's matrix is to be."""


@cache
def gossip_on(kind: str) -> tuple[Topology, list[np.ndarray]]:
    """One of `GOSSIPS`: the same object each time, so that it is compiled once."""
    return GOSSIPS[kind]()


def product(draws: Draws) -> list[Outcome]:
    """A round of a random start."""
    topology, rounds = gossip_on(draws.choice(tuple(GOSSIPS)))
    t = draws.integer(0, 100)
    x = np.random.default_rng(draws.integer(0, 2**32 - 1)).normal(size=(topology.n, topology.n))
    off = np.asarray(_step(topology, workers.mix)(jnp.asarray(x), jnp.int32(t))) - rounds[t % len(rounds)] @ x
    return [Outcome(float(np.abs(off).max()), 0.0, case=f"{topology.name}, round {t}", equality=True, scale=1.0)]


# --- Sums over workers.

_ROWS, _LONG = 8, 5_000  # at least 4,096 elements: what CPUs add up as a product with ones
TYPES = (np.float64, np.float32, ml_dtypes.bfloat16)


def sums(draws: Draws) -> list[Outcome]:
    """Of random whole numbers, whose sums are exact in any order; halves are rounded once, at the end."""
    return of_rows(draws.choice(TYPES), np.random.default_rng(draws.integer(0, 2**32 - 1)).integers(-128, 128, (_ROWS, _LONG)))


def of_rows(
    dtype: Any, numbers: np.ndarray, sum: Callable[..., Any] = workers.sum, mean: Callable[..., Any] = workers.mean
) -> list[Outcome]:
    """Both sums, beside numpy's of whole numbers."""
    found = _totals(sum, mean)(jnp.asarray(numbers.astype(dtype)))
    total = numbers.sum(axis=0).astype(np.float32)
    right = (total.astype(dtype), (total / len(numbers)).astype(dtype))
    return [
        Outcome(
            float(np.abs(np.asarray(one, float) - other.astype(float)).max()), 0.0, case=f"{what}, {np.dtype(dtype).name}", equality=True
        )
        for what, one, other in zip(("sum", "mean"), found, right, strict=True)
    ]


@cache
def _totals(sum: Callable[..., Any], mean: Callable[..., Any]) -> Callable[..., Any]:
    one: Any = P(workers.AXIS)
    both = jax.shard_map(lambda x: (sum(x), mean(x)), mesh=workers.mesh(1), in_specs=one, out_specs=P(), check_vma=False)
    return jax.jit(both)


_NUMBERS = np.arange(_ROWS * _LONG).reshape(_ROWS, _LONG) % 255 - 127
STATEMENTS = [
    Statement("rho of graphs, closed forms", "section 5.2.1", "Metropolis weights", closed_form, [negative]),
    Statement("gap of the ring", "section 5.2.1", "weights of 1/3, N >= 6", ring_gap, [lambda: of_ring(1024)]),
    Statement(
        "gossip contracts by rho",
        "section 5.2.1",
        "W symmetric",
        gossip,
        [alternating, slowest],
    ),
    Statement(
        "weights of graphs",
        "section 5.2.1",
        "Metropolis, lazy, max-degree, uniform",
        weights,
        [partial(of_graph, name, TADPOLE) for name in graphs.WEIGHTS],
    ),
    Statement(
        "gossip is a product with W",
        "(5.2)",
        "directed graphs and schedules, too",
        product,
        [partial(sent_on, kind) for kind in GOSSIPS],
    ),
    Statement(
        "sums over workers",
        "section 2.1.2",
        "long rows; float64, float32, bfloat16",
        sums,
        [partial(of_rows, dtype, _NUMBERS) for dtype in TYPES],
    ),
]
