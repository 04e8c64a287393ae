"""Stochastic gradient push: gossip on directed graphs, on which a sender does not need the weights
of its receivers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import topologies
from algorithms import gossip, optimizers, weights
from algorithms.facts import method
from algorithms.mechanisms import push_sum
from dsgd import Algorithm, Query, State, Topology, checks


class Pushed(NamedTuple):
    """State of push-sum, leaves `[n, ...]`.

    Args:
        params: x, whose sum over workers is preserved by gossip.
        optimizer: the states of the local optimizers.
        weight: w, the push-sum weights `[n]`, which start at 1 and are mixed as x is.
    """

    params: Any
    optimizer: Any
    weight: jax.Array


@method(
    sends="models and push-sum weights, along directed or changing edges",
    needs=("columns of W sum to 1",),
    paper="SGP: Assran et al., 2019, Algorithm 1",
    page="how_to/decentralized.md#directed-graphs",
    aliases=("sgp",),
    graph=topologies.one_peer_exponential,
)
@checks.arguments
def stochastic_gradient_push(
    optimizer: optax.GradientTransformation, topology: Topology
) -> Algorithm:
    r"""Stochastic gradient push: W only needs to preserve sums (columns that sum to 1); push-sum
    weights correct for rows that do not sum to 1.

    $$ z_t^{(n)} = x_t^{(n)} / w_t^{(n)}, \qquad X_{t+1} = (X_t - \gamma\, G(Z_t; \xi_t))\, W_t^T,
    \qquad w_{t+1} = W_t w_t $$

    with $w_0 = 1$. (X has a column for each worker, and $W_{ij}$ is the share that j sends to i.)
    Gradients are computed at z; the final model is $\sum_n x^{(n)} / \sum_n w^{(n)}$, where the sum
    of w is N up to rounding. A sender keeps the share of a message that is not delivered, so that
    sums are preserved when messages are lost or workers do not participate.

    Args:
        optimizer: each worker's step of x; `optax.sgd(gamma)` gives the equation. The states of
            momentum and Adam stay local.
        topology: any topology, directed or not, whose columns sum to 1. With a schedule, round t
            uses W_t.

    Raises:
        ValueError: if `topology` is not a `Topology`.

    Source: Assran, Loizou, Ballas and Rabbat, "Stochastic gradient push for distributed deep
    learning", 2019, algorithm 1; Nedic and Olshevsky, "Stochastic gradient-push for strongly convex
    functions on time-varying directed graphs", 2016.
    """
    name = f"stochastic_gradient_push({topology.name})"
    gossip.require_topology("stochastic_gradient_push", topology, doubly_stochastic=False)
    topology.require_one_exchange("stochastic_gradient_push")
    optimizers.require_descent(optimizer)

    def init(params, N, models=None):
        topology.require_workers(name, N)
        weight = jnp.ones(N, jnp.result_type(*jax.tree.leaves(params)))
        x = optimizers.init_local(optimizer, params, N, models)
        return State(workers=Pushed(*x, weight))

    def query(state, round):
        weights.warn_if_cancelled("stochastic_gradient_push", optimizer, round)
        return Query(push_sum.models(state.workers))  # z

    def update(state, gradients, round):
        change, memory = optimizers.update_local(optimizer, state.workers, gradients)
        x, w = round.push_sum(
            optax.apply_updates(state.workers.params, change), state.workers.weight, topology
        )
        return State(workers=Pushed(x, memory, w))

    return Algorithm(name, init, query, update, push_sum.mean_model)
