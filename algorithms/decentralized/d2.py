"""D2: decentralized SGD for workers with different data."""

from __future__ import annotations

import optax

from algorithms import gossip
from algorithms.decentralized.exact_diffusion import adapt_correct_combine
from dsgd import checks
from dsgd.base import Algorithm
from dsgd.graphs.topology import Topology


@checks.arguments
def d2(optimizer: optax.GradientTransformation, topology: Topology) -> Algorithm:
    r"""D2: the step goes on from where the last one led, and only then the models are averaged.

    $$ X_{t+1} = (2 X_t - X_{t-1} - \gamma G(X_t; \xi_t) + \gamma G(X_{t-1}; \xi_{t-1}))\, W $$

    The first step is $X_1 = (X_0 - \gamma G(X_0; \xi_0)) W$. It is exact diffusion with W in the place of
    (I + W)/2, and computed as such.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` is the equation. Another one's change stands for $-\gamma G$.
        topology: W, symmetric, the same in all rounds, with no eigenvalue at or below -1/3.

    Raises:
        ValueError: not a topology, one that is not symmetric, a schedule, or an eigenvalue at or below -1/3: the survey's ring of an even
            number of workers has one there, and D2 does not converge on it.

    Source: Tang, Lian, Yan, Zhang and Liu, "D2: decentralized training over decentralized data", 2018.
    """
    gossip.need("d2", topology, symmetric=True, fixed=True)
    if topology.smallest_eigenvalue <= -1 / 3 + 1e-9:
        raise ValueError(
            f"d2 on {topology.name}, whose W has the eigenvalue {topology.smallest_eigenvalue:.6g}: need all above -1/3, as with"
            " weights=topologies.lazy"
        )
    return adapt_correct_combine("d2", optimizer, topology, 1.0)
