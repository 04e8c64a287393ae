"""LT-ADMM: local training between exchanges of ADMM on a graph, also with variance reduction."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import topologies
from algorithms import gossip, methods, optimizers
from algorithms.facts import method
from algorithms.mechanisms.variance_reduction import with_snapshots
from dsgd import Algorithm, Round, Topology, checks, workers
from dsgd.extend import Period, Real


class Bridged(NamedTuple):
    r"""State of a worker.

    Args:
        params: phi, its model.
        optimizer: state of its optimizer.
        z: its variable for each edge, leaves `[n, K, ...]`; 0 for neighbours that do not exist.
        correction: $\rho d_n x_n - \sum_m z_{nm}$, which is constant between exchanges.
    """

    params: Any
    optimizer: Any
    z: Any
    correction: Any


@method(
    sends="a different vector to each neighbour, every H-th round",
    exact="any data",
    needs=("symmetric W", "one W"),
    paper="LT-ADMM: Ren et al., 2024",
    page="reference/topologies.md",
    graph=topologies.ring,
    settings={"period": 4},
)
@checks.arguments
def lt_admm(
    optimizer: optax.GradientTransformation,
    topology: Topology,
    period: Period = 5,
    *,
    penalty: Real = 0.5,
    correction_step: Real = 0.05,
) -> Algorithm:
    r"""LT-ADMM: $\tau$ local steps with a constant correction, then an exchange of ADMM.

    $$ \phi_n \leftarrow \phi_n - \gamma g_n(\phi_n) - \beta \Big(\rho d_n x_n - \sum_{m \in
    \mathcal N_n} z_{nm}\Big) \quad (\tau \text{ times, from } \phi_n = x_n), \qquad
    x_n \leftarrow \phi_n $$
    $$ z_{nm} \leftarrow \tfrac12 z_{nm} - \tfrac12 (z_{mn} - 2 \rho x_m) $$

    $d_n$ is the number of neighbours, $\mathcal N_n$; the weights of W are not used. A round is one
    gradient per worker. In every $\tau$-th round each worker sends a different vector to each
    neighbour, $z_{nm} - 2 \rho x_n$ to m, and it keeps one vector for each neighbour. With exact
    gradients the limit is the optimum, for any $\tau$.

    If a message does not arrive, $z_{nm}$ is kept; a worker that does not participate keeps its
    state. The limit is unchanged.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation.
        topology: an undirected graph, the same in all rounds.
        period: $\tau$. It may be swept.
        penalty: $\rho$, positive.
        correction_step: $\beta$, positive.

    Raises:
        ValueError: if the period is less than 1, the topology is not symmetric or is a schedule, or
            $\rho$ or $\beta$ is not positive.

    Source: Ren, Bastianello, Johansson and Parisini, "Distributed learning by local training ADMM",
    2024. Departure: $z_{nm}$ starts at $\rho x_0$ instead of $x_0$, so that the first correction is
    0.
    """
    return _local_admm("lt_admm", optimizer, topology, period, penalty, correction_step)


@method(
    sends="a different vector to each neighbour, every H-th round",
    exact="any data and samples",
    needs=("symmetric W", "one W", "some exact gradients", "all workers"),
    paper="LT-ADMM-VR: Ren et al., 2025",
    page="reference/topologies.md",
    graph=topologies.ring,
    settings={"period": 4},
)
@checks.arguments
def lt_admm_vr(
    optimizer: optax.GradientTransformation,
    topology: Topology,
    period: Period = 5,
    *,
    penalty: Real = 0.5,
    correction_step: Real = 0.05,
) -> Algorithm:
    r"""LT-ADMM-VR: LT-ADMM with gradients that have less variance the closer the model is to $x_n$.

    $$ g_n(\phi_n) = f_n'(\phi_n; \xi) - f_n'(x_n; \xi) + f_n'(x_n) $$

    $x_n$ is the model at the start of the local steps, and $\xi$ the same samples in both terms.
    The first of every $\tau$ rounds computes the exact gradient, since $\phi_n = x_n$; the other
    rounds compute two gradients of the same samples. Otherwise the method is `lt_admm`, and sends
    the same vectors. With stochastic gradients the limit is the optimum, too. All workers must
    participate.

    Args:
        optimizer, topology, period, penalty, correction_step: as for `lt_admm`.

    Raises:
        ValueError: as for `lt_admm`.

    Source: Ren, Bastianello, Johansson and Parisini, "Communication-efficient stochastic
    distributed learning", 2025. Departure: a sample that is drawn again before the next exchange
    has $x_n$ as its reference point, too, instead of the model at which it was drawn before, so
    that no table of gradients is needed.
    """
    inner = _local_admm("lt_admm_vr", optimizer, topology, period, penalty, correction_step)

    def renew(round: Round) -> jax.Array:
        return jnp.broadcast_to(round.step % period == 0, round.workers)

    return with_snapshots(inner.name, inner, renew)


def _local_admm(
    name: str,
    optimizer: optax.GradientTransformation,
    topology: Topology,
    period: Period,
    penalty: Real,
    correction_step: Real,
) -> Algorithm:
    """Returns LT-ADMM under this name; the other arguments are those of `lt_admm`."""
    period = checks.period(f"{name}: period", period)
    gossip.require_topology(name, topology, symmetric=True, fixed=True)
    topology.require_one_exchange(name)
    checks.number(f"{name}: penalty", penalty, "(0, inf)")
    checks.number(f"{name}: correction_step", correction_step, "(0, inf)")

    def start(x: optimizers.Model):
        exists = np.arange(topology.degree) < topology.out_degrees[0][:, None]
        z = jax.tree.map(
            lambda x: (penalty * jnp.einsum("nk,n...->nk...", exists, x)).astype(x.dtype), x.params
        )
        return Bridged(*x, z, optax.tree.zeros_like(x.params))

    def update(state, gradients, round):
        stepped = optimizers.local_step(optimizer, state, gradients, round)
        phi = jax.tree.map(
            lambda phi, c: (phi - correction_step * c).astype(phi.dtype),
            *(stepped.params, state.correction),
        )
        state = stepped._replace(params=round.if_active(phi, stepped.params))

        def exchange(state):
            x, z = state.params, state.z
            sent = jax.tree.map(lambda z, x: (z - 2 * penalty * x[:, None]).astype(z.dtype), z, x)
            received = round.to_each_neighbour(sent, optax.tree.scale(-1, z), topology)
            z = jax.tree.map(lambda z, r: (z - r) / 2, z, received)
            d = workers.round_rows(topology.out_degrees, topology)
            correction = jax.tree.map(
                lambda x, z: (
                    penalty * jnp.einsum("n,n...->n...", d, x) - jnp.sum(z, axis=1)
                ).astype(x.dtype),
                *(x, z),
            )
            return state._replace(z=z, correction=correction)

        return round.every(period, exchange, state)

    return methods.local_models(
        f"{name}({period}, {topology.name})", optimizer, update, start=start, topology=topology
    )
