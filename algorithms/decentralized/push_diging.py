"""Push-DIGing: gradient tracking on directed graphs, on which a sender does not need the weights of
its receivers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import topologies
from algorithms import gossip, optimizers
from algorithms.facts import method
from algorithms.mechanisms import push_sum
from algorithms.mechanisms.tracking import track
from dsgd import Algorithm, Query, State, Topology, checks


class PushedTracking(NamedTuple):
    """State of Push-DIGing, leaves `[n, ...]`.

    Args:
        params: u; gossip preserves its sum over workers, and the models are u / v.
        optimizer: the states of the local optimizers.
        weight: v, the push-sum weights `[n]`, which start at 1 and are mixed as u is.
        tracker: y after the round's messages.
        gradient: g, the worker's last gradient.
    """

    params: Any
    optimizer: Any
    weight: jax.Array
    tracker: Any
    gradient: Any


@method(
    sends="models, trackers and push-sum weights, along directed or changing edges",
    exact="any data",
    needs=("columns of W sum to 1",),
    paper="Push-DIGing: Nedic et al., 2017",
    page="how_to/decentralized.md#directed-graphs",
    graph=topologies.one_peer_exponential,
)
@checks.arguments
def push_diging(optimizer: optax.GradientTransformation, topology: Topology) -> Algorithm:
    r"""Gradient tracking by push-sum (Push-DIGing, ADD-OPT): W only needs to preserve sums (columns
    that sum to 1).

    $$ U_{t+1} = (U_t - \gamma Y_t) W_t^T, \qquad v_{t+1} = W_t v_t, \qquad x_{t+1}^{(n)} =
    u_{t+1}^{(n)} / v_{t+1}^{(n)} $$
    $$ Y_{t+1} = Y_t W_t^T + G(X_{t+1}) - G(X_t), \qquad U_0 = X_0, \quad v_0 = 1, \quad Y_0 =
    G(X_0) $$

    (X has a column for each worker, and $W_{ij}$ is the share that j sends to i.) In a round each
    worker sends one message to each receiver, with u after the step, its tracker and its weight v.
    The sum of the trackers is the sum of the gradients, so that with exact gradients the fixed
    point is the minimizer of f for any data, also where the rows of W do not sum to 1 and that of
    stochastic gradient push is biased. If W is doubly stochastic, v = 1 and the method is
    `atc_tracking`.

    A sender keeps the share of a message that is not delivered, and a worker that does not
    participate keeps its state, so that sums are preserved when messages are lost or workers do not
    participate.

    Args:
        optimizer: each worker's step of u along its tracker; `optax.sgd(gamma)` gives the equation.
            Momentum and Adam receive y as the gradient.
        topology: any topology, directed or not, with columns that sum to 1. With a schedule, round
            t uses W_t. Weights v near 0, as on badly balanced graphs, need small steps.

    Raises:
        ValueError: if `topology` is not a `Topology`, or is one for "pull" or "push".

    Source: Nedic, Olshevsky and Shi, "Achieving geometric convergence for distributed optimization
    over time-varying graphs", 2017, Push-DIGing; Xi, Xin and Khan, "ADD-OPT: accelerated
    distributed directed optimization", 2018.
    """
    gossip.require_topology("push_diging", topology, doubly_stochastic=False)
    topology.require_one_exchange("push_diging")
    optimizers.require_descent(optimizer)

    def init(params, N, models=None):
        topology.require_workers(f"push_diging({topology.name})", N)
        u = optimizers.init_local(optimizer, params, N, models)
        v = jnp.ones(N, jnp.result_type(*jax.tree.leaves(params)))
        return State(workers=PushedTracking(*u, v, *[optax.tree.zeros_like(u.params)] * 2))

    def update(state, gradients, round):
        u, _, v, y, last = state.workers
        y = track(y, gradients, last)
        change, memory = optimizers.update_local(optimizer, state.workers, y)
        (u, y), v = round.push_sum((optax.apply_updates(u, change), y), v, topology)
        return State(workers=PushedTracking(u, memory, v, y, gradients))

    return Algorithm(
        f"push_diging({topology.name})",
        init,
        lambda state, round: Query(push_sum.models(state.workers)),  # x
        update,
        push_sum.mean_model,
    )
