"""Quasi-global momentum: local momenta of the models' changes, which contain the averages."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import optax

import topologies
from algorithms import gossip, methods, optimizers
from algorithms.facts import method
from dsgd import Algorithm, Topology, checks
from dsgd.extend import Real


class QuasiGlobal(NamedTuple):
    """Local models and momenta, leaves `[n, ...]`.

    Args:
        params: x.
        optimizer: the states of the local optimizers.
        momentum: D, the moving average of the models' changes.
    """

    params: Any
    optimizer: Any
    momentum: Any


@method(
    sends="models, to neighbours",
    needs=("doubly stochastic W",),
    paper="QG-DSGDm: Lin et al., 2021",
    page="how_to/decentralized.md",
    aliases=("qg_dsgdm",),
    graph=topologies.ring,
)
@checks.arguments
def quasi_global_momentum(
    optimizer: optax.GradientTransformation,
    topology: Topology,
    momentum: Real = 0.9,
    decay: Real | None = None,
    *,
    nesterov: bool = False,
) -> Algorithm:
    r"""Quasi-global momentum (QG-DSGDm): decentralized SGD with a momentum of the changes of a
    worker's model, which its neighbours influence, instead of its own gradients.

    $$ X_{t+1} = (X_t - \beta D_t - \gamma\, G(X_t; \xi_t))\, W_t^T, \qquad
    D_{t+1} = \mu D_t + (1 - \mu) (X_t - X_{t+1}), \qquad D_0 = 0 $$

    With Nesterov's momentum the step is
    $-\gamma\, (1 + \beta)\, G(X_t; \xi_t) - \beta^2 D_t$. Each worker sends one model to each
    neighbour. With $\beta = 0$ the method is `decentralized_sgd`. With exact gradients and a
    constant step size it has the same fixed point for all $\beta$ and $\mu$ (with Nesterov's
    momentum, that of the step size $(1 + \beta) \gamma$), because D vanishes there. It is biased if
    the workers' data differ, but momentum does not enlarge the bias, as it does in
    `decentralized_sgd`. A worker that does not participate keeps its state, and messages may be
    lost if W is symmetric.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation. The update of any
            other optimizer replaces $-\gamma G$.
        topology: W, doubly stochastic. With a schedule, round t uses W_t.
        momentum: $\beta$, in [0, 1). It may be swept.
        decay: $\mu$, in [0, 1); None: $\beta$, as in the paper's experiments.
        nesterov: whether to use Nesterov's momentum (QG-DSGDm-N).

    Raises:
        ValueError: if the topology is not doubly stochastic, or $\beta$ or $\mu$ is not in [0, 1).

    Source: Lin, Karimireddy, Stich and Jaggi, "Quasi-global momentum: accelerating decentralized
    deep learning on heterogeneous data", 2021. Departure: the paper divides the changes by
    $\gamma$; D is $\gamma$ times its momentum. The two differ if the step size changes.
    """
    gossip.require_topology("quasi_global_momentum", topology)
    checks.number("quasi_global_momentum: momentum", momentum, "[0, 1)")
    decay = momentum if decay is None else decay
    checks.number("quasi_global_momentum: decay", decay, "[0, 1)")
    beta, mu = momentum, decay
    ahead, memory_share = (1 + beta, beta**2) if nesterov else (1, beta)

    def update(state, gradients, round):
        change, memory = optimizers.update_local(optimizer, state, gradients)
        half = jax.tree.map(
            lambda x, u, d: (x + ahead * u - memory_share * d).astype(x.dtype),
            *(state.params, change, state.momentum),
        )
        half, memory = round.if_active((half, memory), (state.params, state.optimizer))
        x = round.mix(half, topology)
        d = jax.tree.map(
            lambda d, before, after: (mu * d + (1 - mu) * (before - after)).astype(d.dtype),
            *(state.momentum, state.params, x),
        )
        return QuasiGlobal(x, memory, d)

    return methods.local_models(
        f"quasi_global_momentum({topology.name})",
        optimizer,
        update,
        start=lambda x: QuasiGlobal(x.params, x.optimizer, optax.tree.zeros_like(x.params)),
        topology=topology,
    )
