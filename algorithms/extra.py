"""EXTRA: decentralized gradient descent, corrected by its own past."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import gossip, optimizers
from dsgd import workers
from dsgd.base import Algorithm, Params, PyTree, Query, State
from dsgd.topology import Topology


class Corrected(NamedTuple):
    """Local models and what corrects them, leaves `[n, ...]`.

    Args:
        params: x.
        optimizer: the local optimisers' states.
        past: what the last round leaves to subtract, (I + W)/2 x - gamma g.
    """

    params: Params
    optimizer: PyTree
    past: Params


def extra(optimizer: optax.GradientTransformation, topology: Topology) -> Algorithm:
    r"""EXTRA: two rounds of decentralized gradient descent, subtracted, so that what is wrong with each cancels.

    $$ X_{t+1} = X_t (I + W) - X_{t-1} \tfrac{I + W}{2} - \gamma (G(X_t) - G(X_{t-1})), \qquad X_1 = X_0 W - \gamma G(X_0) $$

    $X_{t-1} W$ is known from the last round, so that one model is sent to each neighbour.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` is the equation. Another one's change stands for $-\gamma G$.
        topology: W, symmetric, the same in all rounds.

    Raises:
        ValueError: not a topology, one that is not symmetric, or a schedule.

    Source: Shi, Ling, Wu and Yin, "EXTRA: an exact first-order algorithm for decentralized consensus optimization", 2015, (2.13).
    """
    gossip.need("extra", topology, symmetric=True, fixed=True)

    def init(params, N):
        models = optimizers.start_local(optimizer, params, N)
        return State(jnp.int32(0), workers=Corrected(models.params, models.optimizer, models.params))

    def query(state, round):
        return Query(state.workers.params, axis=0)

    def update(key, state, gradients, round):
        x, _, past = state.workers
        change, memory = optimizers.change_local(optimizer, state.workers, gradients)
        Wx = workers.mix(x, topology)
        new = jax.tree.map(lambda x, Wx, u, past: x + Wx + u - past, x, Wx, change, past)
        past = jax.tree.map(lambda x, Wx, u: (x + Wx) / 2 + u, x, Wx, change)
        return State(state.step + 1, workers=Corrected(new, memory, past)), gossip.sent(x, topology, round.step)

    return Algorithm(
        init,
        query,
        update,
        optimizers.mean_params,
        gossip.pattern(topology),
        f"extra({topology.name})",
        optimizers.learning_rate(optimizer),
        topology.n,
    )
