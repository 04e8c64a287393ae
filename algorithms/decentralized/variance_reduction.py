"""Variance-reduced gradients for methods on graphs, above all for gradient tracking: with
stochastic gradients and a constant step size, the workers converge to the optimum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms import gossip
from algorithms.decentralized.gradient_tracking import aug_dgm, gradient_tracking
from dsgd import Algorithm, Topology, checks, workers
from dsgd.base import Gradients, Params, Period, PyTree, Query, Real, Round, State
from dsgd.communication import Communicator
from dsgd.engine import units

ALL = "a worker that misses a round misses the exact gradient, or the change, of its estimate"


class Reduced(NamedTuple):
    """Workers with variance-reduced gradients, leaves `[n, ...]`.

    Args:
        inner: state of the method that receives the estimates as gradients.
        memory: what the estimate is computed from.
    """

    inner: Any
    memory: Any


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
    accelerated convergence", 2020.
    """
    period = checks.period("gt_svrg: period", period)
    gossip.require_topology("gt_svrg", topology)

    def renewed(round: Round) -> jax.Array:
        return jnp.broadcast_to(round.step % period == 0, round.workers)

    return with_snapshots(f"gt_svrg({topology.name})", aug_dgm(optimizer, topology), renewed)


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
    variance reduction for non-convex optimization", 2022.
    """
    checks.within("gt_vr: probability", probability, "(0, 1]")
    gossip.require_topology("gt_vr", topology)

    def renewed(round: Round) -> jax.Array:
        coins = jax.random.bernoulli(round.key, probability, (round.workers,))
        return coins | (round.step == 0)

    return with_snapshots(f"gt_vr({topology.name})", aug_dgm(optimizer, topology), renewed)


@checks.arguments
def gt_sarah(
    optimizer: optax.GradientTransformation, topology: Topology, period: Period
) -> Algorithm:
    r"""GT-SARAH: gradient tracking of a recursive estimate, which is exact in every q-th round.

    $$ V_t = V_{t-1} + G(X_t; \xi_t) - G(X_{t-1}; \xi_t), \qquad
       Y_t = Y_{t-1} W_t^T + V_t - V_{t-1}, \qquad X_{t+1} = X_t W_t^T - \gamma Y_t $$

    If q divides t, $V_t = F'(X_t)$, the exact gradients of the workers' own objectives. The other
    rounds compute two gradients of the same samples. Trackers and models are sent as in
    `gradient_tracking`. The limit is the optimum for any data, with stochastic gradients, too. All
    workers must participate.

    Args:
        optimizer, topology: as in `gt_svrg`.
        period: q, at least 1. It may be swept.

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
    checks.within("gt_hsgd: momentum_step", momentum_step, "[0, 1]")
    gossip.require_topology("gt_hsgd", topology)
    inner = aug_dgm(optimizer, topology)
    return _recursive(
        f"gt_hsgd({topology.name})", inner, lambda round: round.step == 0, momentum_step
    )


class Table(NamedTuple):
    r"""SAGA's memory of a worker, leaves `[n, ...]`.

    Args:
        gradients: $\nabla f_{n,l}(z_{n,l})$ of each sample l, leaves `[n, m, ...]`; 0 before a
            sample is first drawn, when $z_{n,l}$ is the start.
        mean: the mean of all gradients of the table, with those at the start.
        start: the initial model.
    """

    gradients: Any
    mean: Any
    start: Any


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

    def init(params, N, models=None):
        state = inner.init(params, N, models)
        x = state.workers.params
        rows = jax.tree.map(lambda x: jnp.zeros((N, samples, *x.shape[1:]), x.dtype), x)
        table = Table(rows, optax.tree.zeros_like(x), x)
        return State(jnp.zeros((N, samples), bool), Reduced(state.workers, table))

    def query(state: State, round: Round) -> tuple[Query, ...]:
        drawn, ids = round.draw_samples(2), np.arange(round.workers)
        _require_rows(round, samples)
        x, start, known = _models(state), state.workers.memory.start, state.server
        now = [Query(x, samples=drawn[:, k]) for k in (0, 1)]
        first = [Query(start, samples=drawn[:, k], active=~known[ids, drawn[:, k]]) for k in (0, 1)]
        return *now, *first, Query(start, exact=True, active=round.step == 0)

    def update(state: State, answer: tuple[Gradients, ...], round: Communicator) -> State:
        round.require_all(ALL)
        drawn, known, table = round.draw_samples(2), state.server, state.workers.memory
        at_tau, at_s, start_tau, start_s, exact = answer
        old_tau, old_s = (
            _of_table(table, known, drawn[:, k], start)
            for k, start in ((0, start_tau), (1, start_s))
        )
        mean = optax.tree.where(round.step == 0, exact, table.mean)
        v = optax.tree.add(optax.tree.sub(at_tau, old_tau), mean)
        shares = workers.local_block(1 / jnp.asarray(round.problem.local_samples), round.workers)
        mean = optax.tree.add(mean, units.scaled(shares, optax.tree.sub(at_s, old_s)))
        at = _places(drawn[:, 1])
        rows = jax.tree.map(lambda rows, g: rows.at[at].set(g), table.gradients, at_s)
        known = known.at[np.arange(round.workers), drawn[:, 1]].set(True)
        memory = Table(rows, mean, table.start)
        return _updated(inner, state, v, memory, round)._replace(server=known)

    return _method(f"gt_saga({topology.name})", inner, query, update)._replace(init=init)


def _require_rows(round: Round, rows: int) -> None:
    """Raises a ValueError if a worker has more samples than its table has rows."""
    most = round.problem.max_local_samples
    if most > rows:
        raise ValueError(
            f"gt_saga: samples = {rows}, but a worker of {round.problem.name} has {most} samples; "
            "expected at least as many: pass problem.max_local_samples"
        )


def _places(samples: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the places of these samples, int32 `[N]`, in the tables of a block."""
    mine = workers.local_block(samples, len(samples))
    return jnp.arange(len(mine)), mine


def _of_table(table: Table, known: jax.Array, samples: jax.Array, at_start: Gradients) -> Gradients:
    """Returns the table's gradients of these samples, int32 `[N]`; at the start if the samples were
    not drawn before.
    """
    N = len(samples)
    seen = workers.local_block(known[np.arange(N), samples], N)
    rows = jax.tree.map(lambda rows: rows[_places(samples)], table.gradients)
    return jax.vmap(optax.tree.where)(seen, rows, at_start)


def with_snapshots(name: str, inner: Algorithm, renewed: Callable) -> Algorithm:
    """Returns a method on SVRG's estimates of the gradients. A worker that computes nothing in a
    round, because its local work has no samples, keeps its snapshot.

    Args:
        name: for tables and error messages.
        inner: a method that queries one gradient at each worker's model, `State.workers.params`.
        renewed: Round -> the workers that make their model the snapshot, bool `[N]`.
    """

    def query(state: State, round: Round) -> tuple[Query, ...]:
        x, (snapshot, _) = _models(state), state.workers.memory
        new = renewed(round)
        pair = Query(x, active=~new), Query(snapshot, active=~new)
        return *pair, Query(x, exact=True, active=new)

    def update(state: State, answer: tuple[Gradients, ...], round: Communicator) -> State:
        round.require_all(ALL)
        at_x, at_snapshot, exact = answer
        new = workers.local_block(renewed(round), round.workers)
        before = state.workers.memory
        known = jax.vmap(optax.tree.where)(new, (_models(state), exact), before)
        known = round.if_active(known, before)
        # The pair is 0 where the snapshot is new.
        v = optax.tree.add(optax.tree.sub(at_x, at_snapshot), known[1])
        return _updated(inner, state, v, known, round)

    return _method(name, inner, query, update)


def _recursive(name: str, inner: Algorithm, fresh: Callable, momentum_step: Real) -> Algorithm:
    """Returns tracking of recursive estimates, which are exact in rounds for which
    `fresh(round)`. A worker that computes nothing in a round, because its local work has no
    samples, keeps its estimate and the model of it.
    """

    def query(state: State, round: Round) -> tuple[Query, ...]:
        x, last, new = _models(state), state.workers.memory, fresh(round)
        return Query(x, active=~new), Query(last, active=~new), Query(x, exact=True, active=new)

    def update(state: State, answer: tuple[Gradients, ...], round: Communicator) -> State:
        round.require_all(ALL)
        at_x, at_last, exact = answer

        before = state.workers.inner.gradient, state.workers.memory

        def estimate(v, g, g_last):
            return g + jnp.asarray(1 - momentum_step, v.dtype) * (v - g_last)

        changed = jax.tree.map(estimate, before[0], at_x, at_last)
        v = optax.tree.where(fresh(round), exact, changed)
        v, last = round.if_active((v, _models(state)), before)
        return _updated(inner, state, v, last, round)

    return _method(name, inner, query, update, lambda x: x)


def _models(state: State) -> Params:
    """Returns the models of a block, leaves `[n, ...]`."""
    return state.workers.inner.params


def _updated(
    inner: Algorithm, state: State, v: Gradients, memory: PyTree, round: Communicator
) -> State:
    """Returns the state after a round of the inner method in which the gradients are v."""
    after = inner.update(state._replace(workers=state.workers.inner), v, round)
    return after._replace(workers=Reduced(after.workers, memory))


def _method(
    name: str,
    inner: Algorithm,
    query: Callable,
    update: Callable,
    memory: Callable[[Params], PyTree] = lambda x: (x, optax.tree.zeros_like(x)),
) -> Algorithm:
    """Returns a method with workers `Reduced`. Their memory starts as `memory(models)`."""

    def init(params: Params, N: int, models: Params | None = None) -> State:
        state = inner.init(params, N, models)
        return state._replace(workers=Reduced(state.workers, memory(state.workers.params)))

    return Algorithm(name, init, query, update, _models)
