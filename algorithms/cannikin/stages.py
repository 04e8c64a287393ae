"""Methods whose local batches and step sizes may change between two stages of a run, without compiling again."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dsgd
from algorithms.observed import observed
from algorithms.unequal_work import unequal_work
from dsgd import checks, work
from dsgd.base import Algorithm, PyTree, State


class Scale(NamedTuple):
    """What the optimiser's steps are multiplied by.

    Args:
        factor: a scalar.
    """

    factor: jax.Array


@checks.arguments
def scalable(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The same optimiser, whose step size `cannikin.train` may change between epochs, without compiling again.

    Args:
        optimizer: of optax.
    """

    def update(updates, state, params=None):
        return jax.tree.map(lambda u: (state.factor * u).astype(u.dtype), updates), state

    return optax.chain(optimizer, optax.GradientTransformation(lambda params: Scale(jnp.ones((), jnp.float32)), update))


class Sized(NamedTuple):
    """What is held once.

    Args:
        method: of the method.
        sizes: samples of each worker, int32 `[N]`.
    """

    method: PyTree
    sizes: jax.Array


@lru_cache(maxsize=32)
def sized(method: Algorithm, batch_size: int, micro_batches: int) -> Algorithm:
    """The method with local batches that are part of its state, 0 at the start, so that they may change between two stages of a run; and
    with what its nodes measure in the history.

    The same one for the same arguments: what other systems, or seeds, have run is not traced again.

    Args:
        method: any that `unequal_work` takes.
        batch_size, micro_batches: as of `work.local_batches`.
    """

    def given(state: State, round: dsgd.Round) -> dsgd.Work:
        return work.local_batches(state.server.sizes, batch_size=batch_size, micro_batches=micro_batches)

    def inner(state: State) -> State:
        return state._replace(server=state.server.method)

    def init(params, N):
        state = method.init(params, N)
        return state._replace(server=Sized(state.server, jnp.zeros(N, jnp.int32)))

    def query(state, round):
        return unequal_work(method, given(state, round)).query(inner(state), round)

    def update(state, gradients, round):
        after = method.update(inner(state), gradients, round)
        return after._replace(server=Sized(after.server, state.server.sizes))

    members = {"init": init, "query": query, "update": update, "model": lambda state: method.model(inner(state))}
    return observed(method._replace(name=f"sized({method.name})", **members))


def decided(state: State, sizes: np.ndarray, factor: float) -> State:
    """With other local batches, and another factor wherever there is one.

    Args:
        state: of a `sized` method.
        sizes: samples of each worker, int `[N]`.
        factor: of the step size.

    Raises:
        ValueError: as of `rescaled`.
    """
    state = rescaled("cannikin.train", state, factor)
    return state._replace(server=state.server._replace(sizes=jnp.asarray(sizes, jnp.int32)))


def rescaled(name: str, state: PyTree, factor: float) -> PyTree:
    """With another factor wherever there is one.

    Raises:
        ValueError: a factor that is no number above 0, or not 1 where no optimiser was made `scalable`.
    """

    def put(node):
        return Scale(jnp.full_like(node.factor, factor)) if isinstance(node, Scale) else node

    if not (checks.is_number(factor) and 0 < factor < np.inf):
        raise ValueError(f"{name}: scaling gives {checks.shown(factor)}: need a finite number above 0")
    leaves = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, Scale))
    if factor != 1 and not any(isinstance(leaf, Scale) for leaf in leaves):
        raise ValueError(f"{name}: a step size times {factor:g}, but its optimiser's is fixed: need cannikin.scalable(optimizer)")
    return jax.tree.map(put, state, is_leaf=lambda node: isinstance(node, Scale))
