"""Pair averaging: workers that pull a neighbour's model."""

from __future__ import annotations

import optax

import topologies
from algorithms.asynchronous.asynchronous_gossip_sgd import averaged_step, start
from algorithms.facts import method
from algorithms.mechanisms.pairs import pairwise
from dsgd import Algorithm, Topology, checks


@method(
    sends="one neighbour's model to a worker whenever its gradient is ready",
    needs=("symmetric W", "one W", "all workers"),
    paper="KungFu: Mai et al., 2020",
    page="how_to/clusters/asynchronous.md",
    aliases=("pair_averaging",),
    graph=topologies.complete,
)
@checks.arguments
def pair_averaging_sgd(optimizer: optax.GradientTransformation, topology: Topology) -> Algorithm:
    r"""Pair averaging: a worker that has computed a gradient pulls the model of one neighbour,
    drawn uniformly, averages its own with it, and makes its step; the neighbour's model does not
    change.

    $$ x_{t+1}^{(i)} = \frac12 \big(x_t^{(i)} + x_t^{(j)}\big) - \gamma\, g_i(x_t^{(i)}) $$

    The mean of the models is not preserved: models of workers that are pulled often have more
    weight. `asynchronous_gossip_sgd` changes both models.

    A round is one update, as in `asynchronous_gossip_sgd`, by the worker whose pull starts next. A
    pull occupies the ports of both workers for the latency plus the time of one model at the slower
    of the neighbour's sending and the worker's receiving bandwidth.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation.
        topology: determines the neighbours; its weights are not used.

    Raises:
        ValueError: if the topology is a schedule or a directed graph.

    Source: Mai et al., "KungFu: making training in distributed machine learning adaptive", 2020,
    asynchronous pair averaging.
    """

    def meet(gradient, own, other, meets):
        return averaged_step(optimizer, gradient, own, other)[0], other

    name = f"pair_averaging_sgd({topology.name})"
    return pairwise(name, optimizer, topology, start, meet, pulls=True)
