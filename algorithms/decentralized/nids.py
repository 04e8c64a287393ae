"""NIDS: a decentralized proximal gradient method in which each worker has its own step size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

import topologies
from algorithms import gossip
from algorithms.facts import method
from algorithms.mechanisms.corrections import ONE_W, add_up
from dsgd import Algorithm, Query, State, Topology, checks, workers
from dsgd.extend import Real, scale_rows

StepSizes = Annotated[
    float | Sequence[float] | np.ndarray | jax.Array, "a number, or one for each worker"
]


class Proximal(NamedTuple):
    """State of the workers, leaves `[n, ...]`.

    Args:
        params: x.
        half: psi, the model after the last gradient step.
        correction: the accumulated changes by gossip, $\\sum_s U_s (W - I)$.
        lost: the rounding error of `correction` (see `exact_diffusion.Corrected`).
    """

    params: Any
    half: Any
    correction: Any
    lost: Any


@method(
    sends="vectors, to neighbours",
    exact="any data",
    needs=("symmetric W", "one W", "all workers"),
    regularizer=True,
    paper="NIDS: Li et al., 2019",
    page="how_to/regularizers.md",
    graph=topologies.ring,
)
@checks.arguments
def nids(step_sizes: StepSizes, topology: Topology, coupling: Real | None = None) -> Algorithm:
    r"""NIDS: exact diffusion with a proximal step and with step sizes that may differ by worker,
    for problems with or without a regularizer r.

    $$ Z_{t+1} = Z_t - X_t + (2 X_t - X_{t-1} + G(X_{t-1}) \Lambda - G(X_t) \Lambda) \tilde W,
    \qquad X_{t+1} = \mathrm{prox}_{\Lambda r}(Z_{t+1}) $$

    $$ Z_1 = X_0 - G(X_0) \Lambda, \qquad \Lambda = \mathrm{diag}(\gamma_1, \dots, \gamma_N), \qquad
    \tilde W = I - c\, (I - W) \Lambda $$

    With $\psi_{t+1} = X_t - G(X_t) \Lambda$ and $U_t = X_t + \psi_{t+1} - \psi_t$ this is $Z_{t+1}
    = \psi_{t+1} + c \sum_{s=1}^t U_s (W - I) \Lambda$, and it is computed in this form. In every
    round but the first each worker sends one vector, $U_t$, to each neighbour. All workers must
    participate. With equal step sizes, $c = 1 / (2 \gamma)$ and no regularizer, it is
    `exact_diffusion` after a first step without combination.

    With exact gradients the limit is the minimizer of f + r, for any data and any step sizes
    $\gamma_n < 2 / L_n$, which do not depend on W.

    Args:
        step_sizes: $\gamma_n$, above 0: one number for all workers, or `[N]`.
        topology: W, symmetric, the same in all rounds.
        coupling: c, in $(0, 1 / ((1 - \lambda_{\min}(W)) \max_n \gamma_n)]$; None: $1 / (2 \max_n
            \gamma_n)$, which is valid for every W.

    Raises:
        ValueError: if a step size or c is not in its range, the topology is not symmetric or is a
            schedule, or the number of workers is not that of the step sizes; or, in a run, not all
            workers participate.

    Source: Li, Shi and Yan, "A decentralized proximal-gradient method with network independent
    step-sizes and separated convergence rates", 2019.
    """
    gossip.require_topology("nids", topology, symmetric=True, fixed=True)
    gamma = _step_sizes(step_sizes, topology)
    c = _coupling(coupling, gamma, topology)

    def update(state, gradients, round):
        round.require_all(ONE_W)
        x = state.workers
        steps = workers.local_block(jnp.asarray(gamma), round.workers)
        half = optax.tree.sub(x.params, scale_rows(steps, gradients))

        def combine(correction, lost):
            u = optax.tree.add(x.params, optax.tree.sub(half, x.half))
            return add_up(x, round.laplacian(u, topology))

        correction, lost = round.when(round.step > 0, combine, x.correction, x.lost)
        z = optax.tree.add(half, scale_rows(c * steps, correction))
        return State(workers=Proximal(jax.vmap(round.prox)(z, steps), half, correction, lost))

    def init(params, N, models=None):
        topology.require_workers("nids", N)
        x = workers.replicate(params, N) if models is None else models
        zeros = jax.tree.map(jnp.zeros_like, x)
        return State(workers=Proximal(x, x, zeros, zeros))

    return Algorithm(
        f"nids({topology.name})",
        init,
        lambda state, round: Query(state.workers.params),
        update,
        lambda state: state.workers.params,
    )


def _step_sizes(given: Any, topology: Topology) -> Any:
    """Returns the step size of each worker, `[N]`."""
    N = topology.n
    traced = isinstance(given, Tracer)
    gamma = given if traced else np.asarray(given, float)
    valid = traced or ((gamma > 0) & (gamma < np.inf)).all()
    if gamma.shape not in ((), (N,)) or not valid:
        raise ValueError(
            f"nids: step_sizes = {checks.show(given)}; expected a positive number, or one for "
            f"each of the {N} nodes of {topology.name}"
        )
    return (jnp if traced else np).broadcast_to(gamma, (N,))


def _coupling(given: Any, gamma: Any, topology: Topology) -> Any:
    """Returns c."""
    largest = gamma.max()
    if given is None:
        return 1 / (2 * largest)
    if not isinstance(largest, Tracer):
        most = 1 / ((1 - topology.smallest_eigenvalue) * largest)
        checks.number("nids: coupling", given, f"(0, {most:.17g}]")
    return given
