"""DeepSqueeze: gossip of compressed models with an error memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import topologies
from algorithms import gossip, methods, optimizers
from algorithms.facts import method
from dsgd import Algorithm, Compressor, Topology, checks, compressors


class Compensated(NamedTuple):
    """Local models and their error memories, leaves `[n, ...]`.

    Args:
        params: x.
        optimizer: the states of the local optimizers.
        error: delta, the error memory.
        last: the last messages, from which a warm-started compressor starts.
    """

    params: Any
    optimizer: Any
    error: Any
    last: Any


@method(
    sends="compressed models plus error memory, to neighbours",
    needs=("symmetric W", "contractive compressor"),
    paper="Tang et al., 2019",
    page="how_to/compression.md",
    graph=topologies.ring,
    settings={"compressor": compressors.whole_model(compressors.sign), "consensus_step": 0.3},
)
@checks.arguments
def deepsqueeze(
    optimizer: optax.GradientTransformation,
    topology: Topology,
    compressor: Compressor,
    consensus_step: gossip.Step,
) -> Algorithm:
    r"""DeepSqueeze: gossip of compressed models with error compensation.

    $$ X_{t+1/2} = X_t - \gamma\, G(X_t; \xi_t), \qquad V_t = X_{t+1/2} + \Delta_{t-1}, \qquad
    \Delta_t = V_t - C(V_t) $$
    $$ X_{t+1} = X_{t+1/2} + \eta\, C(V_t) (W_t - I) $$

    With `compressors.identity` and $\eta = 1$ the method is decentralized SGD.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation.
        topology: W, symmetric. With a schedule, round t uses W_t.
        compressor: C, a contraction.
        consensus_step: eta, in (0, 1]; the coarser the compression, the smaller it must be.

    Raises:
        ValueError: if the topology is not symmetric, or the consensus step is not in (0, 1]. At the
            start of a run: if the compressor declares no contraction.

    Source: Tang, Lian, Qiu, Yuan, Zhang, Zhang and Liu, "DeepSqueeze: decentralization meets
    error-compensated compression", 2019.
    """
    gossip.require_topology("deepsqueeze", topology, symmetric=True)
    topology.require_one_exchange("deepsqueeze")
    gossip.require_step("deepsqueeze", consensus_step)

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
