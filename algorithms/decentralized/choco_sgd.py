"""CHOCO-SGD: gossip that sends what has changed, compressed."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import gossip, methods, optimizers
from dsgd import Algorithm, Compressor, Topology, checks


class Estimates(NamedTuple):
    """Local models, and what is known of them, leaves `[n, ...]`.

    Args:
        params: x.
        optimizer: the local optimisers' states.
        x_hat: the estimate that the neighbours keep of the worker's model.
        laplacian: the weighted sum of the differences of the neighbours' estimates from it.
        last: the last messages, of a compressor that starts warm.
    """

    params: Any
    optimizer: Any
    x_hat: Any
    laplacian: Any
    last: Any


@checks.arguments
def choco_sgd(
    optimizer: optax.GradientTransformation,
    topology: Topology,
    compressor: Compressor,
    consensus_step: gossip.Step,
) -> Algorithm:
    r"""CHOCO-SGD: workers send what their model has moved from what the neighbours know of it.

    $$ X_{t+1/2} = X_t - \gamma\, G(X_t; \xi_t), \qquad \hat X_{t+1} = \hat X_t + C(X_{t+1/2} - \hat
    X_t) $$
    $$ X_{t+1} = X_{t+1/2} + \eta\, \hat X_{t+1} (W - I) $$

    Estimates start at the common start, which everybody knows. With `compressors.identity` and
    $\eta = 1$ it is decentralized SGD.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` is the equation.
        topology: W, symmetric, the same in all rounds.
        compressor: C, a contraction.
        consensus_step: eta, in (0, 1]: the coarser the compression, the smaller.

    Raises:
        ValueError: not a topology, one that is not symmetric, a schedule, no compressor, a
            consensus step outside (0, 1]; at the start, a compressor that states no contraction.

    Source: Koloskova, Stich and Jaggi, "Decentralized stochastic optimization and gossip algorithms
    with compressed communication", 2019, in its memory-efficient form (algorithm 6). Departure:
    estimates start at $x_0$ instead of 0, which costs no message.
    """
    gossip.need("choco_sgd", topology, symmetric=True, fixed=True)
    gossip.need_step("choco_sgd", consensus_step)

    def start(x: optimizers.Model):
        last = gossip.start_compressed("choco_sgd", compressor, x.params)
        return Estimates(*x, x.params, optax.tree.zeros_like(x.params), last)

    def update(known, gradients, round):
        round.require_all(
            "neighbours add up what each has sent, and would no longer know what was lost"
        )
        half = optimizers.local_step(optimizer, known, gradients, round)
        sent = round.to_neighbours(
            compressor, optax.tree.sub(half.params, known.x_hat), topology, known.last
        )
        # X-hat, X-hat (W - I)
        x_hat, laplacian = optax.tree.add(
            (known.x_hat, known.laplacian), (sent.decoded, sent.received)
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
        topology=topology,
    )
