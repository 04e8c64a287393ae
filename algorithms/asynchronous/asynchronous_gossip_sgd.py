"""Asynchronous gossip (AD-PSGD)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import optax

import topologies
from algorithms import gossip, optimizers
from algorithms.facts import method
from algorithms.mechanisms.pairs import pairwise
from dsgd import Algorithm, Topology, checks
from dsgd.extend import Params, PyTree


class Local(NamedTuple):
    """A worker's state, leaves `[n, ...]`.

    Args:
        params: its model.
        optimizer: its optimizer's state.
        read: the model at which it computes.
    """

    params: Params
    optimizer: PyTree
    read: Params


@method(
    sends="models, with one neighbour whenever a gradient is ready",
    needs=("symmetric W", "one W", "all workers"),
    paper="AD-PSGD: Lian et al., 2018, Algorithm 1",
    page="how_to/clusters/asynchronous.md",
    aliases=("ad_psgd",),
    graph=topologies.ring,
    candidates={"any problem": [{"graph": topologies.complete}]},
)
@checks.arguments
def asynchronous_gossip_sgd(
    optimizer: optax.GradientTransformation, topology: Topology
) -> Algorithm:
    r"""AD-PSGD: a worker that has computed a gradient averages its model with one neighbour, drawn
    uniformly, and makes its step, without synchronized rounds.

    $$ X_{t+1} = X_t W_t - \gamma\, g_{i_t}(\hat x_t^{(i_t)})\, e_{i_t}^\top, \qquad
       \hat x_t^{(i)} = x_s^{(i)} \text{ after its last update, } s \le t $$

    W_t averages the models of i_t and j_t.

    A round is one update, by the worker whose exchange starts next on the run's cluster (without a
    cluster, every gradient takes one second). An exchange is atomic: it occupies the ports of both
    workers for the latency plus the time of one model at the slowest of the four bandwidths. The
    partner continues its computation.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation.
        topology: determines the neighbours; its weights are not used.

    Raises:
        ValueError: if the topology is a schedule or a directed graph.

    Source: Lian et al., "Asynchronous decentralized parallel stochastic gradient descent", 2018,
    algorithm 1.
    """

    def meet(gradient, own, other, meets):
        own, middle = averaged_step(optimizer, gradient, own, other)
        return own, other._replace(params=middle)

    return pairwise(f"asynchronous_gossip_sgd({topology.name})", optimizer, topology, start, meet)


def start(models: optimizers.Model) -> Local:
    """Returns the workers' states before their first steps."""
    return Local(models.params, models.optimizer, models.params)


def averaged_step(
    optimizer: optax.GradientTransformation, gradient: Params, own: Local, other: Local
) -> tuple[Local, Params]:
    """Returns a worker's state after its step from the mean of two models, and this mean.

    Args:
        optimizer: the worker's step.
        gradient: its gradient.
        own, other: its state and that of its partner.
    """
    middle = jax.tree.map(gossip.midpoint, own.params, other.params)
    change, memory = optimizers.update(optimizer, gradient, own.optimizer, own.params)
    stepped = optax.apply_updates(middle, change)
    return Local(stepped, memory, stepped), middle
