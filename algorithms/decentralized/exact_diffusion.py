"""Exact diffusion (NIDS): decentralized steps whose fixed point is the optimum of the average,
however different the workers' data are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import optax

from algorithms import gossip, methods, optimizers
from dsgd import Algorithm, Topology, checks
from dsgd.base import Params

ONE_W = "its correction remembers what one W has changed in all rounds, and without some messages that is another W"


class Corrected(NamedTuple):
    """Local models and what corrects them, leaves `[n, ...]`.

    Args:
        params: x.
        optimizer: the local optimisers' states.
        correction: what gossip has changed so far; each method's own share of it.
        lost: what the correction has lost to rounding. The correction's mean over workers must stay
            0: where gradients are exact, rounding errors settle into a cycle, and would move the
            fixed point by as much in every round.
    """

    params: Any
    optimizer: Any
    correction: Any
    lost: Any


def start_corrected(models: optimizers.Model) -> Corrected:
    """Nothing to correct yet."""
    return Corrected(*models, *[optax.tree.zeros_like(models.params)] * 2)


def add_up(models: Corrected, more: Params) -> tuple[Params, Params]:
    """The correction grown by `more`, leaves `[n, ...]`, and what it has lost to rounding then:
    Kahan's sum.
    """
    step = optax.tree.sub(more, models.lost)
    total = optax.tree.add(models.correction, step)
    return total, jax.tree.map(
        lambda after, before, step: (after - before) - step, total, models.correction, step
    )


@checks.arguments
def exact_diffusion(optimizer: optax.GradientTransformation, topology: Topology) -> Algorithm:
    r"""Exact diffusion: adapt, correct by what combining did to the last step, combine.

    $$ \psi_{t+1} = X_t - \gamma G(X_t), \qquad X_{t+1} = (\psi_{t+1} + X_t - \psi_t) \tfrac{I +
    W}{2}, \qquad \psi_0 = X_0 $$

    Eliminating psi,
    $X_{t+1} = (2 X_t - X_{t-1} - \gamma G(X_t) + \gamma G(X_{t-1})) \frac{I + W}{2}$: NIDS with
    equal steps.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` is the equation. Another one's change
            stands for $-\gamma G$.
        topology: W, symmetric, the same in all rounds.

    Raises:
        ValueError: not a topology, one that is not symmetric, or a schedule.

    Source: Yuan, Ying, Zhao and Sayed, "Exact diffusion for distributed optimization and learning",
    2019; Li, Shi and Yan, "NIDS", 2019 (which does not combine in its first step).
    """
    gossip.need("exact_diffusion", topology, symmetric=True, fixed=True)
    return adapt_correct_combine(f"exact_diffusion({topology.name})", optimizer, topology, 0.5)


def adapt_correct_combine(
    name: str, optimizer: optax.GradientTransformation, topology: Topology, share: float
) -> Algorithm:
    r"""The method that combines by $I + s (W - I)$.

    With $\phi_{t+1} = \psi_{t+1} + C_t$, the correction $C_t = X_t - \psi_t$ grows by what
    combining changes, $C_{t+1} = C_t + s\, \phi_{t+1} (W - I)$: small terms of mean 0, so that
    rounding errors do not become a drift of the mean.
    """

    def update(x, gradients, round):
        round.require_all(ONE_W)
        change, memory = optimizers.change_local(optimizer, x, gradients)
        phi = jax.tree.map(lambda x, u, c: x + (u + c), x.params, change, x.correction)
        moved = jax.tree.map(lambda pull: share * pull, round.laplacian(phi, topology))
        return Corrected(optax.tree.add(phi, moved), memory, *add_up(x, moved))

    return methods.local_models(name, optimizer, update, start=start_corrected, topology=topology)
