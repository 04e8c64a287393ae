"""The leaves of the parameters that a method trains. The others (frozen ones, integers, keys) stay
as they are: no method sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_leaves_with_path

from dsgd import causes, checks, sameness
from dsgd.base import Loss, Params, Problem, PyTree

Fixed = tuple[Any, ...]  # the leaves that are not trained, in the order of the parameters' leaves


@dataclass(frozen=True)
class Flags:
    """Parameters -> which leaves are trained, a tree of bools like them.

    Args:
        flags: of the leaves, in their order.
    """

    flags: tuple[bool, ...]

    def __call__(self, params: Params) -> PyTree:
        return jax.tree.unflatten(jax.tree.structure(params), self.flags)


def shapes(problem: Problem) -> Params:
    """The shapes and types of all its parameters."""
    # types are others with jax_enable_x64
    return _shapes(sameness.Key(problem.parameters.init), jnp.result_type(float))


@lru_cache(maxsize=64)
def _shapes(init: sameness.Key, kind: np.dtype) -> Params:
    return started("init of the problem", init.value)


def started(where: str, init: Callable) -> Params:
    """The shapes and types of the parameters that `init` makes of a key.

    Args:
        where: names it in the message.

    Raises:
        ValueError: they are not arrays.
    """
    return jax.eval_shape(
        lambda key: need_arrays(where, init(key)), jax.eval_shape(lambda: jax.random.key(0))
    )


def need_arrays(where: str, tree: PyTree) -> PyTree:
    """The tree that a user's function returned.

    Raises:
        ValueError: unless it has leaves, and all of them are arrays or numbers.
    """
    found = jax.tree.leaves(tree)
    if not found or not all(
        isinstance(leaf, jax.Array | np.ndarray | np.generic | float | int) for leaf in found
    ):
        raise ValueError(
            f"{where} returned {checks.typed(tree) if found else checks.shown(tree)}; need a "
            "pytree of arrays"
        )
    return tree


def flags(problem: Problem) -> tuple[bool, ...]:
    """Which of the parameters' leaves are trained: the floating-point ones that
    `Parameters.trainable` names.

    Raises:
        ValueError: if no leaf is trained, one is complex, or `Parameters.trainable` does not return
            bools for a prefix of the parameters.
    """
    return of(problem.name, shapes(problem), problem.trainable)


def of(name: str, params: Params, trainable: Any) -> tuple[bool, ...]:
    """As `flags`, of parameters and of a tree of bools that is a prefix of them, a function from
    them to it, or None.
    """
    floating = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(params)]
    for path, leaf in tree_leaves_with_path(params):
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            where = keystr(path) or "they"
            raise ValueError(
                f"{name}: parameters must be floating point, but {where} has dtype {leaf.dtype}; "
                "pass its two parts"
            )
    chosen = tuple(map(bool, np.logical_and(floating, _bools(name, params, trainable))))
    if not any(chosen):
        given = (
            "no floating-point leaf"
            if not any(floating)
            else "no floating-point leaf that is trainable"
        )
        raise ValueError(f"{name}: parameters have {given}; expected at least one to be trained")
    return chosen


def _bools(name: str, params: Params, trainable: Any) -> Sequence[bool]:
    """One for each leaf of the parameters."""
    if trainable is None:
        return [True] * len(jax.tree.leaves(params))
    mask = trainable
    if callable(trainable):
        checks.need_call(f"{name}: trainable", trainable, "parameters")
        with causes.explained(f"{name}: trainable"):
            mask = trainable(params)
    if not all(isinstance(leaf, bool | np.bool_) for leaf in jax.tree.leaves(mask)):
        raise ValueError(
            f"{name}: trainable = {checks.shown(mask)}; expected a tree of True and False"
        )
    try:
        return jax.tree.leaves(jax.tree.broadcast(mask, params))
    except ValueError as error:
        expected = (
            f"a prefix of the parameters' tree {checks.shown(jax.tree.map(checks.typed, params))}"
        )
        raise ValueError(
            f"{name}: trainable = {checks.shown(mask)}; expected {expected} ({error})"
        ) from None


def need_all(name: str, problem: Problem) -> None:
    """Raises a ValueError if some leaves of the parameters are not trained."""
    paths = [keystr(path) or "they" for path, _ in tree_leaves_with_path(shapes(problem))]
    fixed = [path for path, flag in zip(paths, flags(problem), strict=True) if not flag]
    if fixed:
        raise ValueError(
            f"{name}: parameters of {problem.name} that are not trained ({', '.join(fixed)}); "
            "real processes expect that all are trained"
        )


def split(chosen: tuple[bool, ...], params: Params) -> tuple[Params, Fixed]:
    """The parameters with None in place of what is not trained, and what is not. Leaves may have
    leading axes.
    """
    if all(chosen):
        return params, ()
    leaves, structure = jax.tree.flatten(params)
    trained = [leaf if flag else None for leaf, flag in zip(leaves, chosen, strict=True)]
    return jax.tree.unflatten(structure, trained), tuple(
        leaf for leaf, flag in zip(leaves, chosen, strict=True) if not flag
    )


def merged(chosen: tuple[bool, ...], like: PyTree, trained: Params, fixed: Fixed) -> Params:
    """All parameters, of what `split` made of them; `like` has their structure."""
    if not fixed:
        return trained
    one, other = iter(jax.tree.leaves(trained)), iter(fixed)
    return jax.tree.unflatten(
        jax.tree.structure(like), [next(one if flag else other) for flag in chosen]
    )


def joined(problem: Problem, trained: Params, fixed: Fixed) -> Params:
    """All parameters of the problem."""
    return merged(flags(problem), shapes(problem), trained, fixed) if fixed else trained


def bound(problem: Problem, fixed: Fixed) -> Problem:
    """The problem as a function of what is trained: its loss and its gradient."""
    if not fixed:
        return problem
    loss: Callable = partial(_loss, problem, fixed)
    return problem._replace(
        loss=Loss(loss, partial(_gradient, problem, fixed)) if problem.gradient else loss,
        evaluate=None,
    )


def _loss(problem: Problem, fixed: Fixed, trained: Params, batch: PyTree) -> jax.Array:
    return problem.loss(joined(problem, trained, fixed), batch)


def _gradient(problem: Problem, fixed: Fixed, trained: Params, batch: PyTree) -> Params:
    assert problem.gradient is not None
    return trained_part(problem, problem.gradient(joined(problem, trained, fixed), batch))


def trained_part(problem: Problem, slope: PyTree) -> PyTree:
    """Of a gradient in all parameters what is of those that are trained; one in these alone is as
    it was.
    """
    whole = jax.tree.structure(slope) == jax.tree.structure(shapes(problem))
    return split(flags(problem), slope)[0] if whole else slope
