"""Overlap SGP: stochastic gradient push with messages that arrive later."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import topologies
from algorithms import gossip, optimizers, weights
from algorithms.facts import method
from algorithms.mechanisms import push_sum
from dsgd import Algorithm, Query, State, Topology, checks, workers
from dsgd.extend import Params, PyTree


class Pushed(NamedTuple):
    """State of push-sum, leaves `[n, ...]`.

    Args:
        params: x.
        optimizer: the states of the local optimizers.
        weight: w, the push-sum weights `[n]`.
        arriving: the sums of the last x and of the last w that were sent to each worker, which have
            not arrived.
    """

    params: Params
    optimizer: PyTree
    weight: jax.Array
    arriving: tuple[Params, jax.Array]


@method(
    sends="models and push-sum weights, used tau rounds later, along directed or changing edges",
    needs=("columns of W sum to 1", "all workers"),
    paper="Overlap SGP: Assran et al., 2019, Algorithm 2",
    page="how_to/decentralized.md#directed-graphs",
    aliases=("osgp",),
    graph=topologies.one_peer_exponential,
)
@checks.arguments
def overlap_sgp(
    optimizer: optax.GradientTransformation, topology: Topology, delay: int = 1
) -> Algorithm:
    r"""Overlap SGP: stochastic gradient push in which messages are sent in every $\tau$-th round
    and used $\tau$ rounds later, so that their communication may overlap with the gradients in
    between.

    $$ X_{t+1} = (X_t - \gamma\, G(Z_t; \xi_t)) D_t + A_t, \qquad
       A_{t+\tau} = (X_t - \gamma\, G(Z_t; \xi_t)) (W_t - D_t)^T, \qquad A_0 = 0 $$

    in a round with messages, and $X_{t+1} = X_t - \gamma\, G(Z_t; \xi_t)$ in the others. D is the
    diagonal of W, the share that a worker keeps; the weights w move in the same way, and
    $z^{(n)} = x^{(n)} / w^{(n)}$ as in `stochastic_gradient_push`, which it equals for
    $\tau = 0$. What is on its way counts: the final model is the sum of x and A divided by the sum
    of their weights, which is N up to rounding.

    On the clock of a cluster, a worker that has computed its gradient in round $t + \tau$ waits for
    the messages of round t (`round.delayed`). With $\tau = 1$, a round takes as long as the slower
    of computation and communication.

    Args:
        optimizer, topology: as in `stochastic_gradient_push`.
        delay: $\tau$, at least 0.

    Raises:
        ValueError: if the delay is negative, the topology is not a `Topology`, or a worker keeps
            nothing of its own model (a diagonal of W with a number that is not positive).

    Source: Assran, Loizou, Ballas and Rabbat, "Stochastic gradient push for distributed deep
    learning", 2019, algorithm 2.
    """
    name = f"overlap_sgp({topology.name}, {delay})"
    delay = checks.natural("overlap_sgp: delay", delay, most=2**31 - 1)
    gossip.require_topology("overlap_sgp", topology, doubly_stochastic=False)
    topology.require_one_exchange("overlap_sgp")
    optimizers.require_descent(optimizer)
    diagonals = np.stack([W.diagonal() for W in topology.matrices])
    if diagonals.min() <= 0:
        t, n = np.argwhere(diagonals <= 0)[0]
        raise ValueError(
            f"overlap_sgp: W[{n}, {n}] of {topology.name} is {diagonals[t, n]:g} in round {t}; "
            "expected a positive number: until messages arrive, a worker has only what it keeps"
        )

    def init(params, N, models=None):
        topology.require_workers(name, N)
        weight = jnp.ones(N, jnp.result_type(*jax.tree.leaves(params)))
        x = optimizers.init_local(optimizer, params, N, models)
        return State(workers=Pushed(*x, weight, optax.tree.zeros_like((x.params, weight))))

    def query(state, round):
        weights.warn_if_cancelled("overlap_sgp", optimizer, round)
        return Query(push_sum.models(state.workers))  # z

    def update(state, gradients, round):
        change, memory = optimizers.update_local(optimizer, state.workers, gradients)
        x, w = optax.apply_updates(state.workers.params, change), state.workers.weight
        if delay == 0:
            x, w = round.push_sum(x, w, topology)
            return State(workers=Pushed(x, memory, w, state.workers.arriving))

        def send(x, w, arriving):
            round.require_all("messages that are lost on their way are in no worker's sum")
            with round.delayed(delay):
                mixed = round.push_sum(x, w, topology)
            share = workers.round_rows(diagonals, topology, round.step // delay)
            kept = jax.tree.map(
                lambda leaf: leaf * workers.align(share, leaf).astype(leaf.dtype), (x, w)
            )
            return *optax.tree.add(kept, arriving), optax.tree.sub(mixed, kept)

        x, w, arriving = round.every(delay, send, x, w, state.workers.arriving)
        return State(workers=Pushed(x, memory, w, arriving))

    def model(state):
        pushed: Pushed = state.workers
        x, w = optax.tree.add((pushed.params, pushed.weight), pushed.arriving)
        return push_sum.mean_model(state._replace(workers=pushed._replace(params=x, weight=w)))

    return Algorithm(name, init, query, update, model)
