"""CHOCO-SGD: gossip that sends what has changed, compressed."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import absence, exchanges, gossip, optimizers
from dsgd import checks
from dsgd.base import Algorithm, Compressor, Params, PyTree, State
from dsgd.graphs.topology import Topology


class Estimates(NamedTuple):
    """Local models, and what is known of them. Leaves `[n, ...]`, of the estimates vectors `[n, d]`.

    Args:
        params: x.
        optimizer: the local optimisers' states.
        own: x-hat, what the neighbours know of one's own model.
        apart: the weighted sum of what the neighbours' estimates differ by from it.
        last: the last messages, of a compressor that starts warm.
    """

    params: Params
    optimizer: PyTree
    own: PyTree
    apart: PyTree
    last: Any


@checks.arguments
def choco_sgd(
    optimizer: optax.GradientTransformation, topology: Topology, compressor: Compressor, consensus_step: gossip.Step
) -> Algorithm:
    r"""CHOCO-SGD: workers send what their model has moved from what the neighbours know of it.

    $$ X_{t+1/2} = X_t - \gamma\, G(X_t; \xi_t), \qquad \hat X_{t+1} = \hat X_t + C(X_{t+1/2} - \hat X_t) $$
    $$ X_{t+1} = X_{t+1/2} + \eta\, \hat X_{t+1} (W - I) $$

    Estimates start at the common start, which everybody knows. With `compressors.identity` and $\eta = 1$ it is decentralized SGD.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` is the equation.
        topology: W, symmetric, the same in all rounds.
        compressor: C, a contraction.
        consensus_step: eta, in (0, 1]: the coarser the compression, the smaller.

    Raises:
        ValueError: not a topology, one that is not symmetric, a schedule, no compressor, a consensus step outside (0, 1]; at the start, a
            compressor that states no contraction.

    Source: Koloskova, Stich and Jaggi, "Decentralized stochastic optimization and gossip algorithms with compressed communication", 2019,
    in its memory-efficient form (algorithm 6). Departure: estimates start at $x_0$ instead of 0, which costs no message.
    """
    gossip.need("choco_sgd", topology, symmetric=True, fixed=True)
    gossip.need_step("choco_sgd", consensus_step)

    def init(params, N):
        models = optimizers.start_local(optimizer, params, N)
        known = exchanges.flat(models.params, compressor.layer_wise)
        exchanges.need_contraction("choco_sgd", compressor, known)
        apart = jax.tree.map(jnp.zeros_like, known)
        return State(jnp.int32(0), workers=Estimates(*models, known, apart, exchanges.start(compressor, known)))

    def update(key, state, gradients, round):
        known = state.workers
        half = optimizers.step_local(optimizer, optimizers.Model(known.params, known.optimizer), gradients)
        x = exchanges.flat(half.params, compressor.layer_wise)
        news = jax.tree.map(jnp.subtract, x, known.own)
        sent = exchanges.to_neighbours(compressor, key, news, topology, round, known.last)
        own = jax.tree.map(jnp.add, known.own, sent.seen)
        apart = jax.tree.map(jnp.add, known.apart, sent.received)  # X-hat (W - I)
        x = jax.tree.map(lambda x, apart: x + jnp.asarray(consensus_step, x.dtype) * apart, x, apart)
        params = exchanges.shaped(x, half.params, compressor.layer_wise)
        return State(state.step + 1, workers=Estimates(params, half.optimizer, own, apart, sent.messages)), sent.info

    return gossip.algorithm(f"choco_sgd({topology.name}, {compressor.name})", init, update, optimizer, topology, absence.REMEMBERED)
