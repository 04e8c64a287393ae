"""DecentLaM: momentum of gradients that contain the averages with the neighbours."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import optax

import topologies
from algorithms import gossip, methods, optimizers
from algorithms.facts import method
from dsgd import Algorithm, Topology, checks
from dsgd.extend import Real


class HeavyBall(NamedTuple):
    """Local models and momenta, leaves `[n, ...]`.

    Args:
        params: x.
        optimizer: the states of the local optimizers.
        momentum: V, the last change of the model, old minus new.
    """

    params: Any
    optimizer: Any
    momentum: Any


@method(
    sends="models, to neighbours",
    needs=("doubly stochastic W",),
    paper="DecentLaM: Yuan et al., 2021",
    page="how_to/decentralized.md",
    graph=topologies.ring,
)
@checks.arguments
def decentlam(
    optimizer: optax.GradientTransformation, topology: Topology, momentum: Real = 0.9
) -> Algorithm:
    r"""DecentLaM: the whole change that decentralized SGD makes, step and average, is the gradient
    of heavy-ball momentum.

    $$ V_t = \beta V_{t-1} + X_t - (X_t - \gamma\, G(X_t; \xi_t))\, W_t^T, \qquad
    X_{t+1} = X_t - V_t, \qquad V_{-1} = 0 $$

    Without V, $X_{t+1} = (X_t - \gamma G(X_t; \xi_t))\, W_t^T + \beta (X_t - X_{t-1})$. Each worker
    sends one model to each neighbour. With $\beta = 0$ the method is `decentralized_sgd`. With
    exact gradients and a constant step size it has the same fixed point for all $\beta$. It is
    biased if the workers' data differ, but momentum does not enlarge the bias, as it does in
    `decentralized_sgd`. A worker that does not participate keeps its state, and messages may be
    lost if W is symmetric.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation. The update of any
            other optimizer replaces $-\gamma G$.
        topology: W, doubly stochastic. With a schedule, round t uses W_t.
        momentum: $\beta$, in [0, 1). It may be swept.

    Raises:
        ValueError: if the topology is not doubly stochastic, or $\beta$ is not in [0, 1).

    Source: Yuan, Chen, Huang, Zhang, Pan, Xu and Yin, "DecentLaM: decentralized momentum SGD for
    large-batch deep training", 2021. Departure: the paper divides the change by $\gamma$; V is
    $\gamma$ times its momentum. The two differ if the step size changes.
    """
    gossip.require_topology("decentlam", topology)
    checks.number("decentlam: momentum", momentum, "[0, 1)")

    def update(state, gradients, round):
        half = optimizers.local_step(optimizer, state, gradients, round)  # X - gamma G
        mixed = round.mix(half.params, topology)
        v = jax.tree.map(
            lambda v, before, after: (momentum * v + (before - after)).astype(v.dtype),
            *(state.momentum, state.params, mixed),
        )
        return HeavyBall(optax.tree.sub(state.params, v), half.optimizer, v)

    return methods.local_models(
        f"decentlam({topology.name})",
        optimizer,
        update,
        start=lambda x: HeavyBall(x.params, x.optimizer, optax.tree.zeros_like(x.params)),
        topology=topology,
    )
