"""Gradient tracking: every worker estimates the mean of all gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import optax

from algorithms import gossip, methods, optimizers
from dsgd import Algorithm, Topology, checks


class Tracking(NamedTuple):
    """Local models and trackers, leaves `[n, ...]`.

    Args:
        params: x.
        optimizer: the states of the local optimizers.
        tracker: y, the estimate of the mean gradient.
        gradient: g, the worker's last gradient.
    """

    params: Any
    optimizer: Any
    tracker: Any
    gradient: Any


@checks.arguments
def gradient_tracking(optimizer: optax.GradientTransformation, topology: Topology) -> Algorithm:
    r"""Gradient tracking in the form of DIGing: models and trackers are both averaged, and the mean
    of the trackers is the mean of the gradients.

    $$ Y_t = Y_{t-1} W_t^T + G(X_t) - G(X_{t-1}), \qquad X_{t+1} = X_t W_t^T - \gamma Y_t, \qquad
    Y_0 = G(X_0) $$

    A message contains both X_t and Y_{t-1}, so it can be sent before the round's gradient is
    computed.

    Args:
        optimizer: each worker's step along its tracker; `optax.sgd(gamma)` gives the equation.
            Momentum and Adam receive y as the gradient.
        topology: W, doubly stochastic. With a schedule, round t uses W_t.

    Raises:
        ValueError: if the topology is not doubly stochastic.

    Source: Nedic, Olshevsky and Shi, "Achieving geometric convergence for distributed optimization
    over time-varying graphs", 2017, DIGing; Di Lorenzo and Scutari, "NEXT", 2016. Departure: with a
    schedule, Y_{t-1} is averaged by W_t, in whose round it is sent, instead of DIGing's W_{t-1}.
    """
    gossip.require_topology("gradient_tracking", topology)

    def update(state, gradients, round):
        x, y = round.mix((state.params, state.tracker), topology)
        y = optax.tree.sub(optax.tree.add(y, gradients), state.gradient)
        change, memory = optimizers.update_local(optimizer, state, y)
        return Tracking(optax.apply_updates(x, change), memory, y, gradients)

    name, start = (
        f"gradient_tracking({topology.name})",
        lambda x: Tracking(*x, *[optax.tree.zeros_like(x.params)] * 2),
    )
    return methods.local_models(
        name, optimizer, update, start=start, topology=topology, tracked=True
    )
