"""Amelie SGD: Malenia on a graph."""

from __future__ import annotations

import optax

import topologies
from algorithms.asynchronous.malenia_sgd import collection
from algorithms.facts import method
from algorithms.mechanisms.pivots import pivot_steps
from dsgd import Algorithm, Topology, checks


@method(
    sends="gradients to the pivot along shortest paths, models back after each step",
    exact="any data",
    needs=("columns of W sum to 1", "one W", "all workers"),
    paper="Amelie SGD: Tyurin and Richtárik, 2024",
    page="how_to/clusters/asynchronous.md",
    aliases=("amelie",),
    graph=topologies.ring,
    settings={"batch": 3.5},
)
@checks.arguments
def amelie_sgd(
    optimizer: optax.GradientTransformation,
    topology: Topology,
    batch: float,
    pivot: int | None = None,
) -> Algorithm:
    r"""Amelie SGD: one worker of a graph, the pivot, makes a step with the mean over workers of the
    means of their gradients at its current model, when their numbers are large enough.

    $$ x_{k+1} = x_k - \frac{\gamma}{N} \sum_n \frac{1}{B_n} \sum_{b=1}^{B_n} g_{nb}(x_k), \qquad
       \Big(\frac1N \sum_n \frac1{B_n}\Big)^{-1} \ge \frac{S}{N} $$

    Workers may have different data: $S = \max(1, \lceil \sigma^2/\epsilon \rceil)$ and
    $\gamma = 1/(2L)$ reach $E|f'|^2 \le \epsilon$ in optimal time. Paths, times, messages and the
    history are those of `fragile_sgd`. Without a network, it is `malenia_sgd`.

    Args:
        optimizer: the pivot's step; `optax.sgd(gamma)` gives the equation.
        topology, pivot: as in `fragile_sgd`.
        batch: S, greater than 0. With S <= N a step waits for one gradient of each worker.

    Raises:
        ValueError: if the batch is not greater than 0, the topology is a schedule, or the pivot is
            not one of its workers.

    Source: Tyurin and Richtarik, "On the optimal time complexities in decentralized stochastic
    asynchronous optimization", 2024, Amelie SGD.
    """
    batch = checks.number("amelie_sgd: batch", batch, "(0, inf)")
    name = f"amelie_sgd({topology.name}, {batch:g}{'' if pivot is None else f', pivot={pivot}'})"
    return pivot_steps(name, optimizer, topology, pivot, *collection(optimizer, batch))
