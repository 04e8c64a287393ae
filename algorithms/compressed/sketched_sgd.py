"""Methods that add up count sketches by all-reduces: SketchedSGD and FetchSGD."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from algorithms import optimizers
from algorithms.facts import method
from dsgd import Algorithm, Query, State, checks, communication, workers, xla
from dsgd.compressors import LinearCode, count_sketch
from dsgd.extend import Real, require_share, scatter, selected_count, wide


class Sketched(NamedTuple):
    """State of SketchedSGD that is the same in all workers.

    Args:
        params: x.
        optimizer: the optimizer's state.
        seed: of the hash functions, uint32 scalar; 0 before the first round, which draws it.
    """

    params: Any
    optimizer: Any
    seed: jax.Array


class Memories(NamedTuple):
    """Memories of a worker of SketchedSGD, `[n, d]`.

    Args:
        u: momentum.
        v: momenta that have not been applied.
    """

    u: jax.Array
    v: jax.Array


class Fetched(NamedTuple):
    """State of FetchSGD.

    Args:
        params, optimizer, seed: as in `Sketched`.
        S_u: sketch of the momentum.
        S_e: sketch of the momenta that have not been applied.
    """

    params: Any
    optimizer: Any
    seed: jax.Array
    S_u: jax.Array
    S_e: jax.Array


@method(
    sends=(
        "count sketches of momenta plus memory, then exact values of the largest elements, by "
        "two all-reduces"
    ),
    paper="SketchedSGD: Ivkin et al., 2019",
    page="reference/compressors.md",
    settings={"fraction": 0.1, "columns": 32},
)
@checks.arguments
def sketched_sgd(
    optimizer: optax.GradientTransformation,
    fraction: float,
    columns: int,
    rows: int = 5,
    candidates: int = 4,
    momentum: Real = 0.9,
) -> Algorithm:
    r"""SketchedSGD: finds the largest elements of the workers' mean memory from the mean of their
    count sketches, and applies them.

    $$ u_n \leftarrow m u_n + g_n(x), \qquad v_n \leftarrow v_n + u_n $$
    $$ I = \text{the } Pk \text{ largest of } U\Big(\frac1N \sum_n S(v_n)\Big), \qquad \Delta =
    \mathrm{TopK}\Big(\frac1N \sum_n (v_n)_I\Big) $$
    $$ x \leftarrow x - \gamma \Delta, \qquad u_n, v_n \leftarrow 0 \text{ where } \Delta \text{ was
    chosen} $$

    S and U are those of `compressors.count_sketch`, for the model as one vector of d elements; its
    hash functions are drawn in the first round. u and v start at 0. The k applied elements have
    exact values: errors of the sketch affect only which elements are applied. All operations are
    linear in the $g_n$ and all workers choose the same elements, so that the iterates are those of
    one worker with the mean gradient. With k = d, v is applied and both memories are 0 after each
    round: this is SGD without momentum. With exact gradients and a small constant step, x converges
    to a stationary point of the mean objective for any data of the workers.

    Sends the rc elements of the sketch, and then the Pk elements at I, which all workers know, by
    two all-reduces. The mean is over the messages that arrive; the other workers keep their
    memories, and their gradients are lost.

    Args:
        optimizer: the step; `optax.sgd(gamma)` gives the equation.
        fraction: k / d, a float in (0, 1].
        columns: c, the number of counters of a row of the sketch.
        rows: r, an odd number.
        candidates: P; at most d elements are asked for.
        momentum: m, in [0, 1).

    Raises:
        ValueError: if fraction is an integer or outside (0, 1], columns or candidates < 1, rows is
            not odd, or the momentum is outside [0, 1).

    Source: Ivkin et al., "Communication-efficient distributed SGD with sketching", 2019.
    """
    sketch = _sketch("sketched_sgd", fraction, rows, columns, momentum)
    checks.positive_int("sketched_sgd: candidates", candidates)
    optimizers.require_descent(optimizer)

    def init(params, N):
        v = jnp.zeros_like(wide(ravel_pytree(params)[0]))
        x = Sketched(*optimizers.init(optimizer, params), jnp.uint32(0))
        return State(x, workers.replicate(Memories(v, v), N))

    def update(state, gradients, round):
        x, (u, v) = state.server, state.workers
        d = v.shape[1]
        k = selected_count(fraction, d)
        seed = _seed(x.seed, round)
        u = jnp.asarray(momentum, u.dtype) * u + communication.flatten(gradients, False)
        v = v + u
        S = round.mean(jax.vmap(partial(sketch.encode, jax.random.key(seed)))(v))
        asked = xla.largest(sketch.decode(jax.random.key(seed), S, d), min(candidates * k, d))
        exact = round.mean(v[:, asked])
        largest = xla.largest(exact, k)
        chosen = jnp.zeros(d, bool).at[asked[largest]].set(True)[None]
        memories = jax.tree.map(lambda memory: jnp.where(chosen, 0, memory), Memories(u, v))
        after = _step(optimizer, x, scatter(asked[largest], exact[largest], d))
        return State(
            workers.if_nonempty(after._replace(seed=seed), x),
            workers.where_delivered(memories, state.workers),
        )

    return Algorithm(
        f"sketched_sgd({fraction:g}, {rows} x {columns}, {candidates}, {momentum})",
        init,
        lambda state, round: Query(state.server.params),
        update,
        lambda state: state.server.params,
    )


@method(
    sends="count sketches of gradients, by an all-reduce",
    paper="FetchSGD: Rothchild et al., 2020",
    page="reference/compressors.md",
    settings={"fraction": 0.1, "columns": 32},
)
@checks.arguments
def fetch_sgd(
    optimizer: optax.GradientTransformation,
    fraction: float,
    columns: int,
    rows: int = 5,
    momentum: Real = 0.9,
    error: Literal["zero", "subtract"] = "zero",
) -> Algorithm:
    r"""FetchSGD: the server keeps momentum and error memory as count sketches; the workers send
    sketches of their gradients and keep nothing.

    $$ S = \frac1N \sum_n S(g_n(x)), \qquad S_u \leftarrow \rho S_u + S, \qquad S_e \leftarrow S_e +
    S_u $$
    $$ \Delta = \mathrm{TopK}(U(S_e)), \qquad S_u, S_e \leftarrow 0 \text{ where } S(\Delta) \ne 0,
    \qquad x \leftarrow x - \gamma \Delta $$

    S and U are those of `compressors.count_sketch`, for the model as one vector of d elements; its
    hash functions are drawn in the first round. $S_u$ and $S_e$ start at 0. With
    `error="subtract"`, the second line is $S_e \leftarrow S_e - S(\Delta)$ instead, and $S_u$ is
    not changed. Everything is linear in the mean gradient, so that differences between the workers'
    data have no effect.

    With at least d columns the sketch is exact, and with exact gradients and a small constant step
    x converges to a stationary point of the mean objective. If also k = d, $S_e$ is 0 after each
    round: the method is SGD with heavy-ball momentum $\rho$ ("subtract"), or without momentum
    ("zero"). With fewer columns, both need gradients with few large elements. On quadratics with
    dense gradients, $S_e$ and x grow without bound with "subtract", also for small steps; with
    "zero", x remains bounded but does not converge to the minimum, because counters are set to 0
    that also have other elements.

    Sends the rc elements of the sketch by an all-reduce, from which every worker computes $\Delta$.
    The mean is over the messages that arrive.

    Args:
        optimizer: the step along $\Delta$; `optax.sgd(gamma)` gives the equation.
        fraction: k / d, a float in (0, 1]; the paper has 1 to 5 %.
        columns: c, the number of counters of a row of the sketch; the paper's sketches have
            rc = d/10 to d/40.
        rows: r, an odd number.
        momentum: rho, in [0, 1).
        error: what becomes of the counters of $\Delta$: "zero", the equation, which is that of the
            authors' code; or "subtract", the paper's algorithm.

    Raises:
        ValueError: if fraction is an integer or outside (0, 1], columns < 1, rows is not odd, the
            momentum is outside [0, 1), or `error` is not one of the two.

    Source: Rothchild et al., "FetchSGD: communication-efficient federated learning with sketching",
    2020; its code, CommEfficient. Departure: the paper multiplies by $\gamma$ when gradients enter
    $S_e$, this method and the code when $\Delta$ is applied; for constant $\gamma$ the iterates are
    the same.
    """
    sketch = _sketch("fetch_sgd", fraction, rows, columns, momentum)
    if error not in ("subtract", "zero"):
        raise ValueError(f"fetch_sgd: error = {error!r}; expected 'zero' or 'subtract'")
    optimizers.require_descent(optimizer)

    def init(params, N):
        empty = jnp.zeros((rows, columns), wide(ravel_pytree(params)[0]).dtype)
        x = optimizers.init(optimizer, params)
        return State(Fetched(*x, jnp.uint32(0), empty, empty))

    def update(state, gradients, round):
        x = state.server
        seed = _seed(x.seed, round)
        encode = partial(sketch.encode, jax.random.key(seed))
        g = communication.flatten(gradients, False)
        d = g.shape[1]
        S_u = jnp.asarray(momentum, x.S_u.dtype) * x.S_u + round.mean(jax.vmap(encode)(g))
        S_e = x.S_e + S_u
        estimate = sketch.decode(jax.random.key(seed), S_e, d)
        largest = xla.largest(estimate, selected_count(fraction, d))
        delta = scatter(largest, estimate[largest], d)
        sent = encode(delta)
        if error == "subtract":
            S_e = S_e - sent
        else:
            S_u, S_e = jnp.where(sent != 0, 0, S_u), jnp.where(sent != 0, 0, S_e)
        after = _step(optimizer, x, delta)._replace(seed=seed, S_u=S_u, S_e=S_e)
        return State(workers.if_nonempty(after, x))

    options = f"{fraction:g}, {rows} x {columns}, {momentum}{', subtract' * (error == 'subtract')}"
    return Algorithm(
        f"fetch_sgd({options})",
        init,
        lambda state, round: Query(state.server.params),
        update,
        lambda state: state.server.params,
    )


def _sketch(method: str, fraction: float, rows: int, columns: int, momentum: Real) -> LinearCode:
    """Validates the arguments that both methods have, and returns their sketch."""
    require_share(method, "fraction", fraction)
    checks.number(f"{method}: momentum", momentum, "[0, 1)")
    return count_sketch(rows, columns)


def _seed(seed: jax.Array, round: communication.Communicator) -> jax.Array:
    """Returns the seed that the first round draws, the same for all workers."""
    drawn = jax.random.bits(round.next_key(), (), jnp.uint32)
    return jnp.where(round.step == 0, drawn, seed)


def _step(optimizer: optax.GradientTransformation, x: Any, delta: jax.Array) -> Any:
    """Makes one step along a vector `[d]`."""
    direction = communication.unflatten(delta[None], workers.replicate(x.params, 1), False)
    before = optimizers.Model(x.params, x.optimizer)
    after = optimizers.step(optimizer, before, jax.tree.map(lambda leaf: leaf[0], direction))
    return x._replace(params=after.params, optimizer=after.optimizer)
