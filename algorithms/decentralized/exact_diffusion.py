"""Exact diffusion (NIDS): decentralized steps whose fixed point is the optimum of the average, however different the workers' data are."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import absence, gossip, optimizers
from dsgd import checks, workers
from dsgd.base import Algorithm, Params, PyTree, State
from dsgd.graphs.topology import Topology
from dsgd.network import told


class Corrected(NamedTuple):
    """Local models and what corrects them, leaves `[n, ...]`.

    Args:
        params: x.
        optimizer: the local optimisers' states.
        correction: what gossip has changed so far; each method's own share of it.
        lost: what the correction has lost to rounding. The correction's mean over workers must stay 0: where gradients are exact, rounding
            errors settle into a cycle, and would move the fixed point by as much in every round.
    """

    params: Params
    optimizer: PyTree
    correction: Params
    lost: Params


def start_corrected(optimizer: optax.GradientTransformation, params: Params, N: int) -> State:
    """Equal models, and nothing to correct yet."""
    models = optimizers.start_local(optimizer, params, N)
    nothing = jax.tree.map(jnp.zeros_like, models.params)
    return State(jnp.int32(0), workers=Corrected(*models, nothing, nothing))


def add_up(models: Corrected, more: Params) -> tuple[Params, Params]:
    """The correction grown by `more`, leaves `[n, ...]`, and what it has lost to rounding then: Kahan's sum."""
    step = jax.tree.map(jnp.subtract, more, models.lost)
    total = jax.tree.map(jnp.add, models.correction, step)
    return total, jax.tree.map(lambda after, before, step: (after - before) - step, total, models.correction, step)


@checks.arguments
def exact_diffusion(optimizer: optax.GradientTransformation, topology: Topology) -> Algorithm:
    r"""Exact diffusion: adapt, correct by what combining did to the last step, combine.

    $$ \psi_{t+1} = X_t - \gamma G(X_t), \qquad X_{t+1} = (\psi_{t+1} + X_t - \psi_t) \tfrac{I + W}{2}, \qquad \psi_0 = X_0 $$

    Eliminating psi, $X_{t+1} = (2 X_t - X_{t-1} - \gamma G(X_t) + \gamma G(X_{t-1})) \frac{I + W}{2}$: NIDS with equal steps.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` is the equation. Another one's change stands for $-\gamma G$.
        topology: W, symmetric, the same in all rounds.

    Raises:
        ValueError: not a topology, one that is not symmetric, or a schedule.

    Source: Yuan, Ying, Zhao and Sayed, "Exact diffusion for distributed optimization and learning", 2019; Li, Shi and Yan, "NIDS", 2019
    (which does not combine in its first step).
    """
    gossip.need("exact_diffusion", topology, symmetric=True, fixed=True)
    return adapt_correct_combine(f"exact_diffusion({topology.name})", optimizer, topology, 0.5)


def adapt_correct_combine(name: str, optimizer: optax.GradientTransformation, topology: Topology, share: float) -> Algorithm:
    r"""The method that combines by $I + s (W - I)$.

    With $\phi_{t+1} = \psi_{t+1} + C_t$, the correction $C_t = X_t - \psi_t$ grows by what combining changes,
    $C_{t+1} = C_t + s\, \phi_{t+1} (W - I)$: small terms of mean 0, so that rounding errors do not become a drift of the mean.
    """

    def init(params, N):
        return start_corrected(optimizer, params, N)

    def update(key, state, gradients, round):
        x, _, correction, _ = state.workers
        change, memory = optimizers.change_local(optimizer, state.workers, gradients)
        corrected = jax.tree.map(lambda x, u, c: x + (u + c), x, change, correction)
        moved = jax.tree.map(lambda pulled: share * pulled, workers.pull(corrected, topology, round.step))
        models = Corrected(jax.tree.map(jnp.add, corrected, moved), memory, *add_up(state.workers, moved))
        return State(state.step + 1, workers=models), told.to_neighbours(x, topology, round.step)

    return gossip.algorithm(name, init, update, optimizer, topology, absence.ONE_W)
