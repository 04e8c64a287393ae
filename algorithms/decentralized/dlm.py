"""DLM: linearized ADMM on a graph."""

from __future__ import annotations

import jax
import optax

import topologies
from algorithms import gossip, methods, optimizers
from algorithms.facts import method
from algorithms.mechanisms.corrections import ONE_W, Corrected, add_up, start_corrected
from dsgd import Algorithm, Topology, checks
from dsgd.extend import Real


@method(
    sends="models, to neighbours",
    exact="any data",
    needs=("symmetric W", "one W", "all workers"),
    paper="DLM: Ling et al., 2015",
    page="reference/topologies.md",
    graph=topologies.ring,
)
@checks.arguments
def dlm(
    optimizer: optax.GradientTransformation, topology: Topology, penalty: Real = 0.5
) -> Algorithm:
    r"""DLM: decentralized ADMM in which each worker replaces the minimization of its loss by one
    gradient step.

    $$ X_{t+1} = X_t - \gamma \big(G(X_t) + \rho X_t L + Y_t\big), \qquad
    Y_{t+1} = Y_t + \rho X_{t+1} L, \qquad Y_0 = \rho X_0 L $$

    $L = D - A$ is the unweighted Laplacian matrix of the graph, so that $(X L)_n =
    \sum_{m \in \mathcal N_n} (x_n - x_m)$; the weights of W are not used. Y starts at 0 if
    all workers start from the same model. Each worker sends one model to each neighbour in each
    round. With exact gradients the limit is the optimum, and
    $y_n \to -f_n'(x^\star)$. With `optax.sgd(gamma)` the method is EXTRA with $W = I - 2 \gamma
    \rho L$. All workers must participate.

    Args:
        optimizer: each worker's step along $g_n + \rho (X L)_n + y_n$; `optax.sgd(gamma)` gives the
            equation.
        topology: an undirected graph, the same in all rounds.
        penalty: $\rho$, positive.

    Raises:
        ValueError: if the topology is not symmetric or is a schedule, or $\rho$ is not positive.

    Source: Ling, Shi, Wu and Ribeiro, "DLM: decentralized linearized alternating direction method
    of multipliers", 2015. Departure: all workers have the same step size; the paper's is $1 / (2
    \rho d_n + \rho_2)$ with the number of neighbours $d_n$.
    """
    gossip.require_topology("dlm", topology, symmetric=True, fixed=True)
    topology.require_one_exchange("dlm")
    checks.number("dlm: penalty", penalty, "(0, inf)")

    def update(x, gradients, round):
        round.require_all(ONE_W)
        pull = round.laplacian(x.params, topology, weighted=False)  # -X L
        XL = jax.tree.map(lambda pull: (-penalty * pull).astype(pull.dtype), pull)  # rho X L
        Y, lost = add_up(x, XL)
        slope = jax.tree.map(lambda g, XL, Y: g + (XL + Y), gradients, XL, Y)
        change, memory = optimizers.update_local(optimizer, x, slope)
        return Corrected(optax.apply_updates(x.params, change), memory, Y, lost)

    return methods.local_models(
        f"dlm({topology.name})",
        optimizer,
        update,
        start=start_corrected,
        topology=topology,
        tracked=True,
    )
