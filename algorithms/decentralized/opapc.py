"""OPAPC: an accelerated primal-dual method with accelerated gossip."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import optax

import topologies
from algorithms import gossip
from algorithms.facts import method
from algorithms.mechanisms.corrections import ONE_W, add_up
from dsgd import Algorithm, Query, State, Topology, checks, workers


class Accelerating(NamedTuple):
    """State of a worker.

    Args:
        params: x, its model.
        x_f: the extrapolated model.
        correction: y, the dual variable.
        lost: the rounding error of y (see `algorithms.decentralized.exact_diffusion.Corrected`).
    """

    params: Any
    x_f: Any
    correction: Any
    lost: Any


@method(
    sends="models, to neighbours, several times a round",
    exact="any data",
    needs=("symmetric W", "one W", "exact gradients", "all workers"),
    paper="OPAPC: Kovalev et al., 2020",
    page="reference/topologies.md",
    graph=topologies.ring,
    settings={"smoothness": 1.0, "strong_convexity": 0.1},
)
@checks.arguments
def opapc(topology: Topology, smoothness: float, strong_convexity: float) -> Algorithm:
    r"""OPAPC: proximal alternating predictor-corrector steps with Nesterov's acceleration for the
    gradients and Chebyshev's for gossip. It is optimal in the number of gradients and in the
    number of messages.

    $$ x_g = \tau X + (1 - \tau) x_f, \qquad
    \hat X = \frac{X - \eta (F'(x_g) - \mu x_g + Y)}{1 + \eta \mu}, \qquad
    Y \leftarrow Y + \theta\, \hat X (I - W_T) $$
    $$ X^+ = \hat X - \frac{\eta \theta}{1 + \eta \mu} \hat X (I - W_T), \qquad
    x_f = x_g + \frac{2 \tau}{2 - \tau} (X^+ - X) $$

    $F'$ has the exact gradients of all workers. $W_T$ is `topologies.chebyshev(topology, T)` with
    $T = \lfloor \sqrt\chi \rfloor$, where $\chi$ is the ratio of the extreme eigenvalues of $I - W$
    but 0. With $\kappa = L / \mu$ and $\rho = \rho(W_T)$ the steps are

    $$ \tau = \min\Big\{1, \frac12 \sqrt{\frac{1 + \rho}{(1 - \rho) \kappa}}\Big\}, \qquad
    \eta = \frac{1}{4 \tau L}, \qquad \theta = \frac{1}{\eta (1 + \rho)} $$

    A round is one exact gradient per worker at $x_g$, and T models to each neighbour, one after the
    other. The error falls to $\epsilon$ in $O(\sqrt\kappa \log \frac1\epsilon)$ rounds. The limit
    is the optimum. All workers must participate.

    Args:
        topology: W, symmetric, the same in all rounds.
        smoothness: L, a Lipschitz constant of every $f_n'$ (`problem.constants.smoothness`).
        strong_convexity: $\mu$, of every $f_n$ (`problem.constants.strong_convexity`), at most L.

    Raises:
        ValueError: if the topology is not symmetric or is a schedule, or unless
            $0 < \mu \le L$.

    Source: Kovalev, Salim and Richtárik, "Optimal and practical algorithms for smooth and strongly
    convex decentralized optimization", 2020. Departure: $\tau$ and $\theta$ are computed from
    $\rho(W_T)$ instead of a bound for all graphs.
    """
    gossip.require_topology("opapc", topology, symmetric=True, fixed=True)
    L, mu = smoothness, strong_convexity
    if not 0 < mu <= L < math.inf:
        raise ValueError(
            f"opapc: strong_convexity = {mu}, smoothness = {L}; expected 0 < strong_convexity <= "
            "smoothness, such as problem.constants has them"
        )
    chi = (1 - topology.smallest_eigenvalue) / (1 - topology.second_eigenvalue)
    # The factor accepts a root that equals an integer up to rounding; a single worker has chi = 0.
    T = max(1, math.floor(math.sqrt(chi) * (1 + 1e-12)))
    gossiped = topologies.chebyshev(topology, T)
    tau = min(1.0, math.sqrt((1 + gossiped.rho) / (1 - gossiped.rho) * mu / L) / 2)
    eta = 1 / (4 * tau * L)
    theta = 1 / (eta * (1 + gossiped.rho))

    def extrapolate(state):
        return jax.tree.map(lambda x, f: tau * x + (1 - tau) * f, state.params, state.x_f)  # x_g

    def init(params, N):
        topology.require_workers("opapc", N)
        x = workers.replicate(params, N)
        return State(workers=Accelerating(x, x, *[optax.tree.zeros_like(x)] * 2))

    def query(state, round):
        return Query(extrapolate(state.workers), exact=True)

    def update(state, gradients, round):
        round.require_all(ONE_W)
        state, x_g = state.workers, extrapolate(state.workers)
        hat = jax.tree.map(
            lambda x, g, x_g, y: (x - eta * (g - mu * x_g + y)) / (1 + eta * mu),
            *(state.params, gradients, x_g, state.correction),
        )
        pull = round.laplacian(hat, gossiped)  # X-hat (W_T - I)
        y, lost = add_up(state, optax.tree.scale(-theta, pull))
        x = jax.tree.map(lambda x, pull: x + eta * theta / (1 + eta * mu) * pull, hat, pull)
        x_f = jax.tree.map(
            lambda x_g, new, x: x_g + 2 * tau / (2 - tau) * (new - x), x_g, x, state.params
        )
        return State(workers=Accelerating(x, x_f, y, lost))

    return Algorithm(
        f"opapc({topology.name})", init, query, update, lambda state: state.workers.params
    )
