"""Fragile SGD: Rennala on a graph."""

from __future__ import annotations

import optax

import topologies
from algorithms.asynchronous.rennala_sgd import collection
from algorithms.facts import method
from algorithms.mechanisms.pivots import pivot_steps
from dsgd import Algorithm, Topology, checks


@method(
    sends="gradients to the pivot along shortest paths, models back after each step",
    needs=("columns of W sum to 1", "one W", "all workers"),
    paper="Fragile SGD: Tyurin and Richtárik, 2024",
    page="how_to/clusters/asynchronous.md",
    aliases=("fragile",),
    graph=topologies.ring,
    settings={"batch": 3},
)
@checks.arguments
def fragile_sgd(
    optimizer: optax.GradientTransformation,
    topology: Topology,
    batch: int,
    pivot: int | None = None,
) -> Algorithm:
    r"""Fragile SGD: one worker of a graph, the pivot, makes a step with the mean of the first B
    gradients that reach it and were computed at its current model, by any workers.

    $$ x_{k+1} = x_k - \frac{\gamma}{B} \sum_{b=1}^B g_b(x_k) $$

    Worker i's gradient reaches the pivot j after $\tau_{i \to j}$ seconds, and a new model reaches
    worker i after $\tau_{j \to i}$ seconds; these are the lengths of shortest paths, on which each
    link takes the latency and the time of one vector at the bandwidths of its two ports when the
    run begins. On the way, gradients and models that meet on a link are added up or sent once, so
    that no message waits for another; each gradient is counted as a message of its own, also if it
    is ignored. A worker computes without pause, at the last model that it has received, and
    finishes each gradient.

    For workers with equal data, $B = \max(1, \lceil \sigma^2/\epsilon \rceil)$ and
    $\gamma = 1/(2L)$ reach $E|f'|^2 \le \epsilon$ after $16 L \Delta / \epsilon$ steps, in optimal
    time up to a logarithmic factor if j is the best pivot. A round is one gradient that reaches
    the pivot; the history has its `worker`, whether it `counted`, and `server_steps`. Without a
    network, it is `rennala_sgd`.

    Args:
        optimizer: the pivot's step; `optax.sgd(gamma)` gives the equation.
        topology: determines the links, which may be directed; its weights are not used.
        batch: B, the number of gradients of a step.
        pivot: j; None: the centre of the graph, the worker with the smallest largest number of
            links to another worker and back (of several, the first).

    Raises:
        ValueError: if the batch is less than 1, the topology is a schedule, or the pivot is not one
            of its workers.

    Source: Tyurin and Richtarik, "On the optimal time complexities in decentralized stochastic
    asynchronous optimization", 2024, Fragile SGD.
    """
    batch = checks.positive_int("fragile_sgd: batch", batch)
    name = f"fragile_sgd({topology.name}, {batch}{'' if pivot is None else f', pivot={pivot}'})"
    return pivot_steps(name, optimizer, topology, pivot, *collection(optimizer, batch))
