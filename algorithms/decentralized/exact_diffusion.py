"""Exact diffusion (NIDS): a decentralized method whose fixed point is the optimum of the mean
objective, for any heterogeneity of the workers' data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import topologies
from algorithms import gossip, methods, optimizers
from algorithms.facts import method
from dsgd import Algorithm, Topology, checks
from dsgd.base import Gradients, Params, Real
from dsgd.communication import Communicator

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


@method(
    sends="models, to neighbours",
    exact="any data",
    needs=("symmetric W", "one W", "all workers"),
    paper="Yuan et al., 2019; NIDS, 2019",
    page="how_to/decentralized.md",
    graph=topologies.ring,
)
@checks.arguments
def exact_diffusion(optimizer: optax.GradientTransformation, topology: Topology) -> Algorithm:
    r"""Exact diffusion: adapt, correct by the change that combining made in the last round,
    combine.

    $$ \psi_{t+1} = X_t - \gamma G(X_t), \qquad X_{t+1} = (\psi_{t+1} + X_t - \psi_t) \tfrac{I +
    W}{2}, \qquad \psi_0 = X_0 $$

    Without psi, $X_{t+1} = (2 X_t - X_{t-1} - \gamma G(X_t) + \gamma G(X_{t-1})) \frac{I + W}{2}$;
    this is NIDS with equal step sizes. A worker that computes nothing in a round (`Query.work`)
    makes no step in it.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation. The update of any
            other optimizer replaces $-\gamma G$.
        topology: W, symmetric, the same in all rounds.

    Raises:
        ValueError: if the topology is not symmetric or is a schedule.

    Source: Yuan, Ying, Zhao and Sayed, "Exact diffusion for distributed optimization and learning",
    2019; Li, Shi and Yan, "NIDS", 2019 (which does not combine in its first step).
    """
    gossip.require_topology("exact_diffusion", topology, symmetric=True, fixed=True)
    return adapt_correct_combine(f"exact_diffusion({topology.name})", optimizer, topology, 0.5)


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
