"""Variance-reduced gradients for methods on graphs, above all for gradient tracking: with
stochastic gradients and a constant step size, the workers converge to the optimum.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

import topologies
from algorithms import gossip
from algorithms.decentralized.gradient_tracking import aug_dgm, gradient_tracking
from algorithms.facts import method
from algorithms.mechanisms.variance_reduction import with_recursion, with_snapshots, with_table
from dsgd import Algorithm, Round, Topology, checks
from dsgd.extend import Period, Real


@method(
    sends="trackers, then models, to neighbours",
    exact="any data and samples",
    needs=("doubly stochastic W", "some exact gradients", "all workers"),
    paper="Xin et al., 2020",
    page="how_to/decentralized.md#noise",
    graph=topologies.ring,
    settings={"period": 4},
)
@checks.arguments
def gt_svrg(
    optimizer: optax.GradientTransformation, topology: Topology, period: Period
) -> Algorithm:
    r"""GT-SVRG: gradient tracking of gradients that are corrected by those at a snapshot.

    $$ V_t = G(X_t; \xi_t) - G(S; \xi_t) + F'(S), \qquad Y_t = (Y_{t-1} + V_t - V_{t-1}) W_t^T,
       \qquad X_{t+1} = (X_t - \gamma Y_t) W_t^T $$

    Every T-th round makes the models the snapshot S, and computes the exact gradients $F'(S)$ of
    the workers' own objectives; then $V_t = F'(X_t)$. The other rounds compute two gradients of the
    same samples. Trackers and models are sent as in `aug_dgm`. The limit is the optimum for any
    data, with stochastic gradients, too. All workers must participate.

    Args:
        optimizer: each worker's step along its tracker; `optax.sgd(gamma)` gives the equation.
        topology: W, doubly stochastic. With a schedule, round t uses W_t.
        period: T, at least 1. It may be swept.

    Raises:
        ValueError: if the topology is not doubly stochastic or the period is less than 1.

    Source: Xin, Khan and Kar, "Variance-reduced decentralized stochastic optimization with
    accelerated convergence", 2020. Departure, as in `aug_dgm`: the first trackers are averaged,
    too; other code starts at $Y_0 = V_0$.
    """
    period = checks.period("gt_svrg: period", period)
    gossip.require_topology("gt_svrg", topology)

    def renew(round: Round) -> jax.Array:
        return jnp.broadcast_to(round.step % period == 0, round.workers)

    return with_snapshots(f"gt_svrg({topology.name})", aug_dgm(optimizer, topology), renew)


@method(
    sends="trackers, then models, to neighbours",
    exact="any data and samples",
    needs=("doubly stochastic W", "some exact gradients", "all workers"),
    paper="Jiang et al., 2022",
    page="how_to/decentralized.md#noise",
    graph=topologies.ring,
    settings={"probability": 0.25},
)
@checks.arguments
def gt_vr(
    optimizer: optax.GradientTransformation, topology: Topology, probability: Real
) -> Algorithm:
    r"""GT-VR: GT-SVRG in which each worker renews its snapshot in a round with probability p.

    In the first round all workers do. Otherwise as `gt_svrg`.

    Args:
        optimizer, topology: as in `gt_svrg`.
        probability: p, in (0, 1], for example one over the number of batches of a worker. It may be
            swept.

    Raises:
        ValueError: if the topology is not doubly stochastic or p is not in (0, 1].

    Source: Jiang, Zeng, Sun and Chen, "Distributed stochastic gradient tracking algorithm with
    variance reduction for non-convex optimization", 2022. Departure: as in `gt_svrg`.
    """
    checks.number("gt_vr: probability", probability, "(0, 1]")
    gossip.require_topology("gt_vr", topology)

    def renew(round: Round) -> jax.Array:
        coins = jax.random.bernoulli(round.key, probability, (round.workers,))
        return coins | (round.step == 0)

    return with_snapshots(f"gt_vr({topology.name})", aug_dgm(optimizer, topology), renew)


@method(
    sends="models and trackers, to neighbours",
    exact="any data and samples",
    needs=("doubly stochastic W", "some exact gradients", "all workers"),
    paper="Xin et al., 2022",
    page="how_to/decentralized.md#noise",
    graph=topologies.ring,
    settings={"period": 4},
)
@checks.arguments
def gt_sarah(
    optimizer: optax.GradientTransformation, topology: Topology, period: Period
) -> Algorithm:
    r"""GT-SARAH: gradient tracking of a recursive estimate, which is exact in every T-th round.

    $$ V_t = V_{t-1} + G(X_t; \xi_t) - G(X_{t-1}; \xi_t), \qquad
       Y_t = Y_{t-1} W_t^T + V_t - V_{t-1}, \qquad X_{t+1} = X_t W_t^T - \gamma Y_t $$

    If T divides t, $V_t = F'(X_t)$, the exact gradients of the workers' own objectives. The other
    rounds, q = T - 1 in the paper, compute two gradients of the same samples. Trackers and models
    are sent as in `gradient_tracking`. The limit is the optimum for any data, with stochastic
    gradients, too. All workers must participate.

    Args:
        optimizer, topology: as in `gt_svrg`.
        period: T = q + 1, at least 1. It may be swept.

    Raises:
        ValueError: if the topology is not doubly stochastic or the period is less than 1.

    Source: Xin, Khan and Kar, "Fast decentralized nonconvex finite-sum optimization with recursive
    variance reduction", 2022.
    """
    period = checks.period("gt_sarah: period", period)
    gossip.require_topology("gt_sarah", topology)
    inner = gradient_tracking(optimizer, topology)
    return _recursive(
        f"gt_sarah({topology.name})", inner, lambda round: round.step % period == 0, 0.0
    )


@method(
    sends="trackers, then models, to neighbours",
    exact="any data",
    needs=("doubly stochastic W", "all workers"),
    paper="Xin et al., 2021",
    page="how_to/decentralized.md#noise",
    graph=topologies.ring,
    settings={"momentum_step": 0.1},
)
@checks.arguments
def gt_hsgd(
    optimizer: optax.GradientTransformation, topology: Topology, momentum_step: Real
) -> Algorithm:
    r"""GT-HSGD: gradient tracking of a hybrid of SARAH and SGD, without exact gradients after the
    first round.

    $$ V_t = G(X_t; \xi_t) + (1 - \beta) (V_{t-1} - G(X_{t-1}; \xi_t)), \qquad
       Y_t = (Y_{t-1} + V_t - V_{t-1}) W_t^T, \qquad X_{t+1} = (X_t - \gamma Y_t) W_t^T $$

    $V_0 = F'(X_0)$ is exact. With $\beta = 1$ the method is `aug_dgm`, with $\beta = 0$ SARAH that
    never starts again. A round computes two gradients of the same samples. With exact gradients the
    limit is the optimum for any data; noise leaves a variance that decreases with $\gamma$ and
    $\beta$. All workers must participate.

    Args:
        optimizer, topology: as in `gt_svrg`.
        momentum_step: $\beta$, in [0, 1]. It may be swept.

    Raises:
        ValueError: if the topology is not doubly stochastic or $\beta$ is not in [0, 1].

    Source: Xin, Khan and Kar, "A hybrid variance-reduced method for decentralized stochastic
    non-convex optimization", 2021. Departure: $V_0$ is exact instead of that of a large batch.
    """
    checks.number("gt_hsgd: momentum_step", momentum_step, "[0, 1]")
    gossip.require_topology("gt_hsgd", topology)
    inner = aug_dgm(optimizer, topology)
    return _recursive(
        f"gt_hsgd({topology.name})", inner, lambda round: round.step == 0, momentum_step
    )


@method(
    sends="trackers, then models, to neighbours",
    exact="any data and samples",
    needs=("doubly stochastic W", "all workers"),
    paper="Xin et al., 2022",
    page="how_to/decentralized.md#noise",
    settings=None,
)
@checks.arguments
def gt_saga(optimizer: optax.GradientTransformation, topology: Topology, samples: int) -> Algorithm:
    r"""GT-SAGA: gradient tracking of SAGA's estimate, from a table of the last gradient of each
    sample.

    $$ v_n = \nabla f_{n,\tau}(x_n) - \nabla f_{n,\tau}(z_{n,\tau}) + \frac1{m_n} \sum_l
       \nabla f_{n,l}(z_{n,l}), \qquad z_{n,s} \leftarrow x_n, \qquad z_{n,l} = x_0
       \text{ at first} $$

    $\tau$ and s are independent and uniform among the $m_n$ samples of worker n. Y and X are those
    of `gt_svrg`. A round computes the gradients of two samples, and also their gradients at the
    start if they were not drawn before; the first round computes the exact gradients. A worker
    stores a gradient for each sample. The limit is the optimum for any data. All workers must
    participate.

    Args:
        optimizer, topology: as in `gt_svrg`.
        samples: number of rows of each worker's table, at least the largest $m_n$:
            `problem.max_local_samples`.

    Raises:
        ValueError: if the topology is not doubly stochastic or `samples` is less than 1. During a
            run: if the problem does not have a finite number of samples, or has more.

    Source: Xin, Khan and Kar, "A fast randomized incremental gradient method for decentralized
    nonconvex optimization", 2022.
    """
    checks.positive_int("gt_saga: samples", samples)
    gossip.require_topology("gt_saga", topology)
    inner = aug_dgm(optimizer, topology)
    return with_table(f"gt_saga({topology.name})", inner, samples, drawn=2)


def _recursive(name: str, inner: Algorithm, fresh: Callable, momentum_step: Real) -> Algorithm:
    """Returns tracking of recursive estimates; the tracker stores the last ones."""
    return with_recursion(name, inner, fresh, momentum_step, lambda states: states.gradient)
