"""BEER, C-GT and MoTEF: gradient tracking with compressed messages."""

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
from dsgd.extend import Real


class CompressedTracking(NamedTuple):
    """Local models, trackers and the copies that neighbours keep of both, leaves `[n, ...]`.

    Args:
        params: x.
        optimizer: the states of the local optimizers.
        correction: v - g, the accumulated changes of the tracker by gossip.
        models: the copies of x.
        trackers: the copies of v.
        average: the moving average of the worker's gradients; () if gradients are not averaged.
    """

    params: Any
    optimizer: Any
    correction: Any
    models: Copies
    trackers: Copies
    average: Any


@method(
    sends="compressed differences of models and trackers, to neighbours",
    exact="any data",
    needs=("symmetric W", "one W", "contractive compressor", "all workers"),
    paper="Zhao et al., 2022",
    page="how_to/compression.md",
    graph=topologies.ring,
    settings={"compressor": compressors.whole_model(compressors.top_k(0.1)), "consensus_step": 0.1},
)
@checks.arguments
def beer(
    optimizer: optax.GradientTransformation,
    topology: Topology,
    compressor: Compressor,
    consensus_step: gossip.Step,
) -> Algorithm:
    r"""BEER: gradient tracking in which models and trackers are both sent as compressed
    differences.

    $$ V_t = V_{t-1} + \eta \hat V_{t-1} (W - I) + G(X_t) - G(X_{t-1}), \qquad V_0 = G(X_0) $$
    $$ \hat V_t = \hat V_{t-1} + C(V_t - \hat V_{t-1}), \qquad \hat X_t = \hat X_{t-1} + C(X_t -
    \hat X_{t-1}), \qquad X_{t+1} = X_t + \eta \hat X_t (W - I) - \gamma V_t $$

    Each worker sends two compressed vectors to its neighbours in one message, and keeps copies
    $\hat X$ and $\hat V$ of its own vectors and of those of each neighbour. All workers must
    participate. The copies start at $\hat X_{-1} = X_0$, the common initial model, and
    $\hat V_{-1} = 0$. The mean of V is the mean of the gradients, and the differences vanish at the
    fixed point, so that the limit with exact gradients is the optimum of the mean objective. With
    `compressors.identity` and $\eta = 1$ the method is gradient tracking in the form of DIGing.

    Args:
        optimizer: each worker's step along its tracker; `optax.sgd(gamma)` gives the equation.
            Momentum and Adam receive v as the gradient.
        topology: W, symmetric, the same in all rounds.
        compressor: C, a contraction.
        consensus_step: eta, in (0, 1]. The theory requires a step of the order of
            $\delta (1 - \rho)$; 0.1 to 0.4 are typical.

    Raises:
        ValueError: if the topology is not symmetric or is a schedule, or the consensus step is not
            in (0, 1]. At the start of a run: if the compressor declares no contraction.

    Source: Zhao, Li, Li, Richtarik and Chi, "BEER: fast O(1/T) rate for decentralized nonconvex
    optimization with communication compression", 2022. Departure: the copies of the models start at
    $x_0$ and those of the trackers at $C(V_0)$, instead of 0.
    """
    return _compressed_tracking("beer", optimizer, topology, compressor, consensus_step)


@method(
    sends="compressed differences of models and trackers, to neighbours",
    exact="any data",
    needs=("symmetric W", "one W", "all workers"),
    paper="Liao et al., 2022",
    page="how_to/compression.md",
    graph=topologies.ring,
    settings={
        "compressor": compressors.whole_model(compressors.qsgd(2, "linf")),
        "consensus_step": 0.2,
        "memory_step": 0.2,
    },
)
@checks.arguments
def c_gt(
    optimizer: optax.GradientTransformation,
    topology: Topology,
    compressor: Compressor,
    consensus_step: gossip.Step,
    memory_step: gossip.Step,
) -> Algorithm:
    r"""C-GT: compressed gradient tracking with damped copies, for compressors that need not be
    contractions.

    $$ \hat X_t = H_t + C(X_t - H_t), \qquad H_{t+1} = H_t + \alpha\, C(X_t - H_t), \qquad X_{t+1} =
    X_t + \eta \hat X_t (W - I) - \gamma V_t $$

    and the same for V. Gradients, messages, participation and the limit are those of `beer`, which
    is $\alpha = 1$; the workers keep copies H instead of $\hat X$.

    Args:
        optimizer: see `beer`.
        topology: W, symmetric, the same in all rounds.
        compressor: C, unbiased or a contraction.
        consensus_step: eta, in (0, 1].
        memory_step: alpha, in (0, 1]. For an unbiased compressor, $1 / (1 + \omega)$ contracts the
            differences fastest.

    Raises:
        ValueError: if the topology is not symmetric or is a schedule, or a step is not in (0, 1].
            At the start of a run: if the compressor is neither unbiased nor a contraction.

    Source: Liao, Li, Huang and Pu, "A compressed gradient tracking method for decentralized
    optimization with linear convergence", 2022. Departure: as for `beer`.
    """
    checks.number("c_gt: memory_step", memory_step, "(0, 1]")
    return _compressed_tracking(
        "c_gt", optimizer, topology, compressor, consensus_step, memory_step, unbiased=True
    )


@method(
    sends="compressed differences of models and trackers of averaged gradients, to neighbours",
    exact="any data",
    needs=("symmetric W", "one W", "contractive compressor", "all workers"),
    paper="Islamov et al., 2024",
    page="how_to/compression.md",
    graph=topologies.ring,
    settings={
        "compressor": compressors.whole_model(compressors.top_k(0.1)),
        "consensus_step": 0.1,
        "momentum_step": 0.2,
    },
)
@checks.arguments
def motef(
    optimizer: optax.GradientTransformation,
    topology: Topology,
    compressor: Compressor,
    consensus_step: gossip.Step,
    momentum_step: Real,
) -> Algorithm:
    r"""MoTEF: BEER that tracks a moving average of each worker's gradients, for small batches.

    $$ M_t = (1 - \lambda) M_{t-1} + \lambda G(X_t), \qquad M_0 = G(X_0), \qquad V_t = V_{t-1} +
    \eta \hat V_{t-1} (W - I) + M_t - M_{t-1}, \qquad V_0 = M_0 $$

    The other equations, messages, participation and the limit are those of `beer`, which is
    $\lambda = 1$.

    Args:
        optimizer, topology, compressor, consensus_step: see `beer`.
        momentum_step: lambda, in (0, 1].

    Raises:
        ValueError: see `beer`; if the momentum step is not in (0, 1].

    Source: Islamov, Gao and Stich, "Near optimal decentralized optimization with compression and
    momentum tracking", 2024. Departure: as for `beer`.
    """
    checks.number("motef: momentum_step", momentum_step, "(0, 1]")
    return _compressed_tracking(
        "motef", optimizer, topology, compressor, consensus_step, momentum_step=momentum_step
    )


def _compressed_tracking(
    name: str,
    optimizer: optax.GradientTransformation,
    topology: Topology,
    compressor: Compressor,
    consensus_step: Any,
    memory_step: Any = 1,
    momentum_step: Any = None,
    *,
    unbiased: bool = False,
) -> Algorithm:
    r"""Returns the method with copies $H_{t+1} = H_t + \alpha Q_t$ and averages of gradients M.

    The trackers are $V_t = M_t + S_t$ with $S_{t+1} = S_t + \eta \hat V_t (W - I)$ and $S_0 = 0$,
    so that previous gradients need not be kept, and rounding errors of gradients do not accumulate.
    """
    gossip.require_topology(name, topology, symmetric=True, fixed=True)
    topology.require_one_exchange(name)
    gossip.require_step(name, consensus_step)

    def start(x: optimizers.Model):
        zero = optax.tree.zeros_like(x.params)
        models, trackers = (
            start_copies(name, compressor, value, topology, unbiased=unbiased)
            for value in (x.params, zero)
        )
        average = () if momentum_step is None else zero
        return CompressedTracking(*x, zero, models, trackers, average)

    def send(vectors, copies, round):
        return update_copies(round, compressor, vectors, copies, topology, memory_step)

    def average_gradients(state, gradients, round):
        return jax.tree.map(
            lambda m, g: m + jnp.where(round.step == 0, 1, momentum_step).astype(m.dtype) * (g - m),
            state.average,
            gradients,
        )

    def update(state, gradients, round):
        m = gradients if momentum_step is None else average_gradients(state, gradients, round)
        v = optax.tree.add(m, state.correction)
        with round.joint():
            x_pulled, models = send(state.params, state.models, round)
            v_pulled, trackers = send(v, state.trackers, round)
        change, memory = optimizers.update_local(optimizer, state, v)
        x_moved, v_moved = jax.tree.map(
            lambda pull: jnp.asarray(consensus_step, pull.dtype) * pull, (x_pulled, v_pulled)
        )
        x = jax.tree.map(lambda x, move, u: x + (move + u), state.params, x_moved, change)
        average = () if momentum_step is None else m
        correction = optax.tree.add(state.correction, v_moved)
        return CompressedTracking(x, memory, correction, models, trackers, average)

    return methods.local_models(
        f"{name}({topology.name}, {compressor.name})",
        optimizer,
        update,
        start=start,
        common_start=True,
        topology=topology,
        tracked=True,
    )
