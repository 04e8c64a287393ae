"""LEAD: exact diffusion with compressed messages."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import topologies
from algorithms import gossip, methods, optimizers
from algorithms.facts import method
from algorithms.mechanisms.copies import Copies, start_copies, update_copies
from dsgd import Algorithm, Compressor, Topology, checks, compressors


class CompressedCorrection(NamedTuple):
    """Local models, their corrections and the copies that neighbours keep, leaves `[n, ...]`.

    Args:
        params: x.
        optimizer: the states of the local optimizers.
        correction: d, the accumulated changes by gossip.
        copies: H, the worker's own and those of its neighbours.
    """

    params: Any
    optimizer: Any
    correction: Any
    copies: Copies


@method(
    sends="compressed differences, to neighbours",
    exact="any data",
    needs=("symmetric W", "one W", "unbiased compressor", "all workers"),
    paper="Liu et al., 2021",
    page="how_to/compression.md",
    graph=topologies.ring,
    settings={
        "compressor": compressors.whole_model(compressors.buckets(compressors.qsgd(2, "linf"), 512))
    },
    candidates={
        "any problem": [{"compressor": compressors.whole_model(compressors.qsgd(2, "linf"))}]
    },
)
@checks.arguments
def lead(
    optimizer: optax.GradientTransformation,
    topology: Topology,
    compressor: Compressor,
    consensus_step: gossip.Step = 1.0,
    memory_step: gossip.Step = 0.5,
) -> Algorithm:
    r"""LEAD: adapt, correct by the changes that gossip made in all earlier rounds, and gossip with
    compressed differences.

    $$ Y_t = X_t - \gamma G(X_t) + D_t, \qquad Q_t = Q(Y_t - H_t), \qquad \hat Y_t = H_t + Q_t,
    \qquad H_{t+1} = H_t + \alpha Q_t $$
    $$ X_{t+1} = Y_t + \tfrac{\eta}{2} \hat Y_t (W - I), \qquad D_{t+1} = D_t + \tfrac{\eta}{2} \hat
    Y_t (W - I), \qquad D_0 = 0, \qquad H_0 = X_0 $$

    Each worker sends Q to its neighbours, and keeps its own H and that of each neighbour. All
    workers must participate. The mean of D is 0, and at the fixed point Q is 0, so that the limit
    with exact gradients is the optimum of the mean objective, although messages are compressed.
    With `compressors.identity` and $\eta = 1$ the method is exact diffusion.

    The correction has the unit of a model: the paper's is $-D / \gamma$. Both are the same for a
    constant $\gamma$; for a schedule of step sizes, the method is exact diffusion with this
    schedule, compressed.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation. The update of any
            other optimizer replaces $-\gamma G$.
        topology: W, symmetric, the same in all rounds.
        compressor: Q, unbiased; the paper's is
            `compressors.buckets(compressors.qsgd(2, "linf"), 512)`.
        consensus_step: eta, in (0, 1].
        memory_step: alpha, in (0, 1]. $1 / (1 + \omega)$ contracts Y - H fastest.

    Raises:
        ValueError: if the topology is not symmetric or is a schedule, a step is not in (0, 1], or
            the compressor is biased.

    Source: Liu, Li, Wang, Tang and Yan, "Linear convergent decentralized optimization with
    compression", 2021. Departures: the first round communicates, as in exact diffusion, while the
    paper begins with a step without gossip; the copies start at $x_0$; and the neighbours' copies
    are kept one by one instead of as $H_w = H W$, in which rounding errors would accumulate.
    Compressed exact diffusion with decreasing step sizes is studied in Huang and Pu, "CEDAS", 2023.
    """
    gossip.require_topology("lead", topology, symmetric=True, fixed=True)
    topology.require_one_exchange("lead")
    gossip.require_unbiased("lead", compressor)
    gossip.require_step("lead", consensus_step)
    checks.number("lead: memory_step", memory_step, "(0, 1]")

    def start(x: optimizers.Model):
        copies = start_copies("lead", compressor, x.params, topology, unbiased=True)
        return CompressedCorrection(*x, optax.tree.zeros_like(x.params), copies)

    def update(x, gradients, round):
        change, memory = optimizers.update_local(optimizer, x, gradients)
        y = jax.tree.map(lambda x, u, d: x + (u + d), x.params, change, x.correction)
        pulled, copies = update_copies(round, compressor, y, x.copies, topology, memory_step)
        moved = jax.tree.map(
            lambda pull: jnp.asarray(consensus_step / 2, pull.dtype) * pull, pulled
        )
        after, correction = optax.tree.add((y, x.correction), (moved, moved))
        return CompressedCorrection(after, memory, correction, copies)

    return methods.local_models(
        f"lead({topology.name}, {compressor.name})",
        optimizer,
        update,
        start=start,
        common_start=True,
        topology=topology,
    )
