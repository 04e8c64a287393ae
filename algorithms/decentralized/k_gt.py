"""K-GT: gradient tracking with local steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import topologies
from algorithms import gossip, methods, optimizers
from algorithms.facts import method
from algorithms.mechanisms.corrections import add_up, corrected_step
from dsgd import Algorithm, Topology, checks
from dsgd.extend import Period


class Tracked(NamedTuple):
    r"""State of a worker, leaves `[n, ...]`.

    Args:
        params: y, its model.
        optimizer: the state of its optimizer.
        start: x, its model after its last exchange.
        correction: $-K \gamma c$, the change that the correction makes in K local steps.
        lost: the rounding error of `correction`, as in `exact_diffusion.Corrected`.
    """

    params: Any
    optimizer: Any
    start: Any
    correction: Any
    lost: Any


@method(
    sends="models and changes, to neighbours, every K rounds",
    exact="any data",
    needs=("doubly stochastic W",),
    paper="Liu et al., 2024",
    page="how_to/decentralized.md#local-steps",
    graph=topologies.ring,
    settings={"period": 4},
)
@checks.arguments
def k_gt(
    optimizer: optax.GradientTransformation,
    topology: Topology,
    period: Period,
    consensus_step: gossip.Step = 1.0,
) -> Algorithm:
    r"""K-GT: gradient tracking with K local steps between two exchanges; the mean direction of
    these steps is tracked.

    $$ y_i \leftarrow y_i - \gamma \big(g_i(y_i) + c_i\big) \quad K \text{ times from } x_i, \qquad
       z_i = \frac{x_i - y_i}{K \gamma} $$

    $$ c_i \leftarrow c_i - z_i + \sum_j W_{ij} z_j, \qquad
       x_i \leftarrow \sum_j W_{ij} (x_j - \eta K \gamma z_j), \qquad y_i \leftarrow x_i $$

    $c_i$ starts at 0, and $\sum_i c_i = 0$ always. A round is one gradient per worker. In every
    K-th round a worker sends two vectors to each neighbour; the other rounds send nothing. With
    exact gradients the limit is the optimum for any data and any K, also if workers or messages are
    missing in some rounds, and $c_i \to -f_i'(x^\star)$. With $K = \eta = 1$ the method is
    `atc_tracking`; on the complete graph it is SCAFFOLD (option II) with the global step $\eta$.

    A worker that does not participate keeps its state; messages may be lost if W is symmetric.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equations, which are computed
            with $K \gamma c_i$ instead of $c_i$. The update of any other optimizer replaces
            $-\gamma g_i$.
        topology: W, doubly stochastic. With a schedule, each exchange uses the next matrix.
        period: K. It may be swept.
        consensus_step: $\eta$, in (0, 1].

    Raises:
        ValueError: if the topology is not doubly stochastic, the period is less than 1 or more than
            2^31 - 1, or $\eta$ is not in (0, 1].

    Source: Liu, Lin, Koloskova and Stich, "Decentralized gradient tracking with local steps", 2024.
    """
    period = checks.period("k_gt: period", period)
    gossip.require_topology("k_gt", topology)
    gossip.require_step("k_gt", consensus_step)

    def start(y: optimizers.Model):
        zero = optax.tree.zeros_like(y.params)
        return Tracked(y.params, y.optimizer, y.params, zero, zero)

    def update(y: Tracked, gradients, round):
        y = corrected_step(optimizer, y, gradients, 1 / period, round)

        def exchange(y: Tracked):
            change = optax.tree.sub(y.params, y.start)
            half = jax.tree.map(
                lambda x, change: x + jnp.asarray(consensus_step, x.dtype) * change, y.start, change
            )
            pull, moved = round.laplacian((half, change), topology)
            x = optax.tree.add(half, pull)
            return Tracked(x, y.optimizer, x, *add_up(y, moved))

        return round.every(period, exchange, y)

    return methods.local_models(
        f"k_gt({period}, {topology.name}, {consensus_step})",
        optimizer,
        update,
        start=start,
        topology=topology,
    )
