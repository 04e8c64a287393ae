"""Gradient tracking: every worker estimates the mean of all gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import optax

from algorithms import gossip, methods, optimizers
from dsgd import Algorithm, Topology, checks
from dsgd.base import Gradients, Params


class Tracking(NamedTuple):
    """Local models and trackers, leaves `[n, ...]`.

    Args:
        params: x.
        optimizer: the states of the local optimizers.
        tracker: y, the estimate of the mean gradient, as it is after the round's messages.
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
    over time-varying graphs", 2017, DIGing. Departure: with a schedule, Y_{t-1} is averaged by W_t,
    in whose round it is sent, instead of DIGing's W_{t-1}.
    """

    def update(state, gradients, round):
        x, y = round.mix((state.params, state.tracker), topology)
        y = track(y, gradients, state.gradient)
        change, memory = optimizers.update_local(optimizer, state, y)
        return Tracking(optax.apply_updates(x, change), memory, y, gradients)

    return _tracking("gradient_tracking", optimizer, topology, update)


@checks.arguments
def atc_tracking(optimizer: optax.GradientTransformation, topology: Topology) -> Algorithm:
    r"""Gradient tracking that adapts, then combines: each worker steps along its tracker before the
    models are averaged (NEXT, and SONATA on undirected graphs).

    $$ X_{t+1} = (X_t - \gamma Y_t) W_t^T, \qquad Y_{t+1} = Y_t W_t^T + G(X_{t+1}) - G(X_t), \qquad
    Y_0 = G(X_0) $$

    In a round each worker sends one message to each neighbour, with its model after the step and
    its tracker. The mean of the trackers is the mean of the gradients, so that with exact gradients
    the fixed point is the minimizer of f for any data. On the complete graph the mean of the models
    makes the steps of mini-batch SGD. A worker that does not participate keeps its state, and
    messages may be lost if W is symmetric.

    Args:
        optimizer: each worker's step along its tracker; `optax.sgd(gamma)` gives the equation.
            Momentum and Adam receive y as the gradient.
        topology: W, doubly stochastic. With a schedule, round t uses W_t.

    Raises:
        ValueError: if the topology is not doubly stochastic.

    Source: Di Lorenzo and Scutari, "NEXT: in-network nonconvex optimization", 2016; Xu, Zhu, Soh
    and Xie, "Augmented distributed gradient methods for multi-agent optimization under
    uncoordinated constant stepsizes", 2015. NEXT also allows surrogates of the objectives; this is
    its form with linear surrogates.
    """

    def update(state, gradients, round):
        y = track(state.tracker, gradients, state.gradient)
        change, memory = optimizers.update_local(optimizer, state, y)
        half = optax.apply_updates(state.params, change)  # X - gamma Y
        x, y = round.mix((half, y), topology)
        return Tracking(x, memory, y, gradients)

    return _tracking("atc_tracking", optimizer, topology, update)


def track(tracker: Params, gradients: Gradients, last: Gradients) -> Params:
    """Returns the trackers increased by the changes of the gradients, leaves `[n, ...]`."""
    return optax.tree.sub(optax.tree.add(tracker, gradients), last)


def _tracking(
    name: str, optimizer: optax.GradientTransformation, topology: Topology, update: Callable
) -> Algorithm:
    """Returns a method with the state `Tracking`, whose first tracker is the first gradient."""
    gossip.require_topology(name, topology)
    return methods.local_models(
        f"{name}({topology.name})",
        optimizer,
        update,
        start=lambda x: Tracking(*x, *[optax.tree.zeros_like(x.params)] * 2),
        topology=topology,
        tracked=True,
    )
