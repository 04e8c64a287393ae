"""CHOCO-SGD: gossip that sends compressed model differences."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

import topologies
from algorithms import gossip, methods, optimizers
from algorithms.facts import method
from algorithms.mechanisms.copies import Estimates
from dsgd import Algorithm, Compressor, Topology, checks, compressors


@method(
    sends="compressed differences to `x_hat`, to neighbours",
    needs=("symmetric W", "one W", "contractive compressor", "all workers"),
    paper="Koloskova et al., 2019, Algorithm 6",
    page="how_to/compression.md",
    aliases=("choco",),
    graph=topologies.ring,
    settings={"compressor": compressors.whole_model(compressors.sign), "consensus_step": 0.5},
    candidates={"any problem": [{}]},
)
@checks.arguments
def choco_sgd(
    optimizer: optax.GradientTransformation,
    topology: Topology,
    compressor: Compressor,
    consensus_step: gossip.Step,
) -> Algorithm:
    r"""CHOCO-SGD: workers send the compressed difference between their model and the neighbours'
    estimate of it.

    $$ X_{t+1/2} = X_t - \gamma\, G(X_t; \xi_t), \qquad \hat X_{t+1} = \hat X_t + C(X_{t+1/2} - \hat
    X_t) $$
    $$ X_{t+1} = X_{t+1/2} + \eta\, \hat X_{t+1} (W - I) $$

    The estimates start at the common initial model, which all workers have. With
    `compressors.identity` and $\eta = 1$ the method is decentralized SGD.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation.
        topology: W, symmetric, the same in all rounds.
        compressor: C, a contraction.
        consensus_step: eta, in (0, 1]; the coarser the compression, the smaller it must be.

    Raises:
        ValueError: if the topology is not symmetric or is a schedule, or the consensus step is not
            in (0, 1]. At the start of a run: if the compressor declares no contraction.

    Source: Koloskova, Stich and Jaggi, "Decentralized stochastic optimization and gossip algorithms
    with compressed communication", 2019, in its memory-efficient form (algorithm 6). Departure: the
    estimates start at $x_0$ instead of 0, which requires no message.
    """
    gossip.require_topology("choco_sgd", topology, symmetric=True, fixed=True)
    topology.require_one_exchange("choco_sgd")
    gossip.require_step("choco_sgd", consensus_step)

    def start(x: optimizers.Model):
        last = gossip.start_compressed("choco_sgd", compressor, x.params)
        return Estimates(*x, x.params, optax.tree.zeros_like(x.params), last)

    def update(state, gradients, round):
        round.require_all(gossip.SUMMED)
        half = optimizers.local_step(optimizer, state, gradients, round)
        sent = round.to_neighbours(
            compressor, optax.tree.sub(half.params, state.x_hat), topology, state.last
        )
        # X-hat, X-hat (W - I)
        x_hat, laplacian = optax.tree.add(
            (state.x_hat, state.laplacian), (sent.decoded, sent.received)
        )
        x = jax.tree.map(
            lambda x, pull: x + jnp.asarray(consensus_step, x.dtype) * pull, half.params, laplacian
        )
        return Estimates(x, half.optimizer, x_hat, laplacian, sent.messages)

    return methods.local_models(
        f"choco_sgd({topology.name}, {compressor.name})",
        optimizer,
        update,
        start=start,
        common_start=True,
        topology=topology,
    )
