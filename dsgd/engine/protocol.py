"""What a method's and a problem's functions must return, looked at while they are traced: a mistake is told where it is made, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_leaves_with_path

from dsgd import checks, work, workers
from dsgd.base import Algorithm, Info, Params, Problem, PyTree, Query, State
from dsgd.wire import counts

_SHOWN = 6  # names of leaves in a message


def held(algorithm: Algorithm, problem: Problem, N: int) -> Algorithm:
    """The method, whose members raise a ValueError where they return what the protocol has no use for (see `dsgd.Algorithm`).

    Args:
        algorithm: of which nothing is known.
        problem: that it runs on.
        N: number of workers.
    """
    name, weights = algorithm.name, problem.weights if algorithm.averages_models else None

    def init(params, N):
        with noted(f"init of {name}"):
            state = algorithm.init(params, N)
        _need_state(f"{name}: init", state)
        for path, leaf in tree_leaves_with_path(state.workers):
            if jnp.shape(leaf)[:1] != (N,):
                where = f"{name}: init gives State.workers{keystr(path)} of shape {jnp.shape(leaf)}"
                raise ValueError(f"{where}; need the leading axis of the {N} workers (what all share is State.server)")
        return state

    def query(state, round):
        with noted(f"query of {name}"):
            asked = algorithm.query(state, round)
        _need_query(name, asked, parameters(problem), N)
        if asked.work is None:
            return asked
        work.need(f"{name}: query gives work", asked.work, N, problem)
        return asked._replace(work=work.in_samples(asked.work, problem.batch_size, problem.batch_sizes))

    def update(key, state, gradients, round):
        with noted(f"update of {name}"), workers.weighted(weights):
            result = algorithm.update(key, state, gradients, round)
        if isinstance(result, State) or not isinstance(result, tuple) or len(result) != 2:
            raise ValueError(f"{name}: update gives {checks.typed(result)}; need a pair (State, Info)")
        after, info = result
        _need_state(f"{name}: update", after)
        for part in State._fields:
            same(f"{name}: update gives State.{part}", getattr(after, part), getattr(state, part), types=True)
        _need_info(name, info, N, _block(N))
        return after, info

    def model(state):
        with noted(f"model of {name}"), workers.weighted(weights):
            params = algorithm.model(state)
        same(f"{name}: model gives params", params, parameters(problem))
        return params

    def local(state):
        assert algorithm.local is not None
        with noted(f"local of {name}"):
            models = algorithm.local(state)
        same(f"{name}: local gives models", models, parameters(problem), (_block(N),))
        return models

    def away(before, after, round):
        assert callable(algorithm.away)
        with noted(f"away of {name}"):
            rows = algorithm.away(before, after, round)
        same(f"{name}: away gives State.workers", rows, before, types=True)
        return rows

    members: dict[str, Any] = {"local": local if algorithm.local else None, "away": away if callable(algorithm.away) else algorithm.away}
    return algorithm._replace(init=init, query=query, update=update, model=model, **members)


def need_arrays(where: str, tree: PyTree) -> PyTree:
    """The tree that a user's function returned.

    Raises:
        ValueError: unless it has leaves, and all of them are arrays or numbers.
    """
    leaves = jax.tree.leaves(tree)
    if not leaves or not all(isinstance(leaf, jax.Array | np.ndarray | np.generic | float | int) for leaf in leaves):
        raise ValueError(f"{where} returned {checks.shown(tree) if not leaves else checks.typed(tree)}; need a pytree of arrays")
    return tree


def need_counted(name: str, counted: jax.Array, done: int) -> None:
    """Raises a ValueError where a method's State.step, of all runs, is not the number of rounds done."""
    steps = np.asarray(counted)
    if (steps != done).any():
        raise ValueError(f"{name}: State.step is {steps.flat[0]} after {done} rounds; need state.step + 1 in what update gives")


def parameters(problem: Problem) -> Params:
    """The shapes and types of its parameters."""
    return _parameters(problem.init)


@lru_cache(maxsize=64)
def _parameters(init: Callable) -> Params:
    return started("init of the problem", init)


def started(where: str, init: Callable) -> Params:
    """The shapes and types of the parameters that `init` makes of a key.

    Args:
        where: names it in the message.

    Raises:
        ValueError: they are not arrays.
    """
    return jax.eval_shape(lambda key: need_arrays(where, init(key)), jax.eval_shape(lambda: jax.random.key(0)))


@contextmanager
def noted(where: str) -> Iterator[None]:
    """Errors that come out of here say where they come from."""
    try:
        yield
    except Exception as error:
        error.add_note(f"(in {where})")
        raise


def same(where: str, given: PyTree, needed: PyTree, leading: Sequence[int] = (), *, types: bool = False) -> None:
    """Raises a ValueError where two trees differ in structure or shapes.

    Args:
        where: how the message begins.
        given: leaves that should be `[*leading, *shape]`.
        needed: leaves with `shape` and `dtype`.
        leading: axes before.
        types: they must have the same types, too.
    """
    if jax.tree.structure(given) != jax.tree.structure(needed):
        raise ValueError(f"{where} with leaves {_leaves(given)}; need the tree with leaves {_leaves(needed)}")
    for (path, leaf), want in zip(tree_leaves_with_path(given), jax.tree.leaves(needed), strict=True):
        shape = (*leading, *jnp.shape(want))
        if jnp.shape(leaf) != shape or (types and jnp.result_type(leaf) != jnp.result_type(want)):
            need = jax.ShapeDtypeStruct(shape, jnp.result_type(want))
            raise ValueError(f"{where}{keystr(path)} as {checks.typed(leaf)}; need {checks.typed(need)}")


def _need_state(where: str, state: Any) -> None:
    if not isinstance(state, State):
        raise ValueError(f"{where} gives {checks.typed(state)}; need a dsgd.State")
    if not isinstance(state.step, jax.Array | jax.ShapeDtypeStruct) or state.step.shape != () or state.step.dtype != jnp.int32:
        raise ValueError(f"{where} gives State.step as {checks.typed(state.step)}; need an int32 scalar, jnp.int32(0) at the start")


def _need_query(name: str, asked: Any, params: Params, N: int) -> None:
    if not isinstance(asked, Query):
        raise ValueError(f"{name}: query gives {checks.typed(asked)}; need a dsgd.Query")
    if asked.axis not in (None, 0):
        raise ValueError(f"{name}: query gives axis = {asked.axis!r}; need None (one model for all) or 0 (stacked models)")
    same(f"{name}: query (axis={asked.axis}) gives params", asked.params, params, () if asked.axis is None else (_block(N),))
    if asked.workers is not None and (jnp.ndim(asked.workers) != 1 or not jnp.issubdtype(jnp.result_type(asked.workers), jnp.integer)):
        raise ValueError(f"{name}: query gives workers as {checks.typed(asked.workers)}; need None, or int32 [k]")
    if asked.draws is not None:
        if jnp.shape(asked.draws) != (N,) or not jnp.issubdtype(jnp.result_type(asked.draws), jnp.integer):
            raise ValueError(f"{name}: query gives draws as {checks.typed(asked.draws)}; need None, or int32 [{N}]")
        if asked.work is None or asked.exact:
            raise ValueError(f"{name}: query gives draws {'of exact gradients' if asked.exact else 'without work'}; need work in batches")


def _need_info(name: str, info: Any, N: int, n: int) -> None:
    if not isinstance(info, Info):
        raise ValueError(f"{name}: update gives {checks.typed(info)} beside the state; need a dsgd.Info")
    for end in ("bits_up", "bits_down", *(["lost"] if info.lost is not None else [])):
        bits = getattr(info, end)
        if not isinstance(bits, jax.Array) or bits.shape != (n, counts.DIGITS) or bits.dtype != jnp.uint32:
            raise ValueError(
                f"{name}: update gives Info.{end} as {checks.typed(bits)}; need uint32 [{n}, {counts.DIGITS}] of dsgd.counts:"
                " dsgd.network.told makes the Info of what was all-reduced, went to neighbours, or of nothing"
            )
    if info.messages is not None and (jnp.shape(info.messages) != (n, 2) or info.messages.dtype != jnp.uint32):
        raise ValueError(f"{name}: update gives Info.messages as {checks.typed(info.messages)}; need uint32 [{n}, 2], or None")
    if not isinstance(info.metrics, Mapping):
        raise ValueError(f"{name}: update gives Info.metrics as {checks.typed(info.metrics)}; need scalars, or [{N}], by name")
    for metric, value in info.metrics.items():
        if not isinstance(value, jax.Array) or value.shape != (N,):
            need_scalar(f"{name}: update gives the metric {metric!r}", value, f"a scalar, or [{N}],")
    if info.compute is not None and jnp.shape(info.compute) != (N,):
        raise ValueError(f"{name}: update gives Info.compute as {checks.typed(info.compute)}; need seconds [{N}], or None")
    if info.elapsed is not None:
        need_scalar(f"{name}: update gives Info.elapsed", info.elapsed)


def need_scalar(where: str, value: Any, needed: str = "a scalar,") -> None:
    """Raises a ValueError where the value is no scalar; it says what is needed."""
    if not isinstance(value, jax.Array | int | float) or jnp.ndim(value) != 0:
        raise ValueError(f"{where} as {checks.typed(value)}; need {needed} the same on every device")


def loss(problem: Problem) -> Callable:
    """The problem's loss, which raises a ValueError where it is no floating-point scalar."""

    def of_batch(params, batch):
        with noted(f"loss of {problem.name}"):
            value = problem.loss(params, batch)
        if not isinstance(value, jax.Array) or value.shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
            raise ValueError(f"{problem.name}: loss gives {checks.typed(value)}; need one floating-point scalar, the mean over the batch")
        return value

    return of_batch


def _block(N: int) -> int:
    return N // workers.devices()


def _leaves(tree: PyTree) -> str:
    names = [keystr(path) or "itself" for path, _ in tree_leaves_with_path(tree)]
    return "(none)" if not names else ", ".join(names[:_SHOWN]) + (f", ... ({len(names)})" if len(names) > _SHOWN else "")
