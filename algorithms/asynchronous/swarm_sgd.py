"""SWARM-SGD: local steps between averages of two workers that do not wait for each other."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

import topologies
from algorithms import gossip, optimizers
from algorithms.facts import method
from algorithms.mechanisms.pairs import pairwise
from dsgd import Algorithm, Topology, checks
from dsgd.extend import Params, Period, PyTree


class Local(NamedTuple):
    """A worker's state, leaves `[n, ...]`.

    Args:
        params: x, its model.
        optimizer: its optimizer's state.
        start: o, its model before the local steps since its last average.
        shared: S, its published model.
    """

    params: Params
    optimizer: PyTree
    start: Params
    shared: Params

    @property
    def read(self) -> Params:
        """The model at which it computes."""
        return self.params


@method(
    sends="published models, with one neighbour after H local steps",
    needs=("symmetric W", "one W", "all workers"),
    paper="SWARM-SGD: Nadiradze et al., 2021",
    page="how_to/clusters/asynchronous.md",
    aliases=("swarm",),
    graph=topologies.ring,
    settings={"period": 4},
)
@checks.arguments
def swarm_sgd(
    optimizer: optax.GradientTransformation,
    topology: Topology,
    period: Period,
    *,
    geometric: bool = False,
) -> Algorithm:
    r"""SWARM-SGD: each worker makes H local steps, then averages its published model with that of
    one neighbour, drawn uniformly, which continues its own local steps.

    $$ x^{(i)} \leftarrow \tfrac12 \big(S^{(i)} + S^{(j)}\big) + \big(x^{(i)} - o^{(i)}\big), \qquad
       S^{(j)} \leftarrow \tfrac12 \big(S^{(i)} + S^{(j)}\big), \qquad
       S^{(i)}, o^{(i)} \leftarrow x^{(i)} $$

    with the old S on the right. S is a worker's published model and o its model before the local
    steps, so that averages do not interfere with local steps: the sum of S over workers changes by
    the local steps alone.

    A round is one local step, by the worker whose next one is first on the run's cluster; after the
    last of H steps, the worker waits for the average, which takes the time of an exchange of
    `asynchronous_gossip_sgd`.

    Args:
        optimizer: each worker's local step; its state is kept.
        topology: determines the neighbours; its weights are not used.
        period: H, at least 1. It may be swept.
        geometric: whether the number of local steps is random with mean H, as in the paper's
            analysis: each step is the last one with probability 1/H.

    Raises:
        ValueError: if the period is less than 1, or the topology is a schedule or a directed graph.

    Source: Nadiradze, Sabour, Davies, Li and Alistarh, "Asynchronous decentralized SGD with
    quantized and local updates", 2021, the algorithm without blocking, without quantization.
    """
    period = checks.period("swarm_sgd: period", period)

    def start(models: optimizers.Model) -> Local:
        return Local(models.params, models.optimizer, models.params, models.params)

    def meet(gradient, own, other, meets):
        change, memory = optimizers.update(optimizer, gradient, own.optimizer, own.params)
        x = optax.apply_updates(own.params, change)
        middle = jax.tree.map(gossip.midpoint, own.shared, other.shared)
        moved = optax.tree.add(middle, optax.tree.sub(x, own.start))
        x, begun, shared = jax.tree.map(
            partial(jnp.where, meets), (moved, moved, moved), (x, own.start, own.shared)
        )
        return Local(x, memory, begun, shared), other._replace(shared=middle)

    def meets(key, gradients):
        if geometric:
            return jax.random.bernoulli(key, 1 / period, gradients.shape)
        return (gradients + 1) % period == 0

    how = ", geometric" if geometric else ""
    name = f"swarm_sgd({topology.name}, {period}{how})"
    return pairwise(name, optimizer, topology, start, meet, meets)
