"""DeepSqueeze: gossip of compressed models, with what compression left out added to the next."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import absence, exchanges, gossip, optimizers
from dsgd import checks
from dsgd.base import Algorithm, Compressor, Params, PyTree, State
from dsgd.graphs.topology import Topology


class Compensated(NamedTuple):
    """Local models and what compression has left out of them. Leaves `[n, ...]`, of the errors vectors `[n, d]`.

    Args:
        params: x.
        optimizer: the local optimisers' states.
        error: delta.
        last: the last messages, of a compressor that starts warm.
    """

    params: Params
    optimizer: PyTree
    error: PyTree
    last: Any


@checks.arguments
def deepsqueeze(
    optimizer: optax.GradientTransformation, topology: Topology, compressor: Compressor, consensus_step: gossip.Step
) -> Algorithm:
    r"""DeepSqueeze: error compensation for gossip.

    $$ X_{t+1/2} = X_t - \gamma\, G(X_t; \xi_t), \qquad V_t = X_{t+1/2} + \Delta_{t-1}, \qquad \Delta_t = V_t - C(V_t) $$
    $$ X_{t+1} = X_{t+1/2} + \eta\, C(V_t) (W_t - I) $$

    With `compressors.identity` and $\eta = 1$ it is decentralized SGD.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` is the equation.
        topology: W, symmetric; of a schedule, that of the round.
        compressor: C, a contraction.
        consensus_step: eta, in (0, 1]: the coarser the compression, the smaller.

    Raises:
        ValueError: not a topology, one that is not symmetric, no compressor, a consensus step outside (0, 1]; at the start, a compressor
            that states no contraction.

    Source: Tang, Lian, Qiu, Yuan, Zhang, Zhang and Liu, "DeepSqueeze: decentralization meets error-compensated compression", 2019.
    """
    gossip.need("deepsqueeze", topology, symmetric=True)
    gossip.need_step("deepsqueeze", consensus_step)

    def init(params, N):
        models = optimizers.start_local(optimizer, params, N)
        nothing = jax.tree.map(jnp.zeros_like, exchanges.flat(models.params, compressor.layer_wise))
        exchanges.need_contraction("deepsqueeze", compressor, nothing)
        return State(jnp.int32(0), workers=Compensated(*models, nothing, exchanges.start(compressor, nothing)))

    def update(key, state, gradients, round):
        memory = state.workers
        half = optimizers.step_local(optimizer, optimizers.Model(memory.params, memory.optimizer), gradients)
        x = exchanges.flat(half.params, compressor.layer_wise)
        v = jax.tree.map(jnp.add, x, memory.error)
        sent = exchanges.to_neighbours(compressor, key, v, topology, round, memory.last)
        error = jax.tree.map(jnp.subtract, v, sent.seen)
        x = jax.tree.map(lambda x, pulled: x + jnp.asarray(consensus_step, x.dtype) * pulled, x, sent.received)
        params = exchanges.shaped(x, half.params, compressor.layer_wise)
        return State(state.step + 1, workers=Compensated(params, half.optimizer, error, sent.messages)), sent.info

    return gossip.algorithm(
        f"deepsqueeze({topology.name}, {compressor.name})",
        init,
        update,
        optimizer,
        topology,
        absence.where_symmetric(topology, absence.stay),
    )
