"""Gradient tracking: every worker estimates the mean of all gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

import topologies
from algorithms import optimizers
from algorithms.facts import method
from algorithms.mechanisms.tracking import Tracking, track, with_trackers
from dsgd import Algorithm, Topology, checks, workers
from dsgd.extend import Real, scale_rows


@method(
    sends="models and trackers of the gradient, to neighbours",
    exact="any data",
    needs=("doubly stochastic W",),
    paper="DIGing: Nedic et al., 2017",
    page="how_to/decentralized.md",
    aliases=("gt", "dgt", "diging", "dsgt"),
    graph=topologies.ring,
)
@checks.arguments
def gradient_tracking(optimizer: optax.GradientTransformation, topology: Topology) -> Algorithm:
    r"""Gradient tracking in the form of DIGing: models and trackers are both averaged, and the mean
    of the trackers is the mean of the gradients.

    $$ Y_t = Y_{t-1} W_t^T + G(X_t) - G(X_{t-1}), \qquad X_{t+1} = X_t W_t^T - \gamma Y_t, \qquad
    Y_0 = G(X_0) $$

    A message contains both X_t and Y_{t-1}, so it can be sent before the round's gradient is
    computed.

    Args:
        optimizer: each worker's step along its tracker; `optax.sgd(gamma)` gives the equation.
            Momentum and Adam receive y as the gradient.
        topology: W, doubly stochastic. With a schedule, round t uses W_t.

    Raises:
        ValueError: if the topology is not doubly stochastic.

    Source: Nedic, Olshevsky and Shi, "Achieving geometric convergence for distributed optimization
    over time-varying graphs", 2017, DIGing. Departure: with a schedule, Y_{t-1} is averaged by W_t,
    the matrix of the round in which it is sent, instead of DIGing's W_{t-1}.
    """
    return _combine_then_adapt("gradient_tracking", optimizer, topology, lambda last, g: g)


@method(
    sends="models and trackers of the momentum, to neighbours",
    exact="any data",
    needs=("doubly stochastic W",),
    paper="Takezawa et al., 2023",
    page="how_to/decentralized.md",
    graph=topologies.ring,
)
@checks.arguments
def momentum_tracking(
    optimizer: optax.GradientTransformation, topology: Topology, momentum: Real = 0.9
) -> Algorithm:
    r"""Momentum tracking (MT-DSGDm): gradient tracking of every worker's momentum.

    $$ U_t = \beta U_{t-1} + G(X_t), \qquad Y_t = Y_{t-1} W_t^T + U_t - U_{t-1}, \qquad
    X_{t+1} = X_t W_t^T - \gamma Y_t, \qquad Y_0 = U_0 = G(X_0) $$

    The paper's corrections are $C_t = U_t - Y_t$, with mean 0. A message has a model and a tracker,
    and can be sent before the round's gradient is computed. The mean of the trackers is the mean of
    the momenta, so that with exact gradients the fixed point is the minimizer of f for any data and
    any $\beta$. With $\beta = 0$ the method is `gradient_tracking`. If W is the same in all
    rounds, it is `gradient_tracking` with `optax.sgd(gamma, momentum=beta)`, because averages over
    rounds and over neighbours commute. A worker that does not participate keeps its state, and
    messages may be lost if W is symmetric.

    Args:
        optimizer: each worker's step along its tracker; `optax.sgd(gamma)`, without momentum, gives
            the equation.
        topology: W, doubly stochastic. With a schedule, round t uses W_t.
        momentum: $\beta$, in [0, 1). It may be swept.

    Raises:
        ValueError: if the topology is not doubly stochastic, or $\beta$ is not in [0, 1).

    Source: Takezawa, Bao, Niwa, Sato and Yamada, "Momentum tracking: momentum acceleration for
    decentralized deep learning on heterogeneous data", 2023. Departures: momenta and corrections
    start at 0; the paper starts them at $(g_n - \bar g) / (1 - \beta)$, which requires an
    all-reduce. With a schedule, trackers are averaged as in `gradient_tracking`.
    """
    checks.number("momentum_tracking: momentum", momentum, "[0, 1)")

    def accumulate(last, gradients):
        return jax.tree.map(lambda u, g: jnp.asarray(momentum, u.dtype) * u + g, last, gradients)

    return _combine_then_adapt("momentum_tracking", optimizer, topology, accumulate)


@method(
    sends="models and trackers of the gradient after the step, to neighbours",
    exact="any data",
    needs=("doubly stochastic W",),
    paper="NEXT: Di Lorenzo and Scutari, 2016",
    page="how_to/decentralized.md",
    graph=topologies.ring,
)
@checks.arguments
def atc_tracking(optimizer: optax.GradientTransformation, topology: Topology) -> Algorithm:
    r"""Gradient tracking that adapts, then combines: each worker steps along its tracker before the
    models are averaged (NEXT, and SONATA on undirected graphs).

    $$ X_{t+1} = (X_t - \gamma Y_t) W_t^T, \qquad Y_{t+1} = Y_t W_t^T + G(X_{t+1}) - G(X_t), \qquad
    Y_0 = G(X_0) $$

    In a round each worker sends one message to each neighbour, with its model after the step and
    its tracker. The mean of the trackers is the mean of the gradients, so that with exact gradients
    the fixed point is the minimizer of f for any data. On the complete graph the mean of the models
    makes the steps of mini-batch SGD. A worker that does not participate keeps its state, and
    messages may be lost if W is symmetric.

    Args:
        optimizer: each worker's step along its tracker; `optax.sgd(gamma)` gives the equation.
            Momentum and Adam receive y as the gradient.
        topology: W, doubly stochastic. With a schedule, round t uses W_t.

    Raises:
        ValueError: if the topology is not doubly stochastic.

    Source: Di Lorenzo and Scutari, "NEXT: in-network nonconvex optimization", 2016; Xu, Zhu, Soh
    and Xie, "Augmented distributed gradient methods for multi-agent optimization under
    uncoordinated constant stepsizes", 2015. NEXT also allows surrogates of the objectives; this is
    its form with linear surrogates.
    """

    def update(state, gradients, round):
        y = track(state.tracker, gradients, state.gradient)
        change, memory = optimizers.update_local(optimizer, state, y)
        half = optax.apply_updates(state.params, change)  # X - gamma Y
        x, y = round.mix((half, y), topology)
        return Tracking(x, memory, y, gradients)

    return with_trackers("atc_tracking", optimizer, topology, update)


@method(
    sends="trackers, then models, to neighbours",
    exact="any data",
    needs=("doubly stochastic W",),
    paper="Aug-DGM: Xu et al., 2015",
    page="how_to/decentralized.md",
    graph=topologies.ring,
)
@checks.arguments
def aug_dgm(
    optimizer: optax.GradientTransformation,
    topology: Topology,
    step_factors: Sequence[float] | np.ndarray | None = None,
) -> Algorithm:
    r"""Aug-DGM (ATC-DIGing): gradient tracking in which trackers and models are averaged after they
    change, with a step size of each worker.

    $$ Y_t = (Y_{t-1} + G(X_t) - G(X_{t-1})) W_t^T, \qquad
    X_{t+1} = (X_t - Y_t\, \mathrm{diag}(\gamma_1, \dots, \gamma_N)) W_t^T, \qquad
    Y_0 = G(X_0) W_0^T $$

    In a round each worker sends its tracker, and, after it has received the trackers of its
    neighbours, its model. The mean of the trackers is the mean of the gradients, so that with exact
    gradients the fixed point is the minimizer of f for any data and any step sizes for which the
    method is stable. On the complete graph with equal step sizes the method is gradient descent. A
    worker that does not participate keeps its state, and messages may be lost if W is symmetric.

    Args:
        optimizer: each worker's step along its tracker; `optax.sgd(gamma)` gives the equation.
            Momentum and Adam receive y as the gradient.
        topology: W, doubly stochastic. With a schedule, round t uses W_t.
        step_factors: factor of each worker's step, N positive numbers: $\gamma_n$ is the product of
            the optimizer's step size and the n-th factor. None: all factors are 1.

    Raises:
        ValueError: if the topology is not doubly stochastic, or the factors are not one positive
            number for each of its nodes.

    Source: Xu, Zhu, Soh and Xie, "Augmented distributed gradient methods for multi-agent
    optimization under uncoordinated constant stepsizes", 2015; Nedic, Olshevsky, Shi and Uribe,
    "Geometrically convergent distributed optimization with uncoordinated step-sizes", 2017.
    Departure: the first trackers are averaged, too; the papers start at $Y_0 = G(X_0)$.
    """
    _require_factors(step_factors, topology)

    def update(state, gradients, round):
        y = round.mix(track(state.tracker, gradients, state.gradient), topology)
        change, memory = optimizers.update_local(optimizer, state, y)
        if step_factors is not None:
            factors = workers.local_block(jnp.asarray(step_factors), topology.n)
            change = scale_rows(factors, change)
        x = round.mix(optax.apply_updates(state.params, change), topology)
        return Tracking(x, memory, y, gradients)

    return with_trackers("aug_dgm", optimizer, topology, update)


def _require_factors(factors: Sequence[float] | np.ndarray | None, topology: Topology) -> None:
    """Raises a ValueError if the factors of the steps are not one for each node, or not
    positive.
    """
    if factors is None:
        return
    if np.ndim(factors) != 1 or len(factors) != topology.n:
        raise ValueError(
            f"aug_dgm: step_factors = {checks.show(factors)}, but {topology.name} has "
            f"{topology.n} nodes; expected one number for each node"
        )
    for factor in factors:
        checks.number("aug_dgm: step_factors", factor, "(0, inf)")


def _combine_then_adapt(
    name: str, optimizer: optax.GradientTransformation, topology: Topology, tracked: Callable
) -> Algorithm:
    """Returns DIGing that tracks the mean of `tracked(last, gradients)`, where `last` is the
    previous round's result, 0 at first.
    """

    def update(state, gradients, round):
        x, y = round.mix((state.params, state.tracker), topology)
        g = tracked(state.gradient, gradients)
        y = track(y, g, state.gradient)
        change, memory = optimizers.update_local(optimizer, state, y)
        return Tracking(optax.apply_updates(x, change), memory, y, g)

    return with_trackers(name, optimizer, topology, update)
