"""Random keys that an optimizer keeps in its state: finds them, and makes them differ by run and
worker.

`optax.add_noise(..., key)` puts the user's key into the state that its `init` returns. Copied to N
workers, it would add the same noise in all workers, seeds and runs. The key is therefore stored as
a `StateKey`, into which the engine folds the run's key and the worker's id at the start.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, Literal, jaxprs_in_params

from dsgd.base import PyTree, State

# Folded into the key of a run's start, for the keys in its state.
_START = np.uint32(2**32 - 2)
_DRAWS = {"random_bits", "random_gamma", "threefry2x32", "rng_bit_generator"}
_LOOPS = {"scan", "while"}


@partial(jax.tree_util.register_dataclass, data_fields=["data"], meta_fields=["impl"])
@dataclass(frozen=True)
class StateKey:
    """A random key in a method's state, stored as numbers, which can be stored, selected and sent
    like all other leaves.

    Args:
        data: uint32 `[..., k]`.
        impl: implementation of a typed key; None: the key was given as numbers, of JAX's default
            implementation.
    """

    data: Any
    impl: Hashable

    @classmethod
    def from_key(cls, key: Any) -> StateKey:
        """Converts a key, typed or as numbers."""
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            return cls(jax.random.key_data(key), jax.random.key_impl(key))
        return cls(jnp.asarray(key), None)

    def key(self) -> jax.Array:
        """Returns the key as its owner keeps it: `[...]` if it is typed, else `[..., k]`."""
        return (
            self.data if self.impl is None else jax.random.wrap_key_data(self.data, impl=self.impl)
        )

    def with_key(self, key: jax.Array) -> StateKey:
        """Returns another key as a `StateKey` of the same kind."""
        return StateKey(key if self.impl is None else jax.random.key_data(key), self.impl)

    def fold_in(self, *numbers: Any) -> StateKey:
        """Folds uint32 scalars into the key, one after the other."""

        def fold(data):
            key = jax.random.wrap_key_data(data, impl=self.impl)
            return jax.random.key_data(reduce(jax.random.fold_in, numbers, key))

        rows = self.data.reshape(-1, self.data.shape[-1])
        return StateKey(jax.vmap(fold)(rows).reshape(self.data.shape), self.impl)


def is_state_key(leaf: Any) -> bool:
    """Whether the leaf is a `StateKey`."""
    return isinstance(leaf, StateKey)


def fold_run(state: State, key: jax.Array, N: int) -> State:
    """Folds the run's key into every `StateKey` of a state, and the worker's id into those of
    `State.workers`.

    Args:
        state: state in the global view: leaves of `State.workers` are `[N, ...]`.
        key: key of the run's start.
        N: number of workers.
    """

    def fold_row(row, i):
        return fold_owner(row, key, i)

    keyed = any(map(is_state_key, jax.tree.leaves(state.workers, is_leaf=is_state_key)))
    rows = (
        jax.vmap(fold_row)(state.workers, jnp.arange(N, dtype=jnp.uint32))
        if keyed
        else state.workers
    )
    return state._replace(server=fold_owner(state.server, key), workers=rows)


def fold_owner(tree: PyTree, key: jax.Array, owner: Any = None) -> PyTree:
    """Returns the tree with 64 random bits of the run's key, and the owner's id, folded into every
    `StateKey`.

    The result still depends on the user's key: two runs with the same key and different optimizers
    draw different numbers. The keys of one tree differ even if the user passed the same key twice,
    for example to an optimizer that steps on each fragment of a model.

    Args:
        tree: leaves `[...]`, of one owner.
        key: key of the run's start.
        owner: id of a worker; None: all workers hold the same tree.
    """

    numbers = itertools.count()

    def fold_leaf(leaf):
        if not is_state_key(leaf):
            return leaf
        number = next(numbers)
        bits = jax.random.bits(jax.random.fold_in(key, _START), (2,), jnp.uint32)
        first = [np.uint32(number)] if number else []
        return leaf.fold_in(*first, bits[0], bits[1], *([] if owner is None else [owner]))

    return jax.tree.map(fold_leaf, tree, is_leaf=is_state_key)


@jax.custom_batching.custom_vmap
def one_key_per_model(keys: PyTree, models: PyTree) -> PyTree:
    """Returns the keys of an optimizer's state, which steps on `models`.

    Raises:
        ValueError: under a `jax.vmap` over the models that does not map the keys, so that all
            models would receive the same random numbers.
    """
    return keys


@one_key_per_model.def_vmap
def _one_key_per_model(size: int, mapped: Any, keys: PyTree, models: PyTree) -> tuple[PyTree, Any]:
    if any(jax.tree.leaves(mapped[1])) and not all(jax.tree.leaves(mapped[0])):
        raise ValueError(
            f"one random key for {size} workers' models, so that all of them would receive the "
            "same random numbers; expected one key per model: keep the optimizer's state in "
            "State.workers, or use algorithms.optimizers.update_frozen if the state is shared"
        )
    return keys, mapped[0]


def may_be_key(leaf: Any) -> bool:
    """Whether a leaf is a typed key, or may be a key as numbers."""
    dtype = jnp.result_type(leaf)
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return True
    return (
        dtype == jnp.uint32
        and jnp.shape(leaf)[-1:]
        == jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape
    )


class Uses(NamedTuple):
    """How a function uses random keys.

    Args:
        keys: for each leaf of its arguments, whether it is a key.
        constant: whether random numbers are drawn from a key that depends on no argument.
    """

    keys: list[bool]
    constant: bool


def uses(function: Callable, *args: PyTree) -> Uses:
    """Finds the keys among a function's arguments: typed keys, and arrays of numbers that are
    converted to a key inside the function.

    Args:
        function: function of pytrees, which is traced.
        args: arrays, or their shapes and types.
    """
    leaves = jax.tree.leaves(args)
    found = _Found(set(), [])
    closed = jax.make_jaxpr(function)(*args)
    none = frozenset[int]()
    sources = [frozenset([i]) if may_be_key(leaf) else none for i, leaf in enumerate(leaves)]
    _follow(closed.jaxpr, sources, found)
    typed = [jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key) for leaf in leaves]
    return Uses(
        [is_typed or i in found.wrapped for i, is_typed in enumerate(typed)], bool(found.constant)
    )


class _Found(NamedTuple):
    """Arguments that become keys, and draws that depend on no argument that may be a key."""

    wrapped: set[int]
    constant: list[str]


def _follow(jaxpr: Jaxpr, sources: Sequence[frozenset[int]], found: _Found) -> list[frozenset[int]]:
    """Returns the arguments on which each output of a jaxpr depends, given those for its inputs."""
    sources_of = dict(zip(jaxpr.invars, sources, strict=True))

    def read(variables) -> list[frozenset[int]]:
        return [
            frozenset() if isinstance(one, Literal) else sources_of.get(one, frozenset())
            for one in variables
        ]

    for equation in jaxpr.eqns:
        operands, name = read(equation.invars), equation.primitive.name
        all_sources = frozenset[int]().union(*operands)
        if name == "random_wrap":
            found.wrapped.update(all_sources)
        if name in _DRAWS and not all_sources:
            found.constant.append(name)
        results = [all_sources] * len(equation.outvars)
        for inner in jaxprs_in_params(equation.params):
            # A branch lacks the index, the first operand. What a loop carries is assumed to depend
            # on all of the loop's operands.
            exact = name not in _LOOPS and len(inner.invars) <= len(operands)
            below = _follow(
                inner,
                operands[len(operands) - len(inner.invars) :]
                if exact
                else [all_sources] * len(inner.invars),
                found,
            )
            if exact and name != "cond" and len(below) == len(results):
                results = below
        sources_of.update(zip(equation.outvars, results, strict=True))
    return read(jaxpr.outvars)
