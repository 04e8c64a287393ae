"""D2: decentralized SGD for workers with different data."""

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
    needs=("symmetric W", "one W", "eigenvalues of W above -1/3", "all workers"),
    paper="Tang et al., 2018",
    page="how_to/decentralized.md",
    graph=partial(topologies.ring, weights=topologies.lazy),
)
@checks.arguments
def d2(
    optimizer: optax.GradientTransformation, topology: Topology, allow_unproven: bool = False
) -> Algorithm:
    r"""D2: each worker adds the change of its gradient to its last model difference, then the
    models are averaged.

    $$ X_{t+1} = (2 X_t - X_{t-1} - \gamma G(X_t; \xi_t) + \gamma G(X_{t-1}; \xi_{t-1}))\, W $$

    The first step is $X_1 = (X_0 - \gamma G(X_0; \xi_0)) W$. D2 is exact diffusion with W instead
    of (I + W)/2, and is computed in that form.

    The theory requires all eigenvalues of W to satisfy $\lambda > -1/3$. If all workers have the
    same curvature h, disagreement along an eigenvector follows
    $z^2 = \lambda(2 - \gamma h) z - \lambda(1 - \gamma h)$, whose root leaves the unit circle at -1
    if $1 + 3\lambda < 2\lambda\gamma h$. At $\lambda = -1/3$, which the survey's ring with an even
    number of workers has, this inequality never holds: curvature moves the root inside the circle,
    but in directions in which f is flat the root is -1, and noise accumulates. For $\lambda < -1/3$
    disagreement grows unless $\gamma h$ is large.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation. The update of any
            other optimizer replaces $-\gamma G$.
        topology: W, symmetric, the same in all rounds, with all eigenvalues above -1/3.
        allow_unproven: whether a topology with an eigenvalue at or below -1/3 is accepted, for
            which convergence is not guaranteed.

    Raises:
        ValueError: if the topology is not symmetric or is a schedule, or has an eigenvalue at or
            below -1/3 and `allow_unproven` is not set.

    Source: Tang, Lian, Yan, Zhang and Liu, "D2: decentralized training over decentralized data",
    2018.
    """
    gossip.require_topology("d2", topology, symmetric=True, fixed=True)
    unproven = topology.smallest_eigenvalue <= -1 / 3 + 1e-9
    if unproven and not allow_unproven:
        raise ValueError(
            f"d2: W of {topology.name} has the eigenvalue {topology.smallest_eigenvalue:.6g}, for "
            "which convergence is not guaranteed; expected all eigenvalues above -1/3: pass "
            "weights=topologies.lazy or allow_unproven=True"
        )
    return adapt_correct_combine(
        f"d2({topology.name}{', allow_unproven' * unproven})", optimizer, topology, 1.0
    )
