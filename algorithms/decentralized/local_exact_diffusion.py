"""LED: exact diffusion with local steps."""

from __future__ import annotations

from functools import partial

import optax
from jax.core import Tracer

import topologies
from algorithms import gossip
from algorithms.facts import method
from algorithms.mechanisms.corrections import adapt_correct_combine
from dsgd import Algorithm, Topology, checks
from dsgd.extend import Period, Real


@method(
    sends="models, to neighbours, every $\\tau$ rounds",
    exact="any data",
    needs=("symmetric W", "one W", "eigenvalues of W above -1/3", "all workers"),
    paper="LED: Alghunaim, 2024",
    page="how_to/decentralized.md#local-steps",
    aliases=("led",),
    graph=partial(topologies.ring, weights=topologies.lazy),
    settings={"period": 4},
    candidates={"any problem": [{}]},
)
@checks.arguments
def local_exact_diffusion(
    optimizer: optax.GradientTransformation,
    topology: Topology,
    period: Period,
    correction_step: Real | None = None,
) -> Algorithm:
    r"""LED, local exact diffusion: $\tau$ corrected local steps, then a combination; the correction
    accumulates the changes that combining makes.

    $$ \phi_i \leftarrow \phi_i - \gamma g_i(\phi_i) - \beta y_i \quad \tau \text{ times from } x_i,
       \qquad x_i \leftarrow \sum_j W_{ij} \phi_j, \qquad y_i \leftarrow y_i + \phi_i - x_i $$

    $y_i$ starts at 0, and $\sum_i y_i = 0$ always. A round is one gradient per worker. In every
    $\tau$-th round a worker sends one vector to each neighbour, half as much as in K-GT; the other
    rounds send nothing. With exact gradients the limit is the optimum for any data and any $\tau$,
    and $\beta y_i \to -\gamma f_i'(x^\star)$. With $\tau = \beta = 1$ the method is D2 with this W,
    hence exact diffusion if W is $(I + W')/2$.

    For small $\gamma$, disagreement along an eigenvector of W with the eigenvalue $\lambda$ follows
    the matrix with trace $1 + \lambda - \beta \tau (1 - \lambda)$ and determinant $\lambda$. It
    contracts if and only if $\beta \tau (1 - \lambda) < 2 (1 + \lambda)$: with $\beta = 1 / \tau$
    if $\lambda > -1/3$, as for D2. With $\beta = 1$ and $\tau = 4$ the method diverges if W has an
    eigenvalue below 1/3.

    All workers must participate.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equations. The update of any
            other optimizer replaces $-\gamma g_i$.
        topology: W, symmetric, the same in all rounds.
        period: $\tau$. It may be swept.
        correction_step: $\beta$, positive; None: $1 / \tau$. It may be swept.

    Raises:
        ValueError: if the topology is not symmetric or is a schedule, the period is less than 1 or
            more than 2^31 - 1, $\beta$ is not positive, or the condition above does not hold for
            the smallest eigenvalue. In a run: if workers or messages are missing.

    Source: Alghunaim, "Local exact-diffusion for decentralized optimization and learning", 2024;
    the condition is derived here.
    """
    period = checks.period("local_exact_diffusion: period", period)
    gossip.require_topology("local_exact_diffusion", topology, symmetric=True, fixed=True)
    beta = 1 / period if correction_step is None else correction_step
    _require_contraction(topology, period, beta)

    step = "" if correction_step is None else f", {correction_step}"
    return adapt_correct_combine(
        f"local_exact_diffusion({period}, {topology.name}{step})",
        optimizer,
        topology,
        1.0,
        weight=beta,
        sends=lambda round, combine, x: round.every(period, combine, x),
    )


def _require_contraction(topology: Topology, period: Period, beta: Real) -> None:
    """Raises a ValueError if disagreement does not contract for small step sizes. Traced values, as
    in a sweep, are not checked.
    """
    checks.number("local_exact_diffusion: correction_step", beta, "(0, inf)")
    if isinstance(period, Tracer) or isinstance(beta, Tracer):
        return
    smallest = topology.smallest_eigenvalue
    if float(beta) * period * (1 - smallest) >= 2 * (1 + smallest) - 1e-9:
        raise ValueError(
            f"local_exact_diffusion: correction_step = {float(beta):.6g} with period = {period} on "
            f"{topology.name}, where the smallest eigenvalue of W is {smallest:.6g}; expected a "
            f"correction step below {2 * (1 + smallest) / (1 - smallest) / period:.6g}, for which "
            "disagreement contracts: pass weights=topologies.lazy or a smaller correction_step"
        )
