"""Stochastic gradient push: gossip on directed graphs, whose senders need not know who receives how
much.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import gossip, optimizers, weights
from dsgd import Algorithm, Query, State, Topology, checks, workers


class Pushed(NamedTuple):
    """What push-sum carries, leaves `[n, ...]`.

    Args:
        params: x, whose sum over workers gossip keeps.
        optimizer: the local optimisers' states.
        weight: w, what has arrived of all workers' 1, `[n]`.
    """

    params: Any
    optimizer: Any
    weight: jax.Array


@checks.arguments
def stochastic_gradient_push(
    optimizer: optax.GradientTransformation, topology: Topology
) -> Algorithm:
    r"""Stochastic gradient push: W need only keep sums; what rows do not sum to, push-sum divides
    out.

    $$ z_t^{(n)} = x_t^{(n)} / w_t^{(n)}, \qquad X_{t+1} = (X_t - \gamma\, G(Z_t; \xi_t))\, W_t^T,
    \qquad w_{t+1} = W_t w_t $$

    from $w_0 = 1$. (X has a column for each worker, and $W_{ij}$ is the share that j sends i.)
    Gradients are taken at z; the model to take home is $\sum_n x^{(n)} / \sum_n w^{(n)}$, where the
    sum of w is N up to rounding. A sender keeps what does not arrive (nobody has told it that it
    did), so that sums are kept where messages are lost or workers away.

    Args:
        optimizer: each worker's step of x; `optax.sgd(gamma)` is the equation. Momentum and Adam
            keep their memories locally.
        topology: any, directed or not; of a schedule, W is that of the round. Columns sum to 1.

    Raises:
        ValueError: not a topology.

    Source: Assran, Loizou, Ballas and Rabbat, "Stochastic gradient push for distributed deep
    learning", 2019, algorithm 1; Nedic and Olshevsky, "Stochastic gradient-push for strongly convex
    functions on time-varying directed graphs", 2016.
    """
    name = f"stochastic_gradient_push({topology.name})"
    gossip.need("stochastic_gradient_push", topology, doubly_stochastic=False)
    optimizers.require_descent(optimizer)

    def init(params, N):
        topology.require_workers(name, N)
        weight = jnp.ones(N, jnp.result_type(*jax.tree.leaves(params)))
        return State(workers=Pushed(*optimizers.start_local(optimizer, params, N), weight))

    def query(state, round):
        weights.warn_if_cancelled("stochastic_gradient_push", optimizer, round)
        x, _, w = state.workers
        # z
        return Query(
            jax.tree.map(lambda x: x / w.astype(x.dtype).reshape(-1, *[1] * (x.ndim - 1)), x)
        )

    def update(state, gradients, round):
        change, memory = optimizers.change_local(optimizer, state.workers, gradients)
        x, w = round.push_sum(
            optax.apply_updates(state.workers.params, change), state.workers.weight, topology
        )
        return State(workers=Pushed(x, memory, w))

    def model(state):
        x, w = workers.sum(workers.widened((state.workers.params, state.workers.weight)))
        return workers.narrowed(
            jax.tree.map(lambda x: x / w.astype(x.dtype), x), state.workers.params
        )

    return Algorithm(name, init, query, update, model)
