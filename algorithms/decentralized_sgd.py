"""Decentralized SGD: the survey's chapter 5."""

from __future__ import annotations

import jax.numpy as jnp
import optax

from algorithms import optimizers
from dsgd import counts, network, workers
from dsgd.base import Algorithm, Info, Query, State
from dsgd.topology import Topology


def decentralized_sgd(optimizer: optax.GradientTransformation, topology: Topology) -> Algorithm:
    r"""Decentralized SGD: every worker makes its own step, then averages with its neighbours.

    $$ X_{t+1} = (X_t - \gamma\, G(X_t; \xi_t))\, W \tag{5.2} $$

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` is the equation. Momentum and Adam keep their memories locally.
        topology: the mixing matrix W, for as many workers as the problem has.

    Raises:
        ValueError: not a topology.

    Source: Liu and Zhang, section 5.1.
    """

    if not isinstance(topology, Topology):
        raise ValueError(f"topology = {topology!r}: need a topology, topologies.ring(16) or topologies.from_matrix(W), say")

    def init(params, N):
        return State(jnp.int32(0), workers=optimizers.start_local(optimizer, params, N))

    def query(state, round):
        return Query(state.workers.params, axis=0)

    def update(key, state, gradients, round):
        local = optimizers.step_local(optimizer, state.workers, gradients)  # X - gamma G
        models = local._replace(params=workers.mix(local.params, topology, round.step))  # (...) W
        each = optimizers.bits_of(local.params)
        neighbours = workers.own(jnp.asarray(topology.sends[0], jnp.uint32), round.workers)
        bits = counts.times(neighbours, counts.of(each, neighbours.shape[0]))
        return State(state.step + 1, workers=models), Info(bits, bits)

    return Algorithm(
        init,
        query,
        update,
        optimizers.mean_params,
        network.gossip(topology.degree, float(topology.sends.mean())),
        f"decentralized_sgd({topology.name})",
        optimizers.learning_rate(optimizer),
        topology.n,
    )
