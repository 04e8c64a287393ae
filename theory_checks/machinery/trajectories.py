"""All rounds of a method on a small quadratic, with values that a run does not record, for
comparison with recursions in numpy.

The parameters are two layers, neither of which splits into N equal parts; workers differ; gradients
are noisy, and the noise of a gradient depends only on the round's key and the worker's id. All
numbers are arguments of the compiled program, so a method is compiled once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dsgd import clusters, workers
from dsgd.base import Algorithm, Gradients, Loss, Now, Problem, PyTree, Regularizer, Round, State
from dsgd.engine import queries
from dsgd.engine.oracle import Oracle
from dsgd.engine.protocol import Method
from dsgd.engine.queries import AllAsked, Asked
from dsgd.wire import counts
from theory_checks.machinery.rounds import Instance, Timetable, place_on_one_device
from theory_checks.machinery.statement import Draws

# Layer sizes for six servers: 7 has parts of 2 and leaves two servers without elements; 15 has
# parts of 3 and leaves one.
N, LAYERS = 6, (7, 15)
D, ROUNDS = sum(LAYERS), 9
WEIGHTS = (3, 5)
# Folded into keys for later micro-batches, and for numbered draws.
_LATER, _STREAM = 1 << 31, np.uint32(2**32 - 1)

Build = Callable[[Instance], Algorithm]
# instance -> the cluster, which may use the instance's `more`
Place = Callable[[Instance], clusters.Cluster | Timetable]

# Programs run for a millisecond only, so they are compiled with few optimisations. JAX 0.11 and
# later lack the older form of loops.
OLDER_LOOPS = tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11)
_HASTE = {
    "xla_backend_optimization_level": 0,
    **({"xla_cpu_use_fusion_emitters": False} if OLDER_LOOPS else {}),
}


class Trajectory(NamedTuple):
    """The results of the rounds, as numpy arrays.

    Args:
        states: before, between and after the rounds, leaves `[T + 1, ...]`.
        home: the method's model after each round, `[T, d]`.
        asked: workers whose gradients each round queries, `[T, k]`; None: all workers.
        gradients: the gradients, `[T, k, d]`; of several queries, one after the other, `[T, k Q,
            d]`.
        noise: the expected noise of each worker's gradient, `[T, N, d]`, or micro-batch, `[T, N, M,
            d]`, which all queries of the round share. For numbered draws, the m-th noise of round t
            belongs to the draw t M + m.
        sent, received: bits, `[T, N]`.
        metrics: the method's metrics by name, `[T, ...]`.
        compute: seconds that each worker computed, `[T, N]`, for methods that stop workers; else
            None.
        clock: seconds after each round, `[T]`; a second per round if the method has no time.
    """

    states: State
    home: np.ndarray
    asked: np.ndarray | None
    gradients: np.ndarray
    noise: np.ndarray
    sent: np.ndarray
    received: np.ndarray
    metrics: dict[str, np.ndarray]
    compute: np.ndarray | None
    clock: np.ndarray


class _Data(NamedTuple):
    """A worker's quadratic, the root of the covariance of its noise, and, in a batch, the noise."""

    A: jax.Array
    b: jax.Array
    root: jax.Array
    noise: jax.Array


def instance(draws: Draws, more: Any = ()) -> Instance:
    """Returns six convex quadratics with noise, a start and a step size, as numpy arrays.

    Args:
        draws: source of the random numbers.
        more: additional arrays from which the method is built.
    """
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    bases = np.linalg.qr(rng.normal(size=(N, D, D)))[0]
    A = np.einsum("nij,nj,nkj->nik", bases, rng.uniform(0.1, 1.0, (N, D)), bases)
    root = draws.real(0.1, 2.0) * np.eye(D)
    b, start, gamma = rng.normal(size=(N, D)), rng.normal(size=D), draws.real(0.05, 0.3)
    arrays: Any = ((A + A.swapaxes(1, 2)) / 2, b, root, start, np.float64(gamma), np.float64(0))
    return Instance(*arrays, more=more)


def tree(x: Any) -> dict[str, Any]:
    """Converts a vector `[d]` to two layers."""
    return {"biases": x[: LAYERS[0]], "weights": x[LAYERS[0] :].reshape(WEIGHTS)}


def rows(tree: Any, leading: int = 2) -> np.ndarray:
    """Converts leaves `[..., *shape]` to vectors `[..., d]`."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(*leaf.shape[:leading], -1) for leaf in leaves], axis=-1)


def join_parts(parts: Any) -> np.ndarray:
    """Joins the servers' parts of each layer, or of the model as one vector.

    Args:
        parts: leaves `[..., N, part]`; the last parts are padded, and parts of padding alone may be
            left out.

    Returns:
        `[..., d]`.
    """
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(parts)]
    sizes = LAYERS if len(leaves) > 1 else (D,)
    flat = [leaf.reshape(*leaf.shape[:-2], -1) for leaf in leaves]
    return np.concatenate(
        [leaf[..., :size] for leaf, size in zip(flat, sizes, strict=True)], axis=-1
    )


def run(
    build: Build,
    of: Instance,
    *,
    seed: int = 0,
    place: Place | None = None,
    length: int = ROUNDS,
    regularizer: Regularizer | None = None,
) -> Trajectory:
    """Runs rounds in float64.

    Args:
        build: instance -> method; pass the same object to compile once.
        of: from `instance`.
        seed: seed of the run's key.
        place: instance -> cluster; None: no cluster.
        length: number of rounds.
        regularizer: of the problem; None: none.
    """
    with jax.enable_x64(True):
        static = {"build": build, "place": place, "length": length, "regularizer": regularizer}
        first, rest = _rounds(of, jax.random.key(seed), **static)
        states, home, asked, gradients, noise, statistics, clock = rest
        states = jax.tree.map(
            lambda start, rest: np.concatenate([np.asarray(start)[None], rest]), first, states
        )
        bits, metrics, compute, *_ = jax.tree.map(np.asarray, statistics)
    asked = None if asked is None else np.asarray(asked)
    sent, received = counts.to_int(bits.up), counts.to_int(bits.down)
    return Trajectory(
        states,
        rows(home, 1),
        asked,
        rows(gradients),
        np.asarray(noise),
        sent,
        received,
        metrics,
        compute,
        np.asarray(clock),
    )


@partial(
    jax.jit, static_argnames=("build", "place", "length", "regularizer"), compiler_options=_HASTE
)
def _rounds(
    of: Instance,
    key: jax.Array,
    *,
    build: Build,
    place: Place | None,
    length: int,
    regularizer: Regularizer | None,
):
    def everything(of, key):
        data = _Data(of.A, of.b, jnp.broadcast_to(of.root, of.A.shape), of.b)
        loss = Loss(_loss, _gradient)
        problem = Problem(_start, loss, data, _sample, regularizer=regularizer)
        method = Method(build(of), problem, N)

        def one_round(carry, t):
            state, clock = carry
            shared, samples, update = jax.random.split(jax.random.fold_in(key, t), 3)
            now = Now(place(of), clock) if place else None
            current = Round(t, N, shared, now, problem=problem._replace(data=()))
            asked = method.query(state, current)

            def answer(query: Asked) -> PyTree:
                # Exact gradients have no noise.
                exact = data._replace(noise=jnp.zeros_like(of.b)) if query.exact else data
                return Oracle(problem, N, exact).gradients(query, keys(query))

            def keys(query: Asked) -> jax.Array:
                return samples if query.first_batch is None else jax.random.fold_in(key, _STREAM)

            first = queries.each(asked)[0]
            answers, noise = queries.map_each(answer, asked), _noise(of, keys(first), first, t)
            current = current._replace(work=queries.local_work(asked, problem, N))
            after, record = method.update(state, answers, current, update)
            statistics = record.statistics(N)
            clock = clock + (1 if statistics.elapsed is None else statistics.elapsed)
            home, stacked = method.models(after)
            home = workers.mean(home) if stacked else home
            rest = (_stack(asked, answers), noise, statistics, clock)
            return (after, clock), (after, home, first.workers, *rest)

        first = method.init(tree(of.start))
        return first, jax.lax.scan(
            one_round, (first, jnp.float32(0)), jnp.arange(length, dtype=jnp.int32)
        )[1]

    return place_on_one_device(everything)(of, key)


def _stack(asked: AllAsked, answers: PyTree) -> Gradients:
    """Returns the gradients of a round's queries one after the other, leaves `[k Q, ...]`."""
    pairs = zip(
        queries.each(asked), (answers,) if isinstance(asked, Asked) else answers, strict=True
    )
    gradients = [answer[1] if query.loss else answer for query, answer in pairs]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *gradients)


def _noise(of: Instance, key: jax.Array, asked: Asked, t: jax.Array) -> jax.Array:
    """Returns the noise of the round's gradients or micro-batches, in the form of `Trajectory`."""

    def draw(key):
        return jax.vmap(lambda n: of.root @ jax.random.normal(jax.random.fold_in(key, n), (D,)))(
            jnp.arange(N)
        )

    if asked.work is None or asked.whole:
        return draw(key)
    M = asked.work.samples.shape[1]
    if asked.first_batch is not None:
        turns = [jax.random.fold_in(key, t * M + m) for m in range(M)]
    else:
        turns = [key, *(jax.random.fold_in(key, np.uint32(_LATER + m)) for m in range(1, M))]
    return jnp.stack([draw(turn) for turn in turns], axis=1)


def _sample(key: jax.Array, data: _Data) -> _Data:
    return data._replace(noise=data.root @ jax.random.normal(key, data.b.shape))


def _gradient(params: Any, batch: _Data) -> Any:
    return tree(batch.A @ ravel_pytree(params)[0] - batch.b + batch.noise)


def _start(key: jax.Array) -> dict[str, jax.Array]:
    """Returns parameters of which only shapes and types are used."""
    return tree(jnp.zeros(D))


def _loss(params: Any, batch: _Data) -> jax.Array:
    x = ravel_pytree(params)[0]
    return x @ (batch.A @ x / 2 - batch.b + batch.noise)
