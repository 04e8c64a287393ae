"""DeepSqueeze: gossip of compressed models, with what compression left out added to the next."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import gossip, methods, optimizers
from dsgd import Algorithm, Compressor, Topology, checks


class Compensated(NamedTuple):
    """Local models and what compression has left out of them, leaves `[n, ...]`.

    Args:
        params: x.
        optimizer: the local optimisers' states.
        error: delta.
        last: the last messages, of a compressor that starts warm.
    """

    params: Any
    optimizer: Any
    error: Any
    last: Any


@checks.arguments
def deepsqueeze(
    optimizer: optax.GradientTransformation,
    topology: Topology,
    compressor: Compressor,
    consensus_step: gossip.Step,
) -> Algorithm:
    r"""DeepSqueeze: error compensation for gossip.

    $$ X_{t+1/2} = X_t - \gamma\, G(X_t; \xi_t), \qquad V_t = X_{t+1/2} + \Delta_{t-1}, \qquad
    \Delta_t = V_t - C(V_t) $$
    $$ X_{t+1} = X_{t+1/2} + \eta\, C(V_t) (W_t - I) $$

    With `compressors.identity` and $\eta = 1$ it is decentralized SGD.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` is the equation.
        topology: W, symmetric; of a schedule, that of the round.
        compressor: C, a contraction.
        consensus_step: eta, in (0, 1]: the coarser the compression, the smaller.

    Raises:
        ValueError: not a topology, one that is not symmetric, no compressor, a consensus step
            outside (0, 1]; at the start, a compressor that states no contraction.

    Source: Tang, Lian, Qiu, Yuan, Zhang, Zhang and Liu, "DeepSqueeze: decentralization meets
    error-compensated compression", 2019.
    """
    gossip.need("deepsqueeze", topology, symmetric=True)
    gossip.need_step("deepsqueeze", consensus_step)

    def start(x: optimizers.Model):
        last = gossip.start_compressed("deepsqueeze", compressor, x.params)
        return Compensated(*x, optax.tree.zeros_like(x.params), last)

    def update(memory, gradients, round):
        half = optimizers.local_step(optimizer, memory, gradients, round)
        v = optax.tree.add(half.params, memory.error)
        sent = round.to_neighbours(compressor, v, topology, memory.last)
        x = jax.tree.map(
            lambda x, pull: x + jnp.asarray(consensus_step, x.dtype) * pull,
            half.params,
            sent.received,
        )
        return Compensated(x, half.optimizer, optax.tree.sub(v, sent.decoded), sent.messages)

    return methods.local_models(
        f"deepsqueeze({topology.name}, {compressor.name})",
        optimizer,
        update,
        start=start,
        topology=topology,
    )
