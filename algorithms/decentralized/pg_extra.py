"""PG-EXTRA: EXTRA with a proximal step."""

from __future__ import annotations

import jax
import optax

import topologies
from algorithms import gossip, methods
from algorithms.decentralized import extra
from algorithms.decentralized.exact_diffusion import start_corrected
from algorithms.facts import method
from dsgd import Algorithm, Topology, checks
from dsgd.base import Real


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
    checks.within("pg_extra: step_size", step_size, "(0, inf)")
    gossip.require_topology("pg_extra", topology, symmetric=True, fixed=True)
    descent = optax.sgd(step_size)

    def update(x, gradients, round):
        z = extra.step(descent, topology, x, gradients, round)
        return z._replace(params=jax.vmap(round.prox, (0, None))(z.params, step_size))

    return methods.local_models(
        f"pg_extra({topology.name})", descent, update, start=start_corrected, topology=topology
    )
