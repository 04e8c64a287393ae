"""Stochastic gradient push: gossip on directed graphs, whose senders need not know who receives how much."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import absence, gossip, optimizers, weights
from dsgd import checks, network, workers
from dsgd.base import Algorithm, Params, PyTree, Query, State
from dsgd.graphs.topology import Topology
from dsgd.network import told


class Pushed(NamedTuple):
    """What push-sum carries, leaves `[n, ...]`.

    Args:
        params: x, whose sum over workers gossip keeps.
        optimizer: the local optimisers' states.
        mass: w, what has arrived of everybody's 1, `[n]`.
    """

    params: Params
    optimizer: PyTree
    mass: jax.Array


@checks.arguments
def stochastic_gradient_push(optimizer: optax.GradientTransformation, topology: Topology) -> Algorithm:
    r"""Stochastic gradient push: W need only keep sums; what rows do not sum to, push-sum divides out.

    $$ z_t^{(n)} = x_t^{(n)} / w_t^{(n)}, \qquad X_{t+1} = (X_t - \gamma\, G(Z_t; \xi_t))\, W_t^T, \qquad w_{t+1} = W_t w_t $$

    from $w_0 = 1$. (X has a column for each worker, and $W_{ij}$ is the share that j sends i.) Gradients are taken at z; the model to
    take home is $\sum_n x^{(n)} / \sum_n w^{(n)}$, where the sum of w is N up to rounding. A sender keeps what does not arrive (nobody has
    told it that it did), so that sums are kept where messages are lost or workers away.

    Args:
        optimizer: each worker's step of x; `optax.sgd(gamma)` is the equation. Momentum and Adam keep their memories locally.
        topology: any, directed or not; of a schedule, W is that of the round. Columns sum to 1.

    Raises:
        ValueError: not a topology.

    Source: Assran, Loizou, Ballas and Rabbat, "Stochastic gradient push for distributed deep learning", 2019, algorithm 1; Nedic and
    Olshevsky, "Stochastic gradient-push for strongly convex functions on time-varying directed graphs", 2016.
    """
    gossip.need("stochastic_gradient_push", topology, doubly_stochastic=False)

    def init(params, N):
        models = optimizers.start_local(optimizer, params, N)
        mass = jnp.ones(N, jnp.result_type(*jax.tree.leaves(params)))
        return State(jnp.int32(0), workers=Pushed(models.params, models.optimizer, mass))

    def query(state, round):
        weights.warn_if_cancelled("stochastic_gradient_push", optimizer, round)
        mass = state.workers.mass
        z = jax.tree.map(lambda x: x / mass.astype(x.dtype).reshape(-1, *[1] * (x.ndim - 1)), state.workers.params)
        return Query(z, axis=0)

    def update(key, state, gradients, round):
        change, memory = optimizers.change_local(optimizer, state.workers, gradients)
        both = (optax.apply_updates(state.workers.params, change), state.workers.mass)
        params, mass = workers.mix(both, topology, round.step, keep_sums=True)
        return State(state.step + 1, workers=Pushed(params, memory, mass)), told.to_neighbours(both, topology, round.step)

    def model(state):
        x, mass = workers.sum(workers.widened((state.workers.params, state.workers.mass)))
        return workers.narrowed(jax.tree.map(lambda x: x / mass.astype(x.dtype), x), state.workers.params)

    return Algorithm(
        init,
        query,
        update,
        model,
        network.gossip(topology),
        f"stochastic_gradient_push({topology.name})",
        optimizers.learning_rate(optimizer),
        topology.n,
        away=absence.where_positive(topology, absence.stay),
    )
