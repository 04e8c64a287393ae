"""Gradient tracking with a proximal step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import optax

import topologies
from algorithms import gossip, methods, optimizers
from algorithms.facts import method
from dsgd import Algorithm, Topology, checks
from dsgd.extend import Real


class Tracking(NamedTuple):
    r"""State of the workers, leaves `[n, ...]`.

    Args:
        params: x.
        optimizer: the states of the local optimizers, which are empty.
        tracker: $\gamma y$, for y, the estimate of the mean gradient.
        change: $-\gamma g$, for g, the worker's last gradient.
        shift: $\gamma v$, for v, the subgradient of r at x that the last proximal step used.
    """

    params: Any
    optimizer: Any
    tracker: Any
    change: Any
    shift: Any


@method(
    sends="trackers and models, to neighbours, one after the other",
    exact="any data",
    needs=("doubly stochastic W",),
    regularizer=True,
    paper="Prox-ATC tracking: Alghunaim et al., 2021",
    page="how_to/regularizers.md",
    aliases=("prox_tracking",),
    graph=topologies.ring,
)
@checks.arguments
def proximal_tracking(step_size: Real, topology: Topology) -> Algorithm:
    r"""Prox-ATC gradient tracking: adapt along the tracker, combine, then make the proximal step,
    for problems with a regularizer r.

    $$ Y_t = (Y_{t-1} + V_t) W^T - V_t + G(X_t) - G(X_{t-1}), \qquad X_{t+1} =
    \mathrm{prox}_{\gamma r}(Z_{t+1}), \qquad Z_{t+1} = (X_t - \gamma Y_t) W^T, \qquad V_{t+1} =
    \frac{Z_{t+1} - X_{t+1}}\gamma $$

    The start is $Y_0 = G(X_0)$, $V_0 = 0$. The columns of V are subgradients of r at the models;
    the mean of the trackers is the mean of the gradients. Without a regularizer V = 0, and this is
    gradient tracking in the form of NEXT (adapt, then combine). In a round each worker sends two
    vectors to each neighbour, one after the other.

    With exact gradients the limit is the minimizer of f + r for any data, with $V = -f'(x^\star)$
    and $Y = f'(x^\star)$ on all workers, for sufficiently small $\gamma$.

    Workers that do not participate keep their state, and on a symmetric W messages may be lost: the
    mean of the trackers remains that of the workers' last gradients.

    Args:
        step_size: $\gamma$, above 0.
        topology: W, doubly stochastic. With a schedule, round t uses W_t.

    Raises:
        ValueError: if the step size is not positive or the topology is not doubly stochastic.

    Source: Alghunaim, Ryu, Yuan and Sayed, "Decentralized proximal gradient algorithms with linear
    convergence rates", 2021, with $\bar A = W$ and $B = C = I - W$; trackers are in the place of
    its dual variable.
    """
    checks.number("proximal_tracking: step_size", step_size, "(0, inf)")
    gossip.require_topology("proximal_tracking", topology)

    descent = optax.sgd(step_size)

    def update(x, gradients, round):
        change, memory = optimizers.update_local(descent, x, gradients)
        mixed = round.mix(optax.tree.add(x.tracker, x.shift), topology)
        y = jax.tree.map(
            lambda mixed, v, new, old: mixed - v - (new - old), mixed, x.shift, change, x.change
        )
        z = round.mix(optax.tree.sub(x.params, y), topology)
        params = jax.vmap(round.prox, (0, None))(z, step_size)
        return Tracking(params, memory, y, change, optax.tree.sub(z, params))

    return methods.local_models(
        f"proximal_tracking({topology.name})",
        descent,
        update,
        start=lambda x: Tracking(*x, *[optax.tree.zeros_like(x.params)] * 3),
        topology=topology,
        tracked=True,
    )
