"""Trackers, with which each worker estimates the mean of all gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import optax

from algorithms import gossip, methods
from dsgd import Algorithm, Topology
from dsgd.extend import Gradients, Params


class Tracking(NamedTuple):
    """Local models and trackers, leaves `[n, ...]`.

    Args:
        params: x.
        optimizer: the states of the local optimizers.
        tracker: y, the estimate of the mean gradient, as it is after the round's messages.
        gradient: g, the worker's last gradient; in `momentum_tracking` its momentum u.
    """

    params: Any
    optimizer: Any
    tracker: Any
    gradient: Any


def track(tracker: Params, gradients: Gradients, last: Gradients) -> Params:
    """Returns the trackers increased by the changes of the gradients, leaves `[n, ...]`.

    Near the limit the change and the tracker are small, and their sum has a small rounding error.
    The sum of a tracker and a gradient would have an error as large as a rounding of the gradient,
    and these errors would add up.
    """
    return optax.tree.add(tracker, optax.tree.sub(gradients, last))


def with_trackers(
    name: str, optimizer: optax.GradientTransformation, topology: Topology, update: Callable
) -> Algorithm:
    """Returns a method with the state `Tracking`. The first tracker is the first gradient."""
    gossip.require_topology(name, topology)
    return methods.local_models(
        f"{name}({topology.name})",
        optimizer,
        update,
        start=lambda x: Tracking(*x, *[optax.tree.zeros_like(x.params)] * 2),
        topology=topology,
        tracked=True,
    )
