"""Corrections that accumulate the changes which gossip makes: adapt, correct, combine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import methods, optimizers
from dsgd import Algorithm, Communicator, Topology
from dsgd.extend import Gradients, Params, Real

ONE_W = (
    "its correction accumulates the changes that the same W makes in every round, and a round with "
    "missing messages uses another W"
)


class Corrected(NamedTuple):
    """Local models and their corrections, leaves `[n, ...]`.

    Args:
        params: x.
        optimizer: the states of the local optimizers.
        correction: the accumulated changes by gossip, with each method's own factor.
        lost: the rounding error of `correction` (the compensation of Kahan's sum). The correction's
            mean over workers must stay 0: with exact gradients, rounding errors settle into a
            cycle, and would otherwise move the fixed point by the same amount in every round.
    """

    params: Any
    optimizer: Any
    correction: Any
    lost: Any


def start_corrected(models: optimizers.Model) -> Corrected:
    """Returns the initial state, with a correction of 0."""
    return Corrected(*models, *[optax.tree.zeros_like(models.params)] * 2)


def add_up(models: Any, increment: Params) -> tuple[Params, Params]:
    """Returns the correction increased by `increment`, leaves `[n, ...]`, and the new rounding
    error (Kahan's sum).

    Args:
        models: state with fields `correction` and `lost`.
        increment: leaves `[n, ...]`.
    """
    step = optax.tree.sub(increment, models.lost)
    total = optax.tree.add(models.correction, step)
    return total, jax.tree.map(
        lambda after, before, step: (after - before) - step, total, models.correction, step
    )


def corrected_step(
    optimizer: optax.GradientTransformation,
    models: Any,
    gradients: Gradients,
    weight: Real,
    round: Communicator,
) -> Any:
    r"""Makes every worker's local step $x - \gamma g + \beta c$. Workers that do not participate or
    compute nothing make none.

    Args:
        optimizer: each worker's optimizer.
        models: state with fields `params`, `optimizer` and `correction`, which is c.
        gradients: leaves `[n, ...]`.
        weight: $\beta$.
        round: the current round.
    """
    change, memory = optimizers.update_local(optimizer, models, gradients)
    phi = jax.tree.map(
        lambda x, u, c: x + (u + jnp.asarray(weight, c.dtype) * c),
        models.params,
        change,
        models.correction,
    )
    return round.if_active(models._replace(params=phi, optimizer=memory), models)


def adapt_correct_combine(
    name: str,
    optimizer: optax.GradientTransformation,
    topology: Topology,
    share: Real,
    *,
    weight: Real = 1.0,
    sends: Callable[[Communicator, Callable, Corrected], Corrected] | None = None,
) -> Algorithm:
    r"""Returns the method that combines with $I + s (W - I)$.

    $$ \Phi_t = X_t - \gamma G(X_t) + \beta C_t, \qquad
       X_{t+1} = \Phi_t + s\, \Phi_t (W - I), \qquad C_{t+1} = C_t + s\, \Phi_t (W - I) $$

    The correction C accumulates the changes that combining makes. These terms are small and have
    mean 0, so that rounding errors do not become a drift of the mean. In rounds without messages,
    $X_{t+1} = \Phi_t$ and $C_{t+1} = C_t$.

    Args:
        name, optimizer, topology: see `methods.local_models`.
        share: s.
        weight: $\beta$.
        sends: (Communicator, combine, state) -> `combine(state)` in rounds that send messages, and
            the same state in others; None: all rounds send.
    """

    def update(x, gradients, round):
        round.require_all(ONE_W)

        def combine(x: Corrected) -> Corrected:
            pull = round.laplacian(x.params, topology)
            moved = jax.tree.map(lambda pull: jnp.asarray(share, pull.dtype) * pull, pull)
            return Corrected(optax.tree.add(x.params, moved), x.optimizer, *add_up(x, moved))

        x = corrected_step(optimizer, x, gradients, weight, round)
        return combine(x) if sends is None else sends(round, combine, x)

    return methods.local_models(name, optimizer, update, start=start_corrected, topology=topology)
