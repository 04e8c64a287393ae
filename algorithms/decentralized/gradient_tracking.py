"""Gradient tracking: every worker follows the mean of all gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import optax

from algorithms import gossip, methods, optimizers
from dsgd import Algorithm, Topology, checks


class Tracking(NamedTuple):
    """Local models and trackers, leaves `[n, ...]`.

    Args:
        params: x.
        optimizer: the local optimisers' states.
        tracker: y, the estimate of the mean gradient.
        gradient: g, the last own one.
    """

    params: Any
    optimizer: Any
    tracker: Any
    gradient: Any


@checks.arguments
def gradient_tracking(optimizer: optax.GradientTransformation, topology: Topology) -> Algorithm:
    r"""Gradient tracking in the form of DIGing: models and trackers are both averaged; the mean of
    the trackers is that of the gradients.

    $$ Y_t = Y_{t-1} W_t^T + G(X_t) - G(X_{t-1}), \qquad X_{t+1} = X_t W_t^T - \gamma Y_t, \qquad
    Y_0 = G(X_0) $$

    A message has both, X_t and Y_{t-1}: it can leave before the round's gradient is computed.

    Args:
        optimizer: each worker's step on its tracker; `optax.sgd(gamma)` is the equation. Momentum
            and Adam see y for a gradient.
        topology: W, doubly stochastic; of a schedule, that of the round.

    Raises:
        ValueError: not a topology, or not a doubly stochastic one.

    Source: Nedic, Olshevsky and Shi, "Achieving geometric convergence for distributed optimization
    over time-varying graphs", 2017, DIGing; Di Lorenzo and Scutari, "NEXT", 2016. Departure: of a
    schedule, Y_{t-1} is averaged by W_t, with which it travels, where DIGing has W_{t-1}.
    """
    gossip.need("gradient_tracking", topology)

    def update(state, gradients, round):
        x, y = round.mix((state.params, state.tracker), topology)
        y = optax.tree.sub(optax.tree.add(y, gradients), state.gradient)
        change, memory = optimizers.change_local(optimizer, state, y)
        return Tracking(optax.apply_updates(x, change), memory, y, gradients)

    name, start = (
        f"gradient_tracking({topology.name})",
        lambda x: Tracking(*x, *[optax.tree.zeros_like(x.params)] * 2),
    )
    return methods.local_models(
        name, optimizer, update, start=start, topology=topology, tracked=True
    )
