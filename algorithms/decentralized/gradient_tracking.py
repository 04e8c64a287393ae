"""Gradient tracking: every worker follows the mean of all gradients."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import absence, gossip, optimizers
from dsgd import checks, workers
from dsgd.base import Algorithm, Gradients, Params, PyTree, State
from dsgd.graphs.topology import Topology
from dsgd.network import told


class Tracking(NamedTuple):
    """Local models and trackers, leaves `[n, ...]`.

    Args:
        params: x.
        optimizer: the local optimisers' states.
        tracker: y, the estimate of the mean gradient.
        gradient: g, the last own one.
    """

    params: Params
    optimizer: PyTree
    tracker: Gradients
    gradient: Gradients


@checks.arguments
def gradient_tracking(optimizer: optax.GradientTransformation, topology: Topology) -> Algorithm:
    r"""Gradient tracking in the form of DIGing: models and trackers are both averaged; the mean of the trackers is that of the gradients.

    $$ Y_t = Y_{t-1} W_t^T + G(X_t) - G(X_{t-1}), \qquad X_{t+1} = X_t W_t^T - \gamma Y_t, \qquad Y_0 = G(X_0) $$

    A message has both, X_t and Y_{t-1}: it can leave before the round's gradient is computed.

    Args:
        optimizer: each worker's step on its tracker; `optax.sgd(gamma)` is the equation. Momentum and Adam see y for a gradient.
        topology: W, doubly stochastic; of a schedule, that of the round.

    Raises:
        ValueError: not a topology, or not a doubly stochastic one.

    Source: Nedic, Olshevsky and Shi, "Achieving geometric convergence for distributed optimization over time-varying graphs", 2017,
    DIGing; Di Lorenzo and Scutari, "NEXT", 2016. Departure: of a schedule, Y_{t-1} is averaged by W_t, with which it travels, where DIGing
    has W_{t-1}.
    """
    gossip.need("gradient_tracking", topology)

    def init(params, N):
        models = optimizers.start_local(optimizer, params, N)
        nothing = jax.tree.map(jnp.zeros_like, models.params)
        return State(jnp.int32(0), workers=Tracking(models.params, models.optimizer, nothing, nothing))

    def update(key, state, gradients, round):
        both = (state.workers.params, state.workers.tracker)
        x, y = workers.mix(both, topology, round.step)
        tracker = jax.tree.map(lambda y, new, old: y + new - old, y, gradients, state.workers.gradient)
        change, memory = optimizers.change_local(optimizer, state.workers, tracker)
        models = Tracking(optax.apply_updates(x, change), memory, tracker, gradients)
        return State(state.step + 1, workers=models), told.to_neighbours(both, topology, round.step)

    return gossip.algorithm(
        f"gradient_tracking({topology.name})",
        init,
        update,
        optimizer,
        topology,
        absence.where_symmetric(topology, absence.stay),
        tracked=True,
    )
