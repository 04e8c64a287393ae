"""Variance-reduced gradients in front of any method: with stochastic gradients of finite sums and a
constant step size, exact methods converge to the optimum.

Each worker replaces its gradient by an estimate with less variance, from which the method makes its
update as before.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dsgd import Algorithm, Communicator, Query, Round, State, checks, workers
from dsgd.extend import Gradients, Params, PyTree, Real, scale_rows

ALL = "a worker that misses a round misses the exact gradient, or the change, of its estimate"
_COIN = 0x636F696E  # folded into a round's key for coins, which are then independent of the method


class Reduced(NamedTuple):
    """State of the workers, leaves `[n, ...]`, or of the server, with variance-reduced gradients.

    Args:
        inner: state of the method that receives the estimates as gradients.
        memory: what the estimate is computed from.
    """

    inner: Any
    memory: Any


@checks.arguments
def with_loopless_svrg(method: Algorithm, probability: Real) -> Algorithm:
    r"""Returns the method on loopless SVRG's estimates of the workers' gradients.

    $$ v_n = g_n(x; \xi) - g_n(w_n; \xi) + f_n'(w_n), \qquad w_n \leftarrow x \text{ with
       probability } p $$

    One coin is drawn for all workers. When the snapshots $w_n$ are renewed, as in the first round,
    the workers compute $v_n = f_n'(x)$; in the other rounds, two gradients of the same samples.
    Around `diana` this is VR-DIANA. All workers must participate.

    Args:
        method: a method in which all workers compute one stochastic gradient in each round. Its
            own random draws do not depend on the coins.
        probability: p, in (0, 1], for example one over the number of batches of a worker. It may be
            swept.

    Raises:
        ValueError: if p is not in (0, 1]. At the start of a run: if the method queries other than
            one stochastic gradient of all workers.

    Source: Kovalev, Horvath and Richtarik, "Don't jump through hoops and remove those loops: SVRG
    and Katyusha are better without the outer loop", 2020; with compression, Horvath et al.,
    "Stochastic distributed learning with gradient quantization and variance reduction", 2019.
    """
    checks.number("with_loopless_svrg: probability", probability, "(0, 1]")

    def renew(round: Round) -> jax.Array:
        return jnp.broadcast_to(_coin(round, probability), round.workers)

    return with_snapshots(f"{method.name} with loopless SVRG", method, renew)


@checks.arguments
def with_page(method: Algorithm, probability: Real) -> Algorithm:
    r"""Returns the method on PAGE's estimates of the workers' gradients.

    $$ v_n \leftarrow \begin{cases} f_n'(x_t) & \text{with probability } p \\ v_n + g_n(x_t; \xi) -
       g_n(x_{t-1}; \xi) & \text{otherwise} \end{cases} $$

    One coin is drawn for all workers; the first round computes $f_n'(x_0)$. The second case
    computes two gradients of the same samples. Around `ef21` this is EF21-PAGE. All workers must
    participate.

    Args:
        method: as in `with_loopless_svrg`.
        probability: p, in (0, 1]; with batches of b of m samples the paper has b / (b + m). It may
            be swept.

    Raises:
        ValueError: as `with_loopless_svrg`.

    Source: Li, Bao, Zhang and Richtarik, "PAGE: a simple and optimal probabilistic gradient
    estimator for nonconvex optimization", 2021; with compression, Fatkhullin et al., "EF21 with
    bells and whistles", 2021.
    """
    checks.number("with_page: probability", probability, "(0, 1]")
    return with_recursion(
        f"{method.name} with PAGE", method, lambda round: _coin(round, probability), 0.0
    )


@checks.arguments
def with_saga(method: Algorithm, samples: int) -> Algorithm:
    r"""Returns the method on SAGA's estimates of the workers' gradients, from a table of the last
    gradient of each sample.

    $$ v_n = \nabla f_{n,\tau}(x) - \nabla f_{n,\tau}(z_{n,\tau}) + \frac1{m_n} \sum_l
       \nabla f_{n,l}(z_{n,l}), \qquad z_{n,\tau} \leftarrow x, \qquad z_{n,l} = x_0
       \text{ at first} $$

    $\tau$ is uniform among the $m_n$ samples of worker n. A round computes the gradient of one
    sample, and also its gradient at the start if it was not drawn before; the first round computes
    the exact gradient. A worker stores a gradient for each sample. All workers must participate.

    Args:
        method: as in `with_loopless_svrg`.
        samples: number of rows of each worker's table, at least the largest $m_n$:
            `problem.max_local_samples`.

    Raises:
        ValueError: if `samples` is less than 1. At the start of a run: if the method queries other
            than one stochastic gradient of all workers, or the problem does not have a finite
            number of samples, or has more.

    Source: Defazio, Bach and Lacoste-Julien, "SAGA: a fast incremental gradient method with support
    for non-strongly convex composite objectives", 2014.
    """
    checks.positive_int("with_saga: samples", samples)
    return with_table(f"{method.name} with SAGA", method, samples, drawn=1)


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


def with_table(name: str, inner: Algorithm, samples: int, drawn: int) -> Algorithm:
    """Returns a method on SAGA's estimates of the gradients.

    Args:
        name: for tables and error messages.
        inner: as in `with_snapshots`.
        samples: number of rows of each worker's table.
        drawn: number of samples that each worker draws in a round, 1 or 2. The estimate is that at
            the first; the row of the last is renewed.
    """
    draws = range(drawn)

    def memory(x: Params, N: int) -> Table:
        rows = jax.tree.map(lambda x: jnp.zeros((N, samples, *x.shape[1:]), x.dtype), x)
        return Table(rows, optax.tree.zeros_like(x), x)

    def first_draws(N: int) -> jax.Array:  # which samples were drawn before
        return jnp.zeros((N, samples), bool)

    def query(state: State, round: Round) -> tuple[Query, ...]:
        s, ids = round.draw_samples(drawn), np.arange(round.workers)
        _require_rows(name, round, samples)
        x, start = _points(name, inner, state, round), state.workers.memory.start
        known = state.server.memory
        now = [Query(x, samples=s[:, k]) for k in draws]
        first = [Query(start, samples=s[:, k], active=~known[ids, s[:, k]]) for k in draws]
        return *now, *first, Query(start, exact=True, active=round.step == 0)

    def update(state: State, answer: tuple[Gradients, ...], round: Communicator) -> State:
        round.require_all(ALL)
        s, known, table = round.draw_samples(drawn), state.server.memory, state.workers.memory
        *sampled, exact = answer
        now, at_start = sampled[:drawn], sampled[drawn:]
        old = [_table_rows(table, known, s[:, k], at_start[k]) for k in draws]
        mean = optax.tree.where(round.step == 0, exact, table.mean)
        v = optax.tree.add(optax.tree.sub(now[0], old[0]), mean)
        shares = workers.local_block(1 / jnp.asarray(round.problem.local_samples), round.workers)
        mean = optax.tree.add(mean, scale_rows(shares, optax.tree.sub(now[-1], old[-1])))
        at = _places(s[:, -1])
        rows = jax.tree.map(lambda rows, g: rows.at[at].set(g), table.gradients, now[-1])
        known = known.at[np.arange(round.workers), s[:, -1]].set(True)
        return _update(inner, state, v, Table(rows, mean, table.start), round, known)

    return _method(name, inner, query, update, memory, first_draws)


def _require_rows(name: str, round: Round, rows: int) -> None:
    """Raises a ValueError if a worker has more samples than its table has rows."""
    most = round.problem.max_local_samples
    if most > rows:
        raise ValueError(
            f"{name}: samples = {rows}, but a worker of {round.problem.name} has {most} samples; "
            "expected at least as many: pass problem.max_local_samples"
        )


def _places(samples: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the places of these samples, int32 `[N]`, in the tables of a block."""
    mine = workers.local_block(samples, len(samples))
    return jnp.arange(len(mine)), mine


def _table_rows(
    table: Table, known: jax.Array, samples: jax.Array, at_start: Gradients
) -> Gradients:
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
        inner: a method that queries one stochastic gradient of all workers, at one model or at each
            worker's model; they start at the initial model of the run.
        renewed: Round -> the workers that make their model the snapshot, bool `[N]`.
    """

    def query(state: State, round: Round) -> tuple[Query, ...]:
        x, (snapshot, _) = _points(name, inner, state, round), state.workers.memory
        new = renewed(round)
        pair = Query(x, active=~new), Query(snapshot, active=~new)
        return *pair, Query(x, exact=True, active=new)

    def update(state: State, answer: tuple[Gradients, ...], round: Communicator) -> State:
        round.require_all(ALL)
        at_x, at_snapshot, exact = answer
        new = workers.local_block(renewed(round), round.workers)
        before = state.workers.memory
        x = _rows(_points(name, inner, state, round), before[0])
        known = jax.vmap(optax.tree.where)(new, (x, exact), before)
        known = round.if_active(known, before)
        # The pair is 0 where the snapshot is new.
        v = optax.tree.add(optax.tree.sub(at_x, at_snapshot), known[1])
        return _update(inner, state, v, known, round)

    return _method(name, inner, query, update, lambda x, N: (x, optax.tree.zeros_like(x)))


def with_recursion(
    name: str,
    inner: Algorithm,
    fresh: Callable,
    momentum_step: Real,
    last_gradient: Callable[[Any], Gradients] | None = None,
) -> Algorithm:
    r"""Returns a method on recursive estimates of the gradients, $v \leftarrow g(x_t) + (1 - \beta)
    (v - g(x_{t-1}))$, which are exact in rounds for which `fresh(round)`. A worker that computes
    nothing in a round, because its local work has no samples, keeps its estimate and the model of
    it.

    Args:
        name, inner: as in `with_snapshots`.
        fresh: Round -> whether the estimates are exact, a bool scalar.
        momentum_step: $\beta$.
        last_gradient: states of the inner method's workers -> the gradients of the previous round,
            if it stores them; None: they are stored here.
    """

    def memory(x: Params, N: int) -> tuple[PyTree, Params]:
        return optax.tree.zeros_like(x) if last_gradient is None else (), x

    def query(state: State, round: Round) -> tuple[Query, ...]:
        x, (_, last), new = _points(name, inner, state, round), state.workers.memory, fresh(round)
        return Query(x, active=~new), Query(last, active=~new), Query(x, exact=True, active=new)

    def update(state: State, answer: tuple[Gradients, ...], round: Communicator) -> State:
        round.require_all(ALL)
        at_x, at_last, exact = answer
        v, last = state.workers.memory
        if last_gradient is not None:
            v = last_gradient(state.workers.inner)

        def estimate(v, g, g_last):
            return g + jnp.asarray(1 - momentum_step, v.dtype) * (v - g_last)

        changed = jax.tree.map(estimate, v, at_x, at_last)
        estimated = optax.tree.where(fresh(round), exact, changed)
        x = _rows(_points(name, inner, state, round), last)
        v, last = round.if_active((estimated, x), (v, last))
        return _update(inner, state, v, (v if last_gradient is None else (), last), round)

    return _method(name, inner, query, update, memory)


def _coin(round: Round, probability: Real) -> jax.Array:
    """Returns whether the estimates of a round are exact, a bool scalar."""
    coin = jax.random.bernoulli(jax.random.fold_in(round.key, _COIN), probability)
    return coin | (round.step == 0)


def _points(name: str, inner: Algorithm, state: State, round: Round) -> Params:
    """Returns where the inner method queries gradients: one model, or leaves `[n, ...]`."""
    query = inner.query(_inner(state), round)
    plain = isinstance(query, Query) and all(map(operator.is_, query[1:], Query(None)[1:]))
    if not plain:
        raise ValueError(
            f"{name}: {inner.name} queries several gradients, exact ones, or those of some "
            "workers only; expected a method that queries one stochastic gradient of all workers, "
            "such as algorithms.minibatch_sgd, diana, ef21 or aug_dgm"
        )
    return query.params


def _rows(x: Params, like: Params) -> Params:
    """Returns the models of a block, leaves `[n, ...]`, of one model or of themselves."""
    return jax.tree.map(lambda x, like: jnp.broadcast_to(x, like.shape), x, like)


def _inner(state: State) -> State:
    """Returns the state of the inner method."""
    return state._replace(server=state.server.inner, workers=state.workers.inner)


def _update(
    inner: Algorithm,
    state: State,
    v: Gradients,
    memory: PyTree,
    round: Communicator,
    shared: PyTree = (),
) -> State:
    """Returns the state after a round of the inner method in which the gradients are v."""
    after = inner.update(_inner(state), v, round)
    return after._replace(
        server=Reduced(after.server, shared), workers=Reduced(after.workers, memory)
    )


def _method(
    name: str,
    inner: Algorithm,
    query: Callable,
    update: Callable,
    memory: Callable[[Params, int], PyTree],
    shared: Callable[[int], PyTree] = lambda N: (),
) -> Algorithm:
    """Returns a method with states `Reduced`. The memory of the workers starts as
    `memory(models, N)`, that of the server as `shared(N)`.
    """

    def start(state: State, x: Params, N: int) -> State:
        server, of_workers = Reduced(state.server, shared(N)), Reduced(state.workers, memory(x, N))
        return state._replace(server=server, workers=of_workers)

    def init(params: Params, N: int) -> State:
        return start(inner.init(params, N), workers.replicate(params, N), N)

    def init_from(params: Params, N: int, models: Params | None = None) -> State:
        x = workers.replicate(params, N) if models is None else models
        return start(inner_init(params, N, models), x, N)

    inner_init: Callable = inner.init  # may have a third argument, the models
    common = "models" not in inspect.signature(inner_init).parameters
    personal = inner.personal
    return Algorithm(
        name,
        init if common else init_from,
        query,
        update,
        lambda state: inner.model(_inner(state)),
        personal=personal and (lambda state: personal(_inner(state))),
    )
