"""Decentralized SGD: the survey's chapter 5."""

from __future__ import annotations

import jax.numpy as jnp
import optax

from algorithms import absence, gossip, optimizers
from dsgd import checks, workers
from dsgd.base import Algorithm, State
from dsgd.graphs.topology import Topology
from dsgd.network import told


@checks.arguments
def decentralized_sgd(optimizer: optax.GradientTransformation, topology: Topology) -> Algorithm:
    r"""Decentralized SGD: every worker makes its own step, then averages with its neighbours.

    $$ X_{t+1} = (X_t - \gamma\, G(X_t; \xi_t))\, W_t^T \tag{5.2} $$

    X has a column for each worker; the survey's W is symmetric.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` is the equation. Momentum and Adam keep their memories locally.
        topology: W, doubly stochastic, for as many workers as the problem has; of a schedule, that of the round.

    Raises:
        ValueError: not a topology, or not a doubly stochastic one.

    Source: Liu and Zhang, section 5.1.
    """
    gossip.need("decentralized_sgd", topology)

    def init(params, N):
        return State(jnp.int32(0), workers=optimizers.start_local(optimizer, params, N))

    def update(key, state, gradients, round):
        local = optimizers.step_local(optimizer, state.workers, gradients)  # X - gamma G
        models = local._replace(params=workers.mix(local.params, topology, round.step))  # (...) W
        return State(state.step + 1, workers=models), told.to_neighbours(local.params, topology, round.step)

    return gossip.algorithm(
        f"decentralized_sgd({topology.name})", init, update, optimizer, topology, absence.where_symmetric(topology, absence.stay)
    )
