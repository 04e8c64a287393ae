"""EXTRA and PG-EXTRA: decentralized gradient descent, corrected by its past iterates."""

from __future__ import annotations

import jax
import optax

import topologies
from algorithms import gossip, methods, optimizers
from algorithms.facts import method
from algorithms.mechanisms.corrections import ONE_W, Corrected, add_up, start_corrected
from dsgd import Algorithm, Communicator, Gradients, Topology, checks
from dsgd.extend import Real


@method(
    sends="models, to neighbours",
    exact="any data",
    needs=("symmetric W", "one W", "all workers"),
    paper="Shi et al., 2015, (2.13)",
    page="how_to/decentralized.md",
    graph=topologies.ring,
)
@checks.arguments
def extra(optimizer: optax.GradientTransformation, topology: Topology) -> Algorithm:
    r"""EXTRA: the difference of two rounds of decentralized gradient descent, in which their biases
    cancel.

    $$ X_{t+1} = X_t (I + W) - X_{t-1} \tfrac{I + W}{2} - \gamma (G(X_t) - G(X_{t-1})), \qquad X_1 =
    X_0 W - \gamma G(X_0) $$

    Summed over the rounds, this is $X_{t+1} = X_t W - \gamma G(X_t) + \frac12 \sum_{s<t} X_s (W -
    I)$, and it is computed in this form: each worker sends one model to each neighbour, and the
    accumulated sum has mean 0, so that rounding errors do not become a drift of the mean.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation. The update of any
            other optimizer replaces $-\gamma G$.
        topology: W, symmetric, the same in all rounds.

    Raises:
        ValueError: if the topology is not symmetric or is a schedule.

    Source: Shi, Ling, Wu and Yin, "EXTRA: an exact first-order algorithm for decentralized
    consensus optimization", 2015.
    """
    gossip.require_topology("extra", topology, symmetric=True, fixed=True)

    def update(x, gradients, round):
        return _step(optimizer, topology, x, gradients, round)

    return methods.local_models(
        f"extra({topology.name})", optimizer, update, start=start_corrected, topology=topology
    )


@method(
    sends="models, to neighbours",
    exact="any data",
    needs=("symmetric W", "one W", "all workers"),
    regularizer=True,
    paper="Shi et al., 2015",
    page="how_to/regularizers.md",
    graph=topologies.ring,
)
@checks.arguments
def pg_extra(step_size: Real, topology: Topology) -> Algorithm:
    r"""PG-EXTRA: proximal gradient steps in the form of EXTRA, for problems with a regularizer r.

    $$ X_{t+1} = \mathrm{prox}_{\gamma r}(Z_{t+1}), \qquad Z_{t+1} = X_t W + Z_t - X_{t-1} \tfrac{I
    + W}{2} - \gamma (G(X_t) - G(X_{t-1})), \qquad Z_1 = X_0 W - \gamma G(X_0) $$

    Summed over the rounds, this is $Z_{t+1} = X_t W - \gamma G(X_t) + \frac12 \sum_{s<t} X_s (W -
    I)$: a step of EXTRA, then the proximal step. Without a regularizer it is `extra`. Each worker
    sends one model to each neighbour. All workers must participate.

    With exact gradients the limit is the minimizer of f + r for any data. Convex f_n that are
    L-smooth need $\gamma < (1 + \lambda_{\min}(W)) / L$.

    Args:
        step_size: $\gamma$, above 0.
        topology: W, symmetric, the same in all rounds.

    Raises:
        ValueError: if the step size is not positive, the topology is not symmetric or is a
            schedule, or, in a run, not all workers participate.

    Source: Shi, Ling, Wu and Yin, "A proximal gradient algorithm for decentralized composite
    optimization", 2015.
    """
    checks.number("pg_extra: step_size", step_size, "(0, inf)")
    gossip.require_topology("pg_extra", topology, symmetric=True, fixed=True)
    descent = optax.sgd(step_size)

    def update(x, gradients, round):
        z = _step(descent, topology, x, gradients, round)
        return z._replace(params=jax.vmap(round.prox, (0, None))(z.params, step_size))

    return methods.local_models(
        f"pg_extra({topology.name})", descent, update, start=start_corrected, topology=topology
    )


def _step(
    optimizer: optax.GradientTransformation,
    topology: Topology,
    x: Corrected,
    gradients: Gradients,
    round: Communicator,
) -> Corrected:
    """Returns the workers' states after a round of EXTRA."""
    round.require_all(ONE_W)
    change, memory = optimizers.update_local(optimizer, x, gradients)
    pull = round.laplacian(x.params, topology)  # X (W - I)
    new = jax.tree.map(lambda x, p, u, c: x + (p + u + c), x.params, pull, change, x.correction)
    return Corrected(new, memory, *add_up(x, jax.tree.map(lambda pull: pull / 2, pull)))
