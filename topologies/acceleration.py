"""Accelerated gossip: several exchanges in each round, which average more than as many plain
ones.
"""

from __future__ import annotations

import math

from dsgd import checks
from dsgd.graphs.accelerated import Accelerated
from dsgd.graphs.topology import Topology


@checks.arguments
def chebyshev(topology: Topology, rounds: int) -> Topology:
    r"""Returns K gossip rounds on a topology as one round of Chebyshev-accelerated gossip: of all
    polynomials of degree K in W that keep the mean, the one that reduces disagreement most,
    whatever the eigenvalues of W between its extreme ones.

    $$ W_K = \frac{T_K(W_s / \rho_s)}{T_K(1 / \rho_s)}, \qquad W_s = I - s (I - W), \qquad
    s = \frac{2}{\ell_1 + \ell_{N-1}}, \qquad \rho_s = \frac{\ell_1 - \ell_{N-1}}{\ell_1 +
    \ell_{N-1}} $$

    $\ell_1$ and $\ell_{N-1}$ are the largest and the smallest eigenvalue of $I - W$ but 0, and
    $T_K$ is the Chebyshev polynomial. $W_K$ is symmetric, and has negative weights for most graphs.
    One round reduces disagreement by

    $$ \rho(W_K) = \|W_K - J\|_2 = \frac{2 c^K}{1 + c^{2K}}, \qquad
    c = \frac{1 - \sqrt{1 - \rho_s^2}}{\rho_s} = \frac{\sqrt\chi - 1}{\sqrt\chi + 1}, \qquad
    \chi = \ell_1 / \ell_{N-1} $$

    so that K of the order of $\sqrt\chi$ is enough, where plain gossip needs of the order of
    $\chi$ rounds.

    Any method that mixes models or computes their Laplacian differences on a topology accepts it;
    a round of the method then has K exchanges, which are sent and counted one after the other. If
    messages are lost, a round does not increase disagreement.

    Args:
        topology: W, symmetric, the same in all rounds.
        rounds: K, at least 1. With K = 1 it is plain gossip with the matrix $W_s$.

    Raises:
        ValueError: if the topology is not symmetric, is a schedule, or is accelerated already, or
            if K < 1.

    Source: Scaman, Bach, Bubeck, Lee and Massoulié, "Optimal algorithms for smooth and strongly
    convex distributed optimization in networks", 2017 (accelerated gossip).
    """
    checks.positive_int("chebyshev: rounds", rounds)
    _require_plain("chebyshev", topology)
    smallest, largest = 1 - topology.second_eigenvalue, 1 - topology.smallest_eigenvalue
    rho = (largest - smallest) / (largest + smallest)
    factors, omega = [1.0], 2.0
    for _ in range(rounds - 1):
        omega = 1 / (1 - omega * rho**2 / 4)
        factors.append(omega)
    name = f"chebyshev({topology.name}, {rounds})"
    return Accelerated(name, topology, factors, 2 / (largest + smallest))


@checks.arguments
def fast_mix(topology: Topology, rounds: int) -> Topology:
    r"""Returns K gossip rounds on a topology as one round of FastMix, gossip with a constant
    momentum.

    $$ x_{k+1} = (1 + \eta)\, W x_k - \eta\, x_{k-1}, \qquad x_{-1} = x_0, \qquad \eta = \frac{1 -
    \sqrt{1 - \rho^2}}{1 + \sqrt{1 - \rho^2}} $$

    For large K a round reduces disagreement by the order of $K \sqrt\eta^K$. `chebyshev` reduces it
    more for each K. Otherwise it is used as `chebyshev`.

    Args:
        topology: W, symmetric, the same in all rounds.
        rounds: K, at least 1.

    Raises:
        ValueError: as for `chebyshev`; or if K rounds do not reduce disagreement, as with one round
            on a W with a smallest eigenvalue near -1.

    Source: Liu and Morse, "Accelerated linear iterations for distributed averaging", 2011.
    """
    checks.positive_int("fast_mix: rounds", rounds)
    _require_plain("fast_mix", topology)
    root = math.sqrt(1 - topology.rho**2)
    name = f"fast_mix({topology.name}, {rounds})"
    return Accelerated(name, topology, [1 + (1 - root) / (1 + root)] * rounds)


def _require_plain(name: str, topology: Topology) -> None:
    """Raises ValueError if gossip on the topology cannot be accelerated."""
    topology.require_one_exchange(name)
    problem = (
        f"is a schedule of {topology.period} rounds"
        if topology.period > 1
        else "has a W that is not symmetric"
        if not topology.symmetric
        else None
    )
    if problem:
        raise ValueError(
            f"{name}: {topology.name} {problem}; expected one symmetric W, such as that of "
            "topologies.ring(16)"
        )
