"""Decentralized SGD: the survey's chapter 5."""

from __future__ import annotations

import optax

from algorithms import gossip, methods, optimizers
from dsgd import Algorithm, Topology, checks


@checks.arguments
def decentralized_sgd(optimizer: optax.GradientTransformation, topology: Topology) -> Algorithm:
    r"""Decentralized SGD: every worker makes its own step, then averages with its neighbours.

    $$ X_{t+1} = (X_t - \gamma\, G(X_t; \xi_t))\, W_t^T \tag{5.2} $$

    X has a column for each worker; the survey's W is symmetric.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation. The states of momentum
            and Adam stay local.
        topology: W, doubly stochastic, with as many nodes as the problem has workers. With a
            schedule, round t uses W_t.

    Raises:
        ValueError: if the topology is not doubly stochastic.

    Source: Liu and Zhang, section 5.1.
    """
    gossip.require_topology("decentralized_sgd", topology)

    def update(x, gradients, round):
        half = optimizers.local_step(optimizer, x, gradients, round)  # X - gamma G
        return half._replace(params=round.mix(half.params, topology))  # (...) W

    return methods.local_models(
        f"decentralized_sgd({topology.name})", optimizer, update, topology=topology
    )
