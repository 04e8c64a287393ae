"""A method's rounds one by one on a small quadratic, with all that a run does not show: what
`recursions` are held to.

Parameters are two layers, neither of which comes apart in N equal parts; workers differ; gradients
are noisy, and what noise each is given follows from the round's key and the worker's number alone.
All numbers are arguments of the compiled program: a method is compiled once.
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
from dsgd.base import Algorithm, Loss, Now, Problem, Round, State
from dsgd.engine import oracle
from dsgd.engine.protocol import Method
from dsgd.engine.queries import Asked
from dsgd.wire import counts
from theory_checks.machinery.rounds import Instance, Timetable, on_one_device
from theory_checks.machinery.statement import Draws

# parts of 2, and one worker more than has any; parts of 3, the last of padding
N, LAYERS = 6, (7, 15)
D, ROUNDS = sum(LAYERS), 9
WEIGHTS = (3, 5)
# what keys are folded with for later micro-batches, and for draws that are numbered
_LATER, _STREAM = 1 << 31, np.uint32(2**32 - 1)

Build = Callable[[Instance], Algorithm]
# the cluster, of what the instance has `more`
Place = Callable[[Instance], clusters.Cluster | Timetable]

# Each program runs for a millisecond: it is compiled in haste. Versions of JAX from 0.11 on have no
# older way to write loops.
OLDER_LOOPS = tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11)
_HASTE = {
    "xla_backend_optimization_level": 0,
    **({"xla_cpu_use_fusion_emitters": False} if OLDER_LOOPS else {}),
}


class Trajectory(NamedTuple):
    """What came of the rounds, in numpy.

    Args:
        states: before, between and after, leaves `[T + 1, ...]`.
        home: the model that one would take home after each, `[T, d]`.
        asked: whose gradients each asked for, `[T, k]`; None: everybody's.
        gradients: what came, `[T, k, d]`.
        noise: what the oracle should have added to each worker's gradient, `[T, N, d]`, or
            micro-batch, `[T, N, M, d]`; of draws that are numbered, t M + m is that of number m in
            round t.
        sent, received: bits, `[T, N]`.
        metrics: the method's own numbers by name, `[T, ...]`.
        compute: seconds that each worker computed, `[T, N]`, of methods that stop workers; else
            None.
        clock: seconds after each, of a second each where the method has no time, `[T]`.
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
    """One worker's quadratic, the root of its noise, and in a batch the noise."""

    A: jax.Array
    b: jax.Array
    root: jax.Array
    noise: jax.Array


def instance(draws: Draws, more: Any = ()) -> Instance:
    """Six convex quadratics with noise, a start and a step size, in numpy.

    Args:
        draws: where its numbers come from.
        more: what else the method is made of, arrays.
    """
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    bases = np.linalg.qr(rng.normal(size=(N, D, D)))[0]
    A = np.einsum("nij,nj,nkj->nik", bases, rng.uniform(0.1, 1.0, (N, D)), bases)
    root = draws.real(0.1, 2.0) * np.eye(D)
    b, start, gamma = rng.normal(size=(N, D)), rng.normal(size=D), draws.real(0.05, 0.3)
    arrays: Any = ((A + A.swapaxes(1, 2)) / 2, b, root, start, np.float64(gamma), np.float64(0))
    return Instance(*arrays, more=more)


def tree(x: Any) -> dict[str, Any]:
    """A vector `[d]` as two layers."""
    return {"biases": x[: LAYERS[0]], "weights": x[LAYERS[0] :].reshape(WEIGHTS)}


def rows(tree: Any, leading: int = 2) -> np.ndarray:
    """Leaves `[..., *shape]` as vectors `[..., d]`."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(*leaf.shape[:leading], -1) for leaf in leaves], axis=-1)


def run(
    build: Build, of: Instance, *, seed: int = 0, place: Place | None = None, length: int = ROUNDS
) -> Trajectory:
    """Some rounds in float64.

    Args:
        build: instance -> method; the same object for what is to be compiled once.
        of: of `instance`.
        seed: of the run's key.
        place: the cluster that it is on; None: none.
        length: how many.
    """
    with jax.enable_x64(True):
        first, rest = _rounds(of, jax.random.key(seed), build=build, place=place, length=length)
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


@partial(jax.jit, static_argnames=("build", "place", "length"), compiler_options=_HASTE)
def _rounds(of: Instance, key: jax.Array, *, build: Build, place: Place | None, length: int):
    def everything(of, key):
        data = _Data(of.A, of.b, jnp.broadcast_to(of.root, of.A.shape), of.b)
        problem = Problem(init=_start, loss=Loss(_no_loss, _gradient), data=data, sample=_sample)
        method = Method(build(of), problem, N)

        def one_round(carry, t):
            state, clock = carry
            own, samples, update = jax.random.split(jax.random.fold_in(key, t), 3)
            this = Round(t, N, own, Now(place(of), clock) if place else None)
            asked = method.query(state, this)
            # In what the oracle gives, exact gradients have no noise.
            exact = data._replace(noise=jnp.zeros_like(of.b)) if asked.exact else data
            keys = jax.random.fold_in(key, _STREAM) if asked.draws is not None else samples
            gradients = oracle.gradients(problem, asked, keys, exact, N)
            noise = _noise(of, keys, asked, t)
            after, record = method.update(state, gradients, this._replace(work=asked.work), update)
            statistics = record.statistics(N)
            clock = clock + (1 if statistics.elapsed is None else statistics.elapsed)
            home, stacked = method.models(after)
            home = workers.mean(home) if stacked else home
            return (after, clock), (after, home, asked.workers, gradients, noise, statistics, clock)

        first = method.init(tree(of.start))
        return first, jax.lax.scan(
            one_round, (first, jnp.float32(0)), jnp.arange(length, dtype=jnp.int32)
        )[1]

    return on_one_device(everything)(of, key)


def _noise(of: Instance, key: jax.Array, asked: Asked, t: jax.Array) -> jax.Array:
    """Of the round's gradients, or micro-batches, as `Trajectory` has it."""

    def of_workers(key):
        return jax.vmap(lambda n: of.root @ jax.random.normal(jax.random.fold_in(key, n), (D,)))(
            jnp.arange(N)
        )

    if asked.work is None:
        return of_workers(key)
    M = asked.work.samples.shape[1]
    if asked.draws is not None:
        turns = [jax.random.fold_in(key, t * M + m) for m in range(M)]
    else:
        turns = [key, *(jax.random.fold_in(key, np.uint32(_LATER + m)) for m in range(1, M))]
    return jnp.stack([of_workers(turn) for turn in turns], axis=1)


def _sample(key: jax.Array, mine: _Data) -> _Data:
    return mine._replace(noise=mine.root @ jax.random.normal(key, mine.b.shape))


def _gradient(params: Any, batch: _Data) -> Any:
    return tree(batch.A @ ravel_pytree(params)[0] - batch.b + batch.noise)


def _start(key: jax.Array) -> dict[str, jax.Array]:
    """Of the parameters, only shapes and types are asked for."""
    return tree(jnp.zeros(D))


def _no_loss(*args: Any) -> None:
    raise NotImplementedError("only gradients are asked for")
