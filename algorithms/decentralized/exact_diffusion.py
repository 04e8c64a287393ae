"""Exact diffusion (NIDS): a decentralized method whose fixed point is the optimum of the mean
objective, for any heterogeneity of the workers' data.
"""

from __future__ import annotations

from functools import partial

import optax

import topologies
from algorithms import gossip
from algorithms.facts import method
from algorithms.mechanisms.corrections import adapt_correct_combine
from dsgd import Algorithm, Topology, checks


@method(
    sends="models, to neighbours",
    exact="any data",
    needs=("symmetric W", "one W", "all workers"),
    paper="Yuan et al., 2019; NIDS, 2019",
    page="how_to/decentralized.md",
    graph=topologies.ring,
    candidates={"any problem": [{"graph": partial(topologies.ring, weights=topologies.lazy)}]},
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
