"""D2: decentralized SGD for workers with different data."""

from __future__ import annotations

import optax

from algorithms import gossip
from algorithms.decentralized.exact_diffusion import adapt_correct_combine
from dsgd import checks
from dsgd.base import Algorithm
from dsgd.graphs.topology import Topology


@checks.arguments
def d2(
    optimizer: optax.GradientTransformation, topology: Topology, allow_unproven: bool = False
) -> Algorithm:
    r"""D2: the step goes on from where the last one led, and only then the models are averaged.

    $$ X_{t+1} = (2 X_t - X_{t-1} - \gamma G(X_t; \xi_t) + \gamma G(X_{t-1}; \xi_{t-1}))\, W $$

    The first step is $X_1 = (X_0 - \gamma G(X_0; \xi_0)) W$. It is exact diffusion with W in the
    place of (I + W)/2, and computed as such.

    Theory needs eigenvalues $\lambda > -1/3$. With equal curvature h for all, disagreement along an
    eigenvector follows $z^2 = \lambda(2 - \gamma h) z - \lambda(1 - \gamma h)$, whose root leaves
    the unit circle at -1 where $1 + 3\lambda < 2\lambda\gamma h$. At -1/3, which the survey's ring
    of an even number of workers has, that is nowhere: curvature pulls the root inside, but where f
    is flat it is -1, and noise adds up. Below, disagreement grows unless $\gamma h$ is large.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` is the equation. Another one's change
            stands for $-\gamma G$.
        topology: W, symmetric, the same in all rounds, with all eigenvalues above -1/3.
        allow_unproven: take one with an eigenvalue at or below -1/3, where nothing guarantees
            convergence.

    Raises:
        ValueError: not a topology, one that is not symmetric, a schedule, or an eigenvalue at or
            below -1/3 without `allow_unproven`.

    Source: Tang, Lian, Yan, Zhang and Liu, "D2: decentralized training over decentralized data",
    2018.
    """
    gossip.need("d2", topology, symmetric=True, fixed=True)
    unproven = topology.smallest_eigenvalue <= -1 / 3 + 1e-9
    if unproven and not allow_unproven:
        raise ValueError(
            f"d2 on {topology.name}, whose W has the eigenvalue "
            f"{topology.smallest_eigenvalue:.6g}, for which there is no guarantee: need"
            " all above -1/3, as with weights=topologies.lazy, or allow_unproven=True"
        )
    return adapt_correct_combine(
        f"d2({topology.name}{', allow_unproven' * unproven})", optimizer, topology, 1.0
    )
