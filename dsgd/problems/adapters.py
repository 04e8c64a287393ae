"""Models from elsewhere as two functions: flax's linen and nnx."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import checks
from dsgd.base import PyTree

_MODULE = "a flax module with its fields, problems.MLP(classes=10), say"
_NEED = f"{_MODULE}, a function from nnx.Rngs to an nnx module, or problems.Model(init, apply)"


@checks.arguments
@dataclass(frozen=True)
class Model:
    """A model as two functions of its parameters, a pytree of floating-point arrays.

    Args:
        init: key -> parameters.
        apply: (parameters, inputs, leaves `[m, ...]`) -> outputs, leaves `[m, ...]`.
    """

    init: Annotated[Callable[[jax.Array], PyTree], "(key)"]
    apply: Annotated[Callable[[PyTree, PyTree], PyTree], "(parameters, inputs)"]


def adapt(model: Any, inputs: PyTree) -> Model:
    """The model as functions: equal where the modules are, so that the same problem built twice compiles once.

    Args:
        model: a flax linen module, whose parameters each key draws; an nnx module, which every key starts from; a function from `nnx.Rngs`
            to an nnx module; or a `Model`.
        inputs: their shapes and types, leaves `[m, ...]`.

    Raises:
        ValueError: it is none of these, or keeps more than parameters; it is named.
    """
    if isinstance(model, Model):
        return model
    from flax import linen, nnx  # noqa: PLC0415 (a quarter of a second)

    if isinstance(model, linen.Module):
        return _of_linen(model, inputs)
    if isinstance(model, nnx.Module):
        return _of_nnx(model)
    if callable(model) and (not inspect.isclass(model) or issubclass(model, nnx.Module)):
        return _of_factory(model)
    raise ValueError(f"model = {checks.shown(model)}: need {_NEED}")


def _refusal(name: str, kept: list[str]) -> ValueError:
    return ValueError(
        f"model {name} keeps {', '.join(kept)}; need a module that keeps only parameters (GroupNorm, not BatchNorm; no dropout)"
    )


# Equal for equal modules; one with a list among its fields has no hash itself.


@dataclass(frozen=True)
class _LinenApply:
    module: Any

    def __call__(self, params: PyTree, inputs: PyTree) -> PyTree:
        return self.module.apply({"params": params}, inputs)

    def __hash__(self) -> int:
        return hash(type(self.module))


@dataclass(frozen=True)
class _LinenInit:
    module: Any
    structure: Any
    shapes: tuple[jax.ShapeDtypeStruct, ...]  # of one sample

    def __call__(self, key: jax.Array) -> PyTree:
        zeros = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in self.shapes]
        return self.module.init(key, jax.tree.unflatten(self.structure, zeros))["params"]

    def __hash__(self) -> int:
        return hash((type(self.module), self.structure, self.shapes))


def _of_linen(module: Any, inputs: PyTree) -> Model:
    from flax.errors import InvalidRngError  # noqa: PLC0415

    leaves, structure = jax.tree.flatten(inputs)
    init = _LinenInit(module, structure, tuple(jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype) for leaf in leaves))
    sample = jax.tree.unflatten(structure, init.shapes)
    variables = jax.eval_shape(module.init, jax.eval_shape(lambda: jax.random.key(0)), sample)
    if set(variables) != {"params"}:
        raise _refusal(type(module).__name__, sorted(set(variables) - {"params"}) or ["no parameters"])
    try:
        jax.eval_shape(module.apply, variables, sample)
    except InvalidRngError:
        raise _refusal(type(module).__name__, ["random numbers besides those of its start"]) from None
    return Model(init, _LinenApply(module))


@dataclass(frozen=True)
class _NnxApply:
    graph: Any

    def __call__(self, params: PyTree, inputs: PyTree) -> PyTree:
        from flax import nnx  # noqa: PLC0415

        return nnx.merge(self.graph, nnx.State(params))(inputs)

    def __hash__(self) -> int:
        return hash(self.graph.nodes[0].type)


@dataclass(frozen=True)
class _NnxInit:
    factory: Callable

    def __call__(self, key: jax.Array) -> PyTree:
        from flax import nnx  # noqa: PLC0415

        return _split(self.factory(nnx.Rngs(key)))[1]


@dataclass(frozen=True, eq=False)
class _Given:
    """Any key -> these parameters; equal where they are."""

    params: PyTree

    def __call__(self, key: jax.Array) -> PyTree:
        return jax.tree.map(jnp.asarray, self.params)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Given) or jax.tree.structure(self.params) != jax.tree.structure(other.params):
            return False
        return all(map(np.array_equal, jax.tree.leaves(self.params), jax.tree.leaves(other.params)))

    def __hash__(self) -> int:
        return hash(jax.tree.structure(self.params))


def _of_nnx(module: Any) -> Model:
    graph, params = _split(module)
    return Model(_Given(jax.tree.map(np.array, params)), _NnxApply(graph))


def _of_factory(factory: Callable) -> Model:
    from flax import nnx  # noqa: PLC0415

    checks.need_call("model", factory, "rngs")
    try:
        module = nnx.eval_shape(lambda: factory(nnx.Rngs(0)))
    except TypeError as error:
        if "not a valid JAX type" not in str(error):
            raise
        module = factory(nnx.Rngs(0))
    if not isinstance(module, nnx.Module):
        raise ValueError(f"model = {checks.shown(factory)} gives {checks.typed(module)}: need {_NEED}")
    return Model(_NnxInit(factory), _NnxApply(_split(module)[0]))


def _split(module: Any) -> tuple[Any, PyTree]:
    """What the module is without its parameters, and these: arrays in nested dictionaries."""
    from flax import nnx  # noqa: PLC0415

    graph, params, rest = nnx.split(module, nnx.Param, ...)
    kept = {type(variable).__name__ for _, variable in nnx.to_flat_state(rest)}
    if kept or not jax.tree.leaves(params):
        raise _refusal(type(module).__name__, sorted(kept) or ["no parameters"])
    return graph, nnx.to_pure_dict(params)
