"""The leaves of the parameters that a method trains. The other leaves (frozen ones, integers, keys)
do not change, and methods do not see them.
"""

from __future__ import annotations

import operator
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

Fixed = tuple[Any, ...]  # leaves that are not trained, in the order of the parameters' leaves


@dataclass(frozen=True)
class Flags:
    """A hashable function from parameters to a tree of bools: which leaves are trained.

    Args:
        flags: one bool per leaf, in the order of the leaves.
    """

    flags: tuple[bool, ...]

    def __call__(self, params: Params) -> PyTree:
        return jax.tree.unflatten(jax.tree.structure(params), self.flags)


def shapes(problem: Problem) -> Params:
    """Returns the shapes and types of all parameters of the problem."""
    # The types depend on jax_enable_x64.
    return _shapes(sameness.Key(problem.parameters.init), jnp.result_type(float))


@lru_cache(maxsize=64)
def _shapes(init: sameness.Key, kind: np.dtype) -> Params:
    return init_shapes("init of the problem", init.value)


def init_shapes(where: str, init: Callable) -> Params:
    """Returns the shapes and types of the parameters that `init` makes from a key.

    Args:
        where: name of the function, for the error message.
        init: key -> parameters.

    Raises:
        ValueError: if the parameters are not a pytree of arrays.
    """
    return jax.eval_shape(
        lambda key: require_arrays(where, init(key)), jax.eval_shape(lambda: jax.random.key(0))
    )


def require_arrays(where: str, tree: PyTree) -> PyTree:
    """Returns the tree that a user's function returned, after validating it.

    Args:
        where: name of the function, for the error message.
        tree: what it returned.

    Raises:
        ValueError: if the tree has no leaves, or a leaf is not an array or a number.
    """
    leaves = jax.tree.leaves(tree)
    if not leaves or not all(
        isinstance(leaf, jax.Array | np.ndarray | np.generic | float | int) for leaf in leaves
    ):
        raise ValueError(
            f"{where} returned {checks.kind(tree) if leaves else checks.show(tree)}; expected a "
            "pytree of arrays"
        )
    return tree


def flags(problem: Problem) -> tuple[bool, ...]:
    """Returns which of the parameters' leaves are trained: the floating-point leaves for which
    `Parameters.trainable` is True.

    Raises:
        ValueError: if no leaf is trained, a leaf is complex, or `Parameters.trainable` does not
            give bools for a prefix of the parameters.
    """
    return trained_flags(problem.name, shapes(problem), problem.parameters.trainable)


def trained_flags(name: str, params: Params, trainable: Any) -> tuple[bool, ...]:
    """Returns which leaves are trained, as `flags`, for given parameters and `trainable`: a tree of
    bools that is a prefix of the parameters, a function from the parameters to such a tree, or
    None.
    """
    floating = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(params)]
    for path, leaf in tree_leaves_with_path(params):
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            where = keystr(path) or "they"
            raise ValueError(
                f"{name}: parameters must be floating point, but {where} has dtype {leaf.dtype}; "
                "expected its real and imaginary parts as two leaves"
            )
    trained = tuple(
        map(bool, np.logical_and(floating, leaf_flags(f"{name}: trainable", params, trainable)))
    )
    if not any(trained):
        given = (
            "no floating-point leaf"
            if not any(floating)
            else "no floating-point leaf that is trainable"
        )
        raise ValueError(f"{name}: parameters have {given}; expected at least one to be trained")
    return trained


def leaf_flags(where: str, params: Params, mask: Any) -> Sequence[bool]:
    """Returns one bool for each leaf of the parameters.

    Args:
        where: name of the mask, for error messages.
        params: the parameters.
        mask: a tree of bools that is a prefix of the parameters, or a function from the parameters
            to such a tree; None: all leaves are True.

    Raises:
        ValueError: if the mask is no such tree.
    """
    if mask is None:
        return [True] * len(jax.tree.leaves(params))
    if callable(mask):
        checks.require_call(where, mask, "parameters")
        with causes.refuse_errors(where):
            mask = mask(params)
    require_flags(where, mask)
    try:
        return jax.tree.leaves(jax.tree.broadcast(mask, params))
    except ValueError:
        raise ValueError(f"{where}{_difference(mask, params)}") from None


def require_flags(where: str, mask: Any) -> None:
    """Raises ValueError if a leaf of the tree is not a bool."""
    if not all(isinstance(leaf, bool | np.bool_) for leaf in jax.tree.leaves(mask)):
        raise ValueError(f"{where} = {checks.show(mask)}; expected a tree of True and False")


def _difference(mask: PyTree, params: Params, path: str = "") -> str:
    """Returns where a mask is not a prefix of the parameters, as the end of a message."""
    given, expected = (
        {
            keystr(key): child
            for key, child in tree_leaves_with_path(tree, is_leaf=partial(operator.is_not, tree))
        }
        for tree in (mask, params)
    )
    if isinstance(mask, bool | np.bool_):
        return ""
    if given.keys() == expected.keys():
        each = (_difference(given[key], expected[key], path + key) for key in given)
        return next(filter(None, each), "")
    need = ", ".join(filter(None, expected))
    return (
        f"{path} = {checks.show(mask)}; expected a prefix of the parameters' tree: True or False"
        f"{f', or a tree with the entries {need}' if need else ''}"
    )


def require_all(name: str, problem: Problem) -> None:
    """Raises ValueError if some leaves of the parameters are not trained, or the problem has a
    regularizer.
    """
    if problem.regularizer is not None:
        raise ValueError(
            f"{name}: {problem.name} has the regularizer {problem.regularizer.name}; methods on "
            "real processes make no proximal steps and need a problem without one"
        )
    paths = [keystr(path) or "they" for path, _ in tree_leaves_with_path(shapes(problem))]
    fixed = [path for path, flag in zip(paths, flags(problem), strict=True) if not flag]
    if fixed:
        raise ValueError(
            f"{name}: parameters of {problem.name} include leaves that are not trained "
            f"({', '.join(fixed)}); runs on real processes need parameters that are all trained"
        )


def split(chosen: tuple[bool, ...], params: Params) -> tuple[Params, Fixed]:
    """Splits parameters into the trained ones, with None in place of the other leaves, and the
    other leaves. Leaves may have leading axes.
    """
    if all(chosen):
        return params, ()
    leaves, structure = jax.tree.flatten(params)
    trained = [leaf if flag else None for leaf, flag in zip(leaves, chosen, strict=True)]
    return jax.tree.unflatten(structure, trained), tuple(
        leaf for leaf, flag in zip(leaves, chosen, strict=True) if not flag
    )


def merge(chosen: tuple[bool, ...], like: PyTree, trained: Params, fixed: Fixed) -> Params:
    """Returns all parameters, the inverse of `split`; `like` has their structure."""
    if not fixed:
        return trained
    trained_leaves, fixed_leaves = iter(jax.tree.leaves(trained)), iter(fixed)
    return jax.tree.unflatten(
        jax.tree.structure(like),
        [next(trained_leaves if flag else fixed_leaves) for flag in chosen],
    )


def join(problem: Problem, trained: Params, fixed: Fixed) -> Params:
    """Returns all parameters of the problem from the trained and the fixed leaves."""
    return merge(flags(problem), shapes(problem), trained, fixed) if fixed else trained


def bind(problem: Problem, fixed: Fixed) -> Problem:
    """Returns the problem whose loss and gradient are functions of the trained leaves alone."""
    if not fixed:
        return problem
    loss: Callable = partial(_loss, problem, fixed)
    return problem._replace(
        loss=Loss(loss, partial(_gradient, problem, fixed)) if problem.gradient else loss,
        evaluate=None,
    )


def _loss(problem: Problem, fixed: Fixed, trained: Params, batch: PyTree) -> jax.Array:
    return problem.loss(join(problem, trained, fixed), batch)


def _gradient(problem: Problem, fixed: Fixed, trained: Params, batch: PyTree) -> Params:
    assert problem.gradient is not None
    return trained_part(problem, problem.gradient(join(problem, trained, fixed), batch))


def minimizer(problem: Problem) -> PyTree:
    """Returns the trained leaves of `Constants.minimizer` in the types of the parameters; None if
    it is not known.

    Raises:
        ValueError: if it is not a tree like the parameters.
    """
    known = problem.constants.minimizer
    if known is None:
        return None
    like = shapes(problem)
    checks.require_same(f"{problem.name}: constants.minimizer", known, like)
    known = jax.tree.map(lambda leaf, like: np.asarray(leaf, like.dtype), known, like)
    return split(flags(problem), known)[0]


def trained_part(problem: Problem, slope: PyTree) -> PyTree:
    """Returns the trained leaves of a gradient with respect to all parameters. A gradient with
    respect to the trained leaves alone is returned unchanged.
    """
    is_whole = jax.tree.structure(slope) == jax.tree.structure(shapes(problem))
    return split(flags(problem), slope)[0] if is_whole else slope
