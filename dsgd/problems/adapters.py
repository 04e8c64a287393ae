"""Adapters from flax models (linen and nnx) to functions, for training and for evaluation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.tree_util import tree_leaves_with_path

from dsgd import causes, checks, sameness
from dsgd.base import Parameters, PyTree
from dsgd.engine.leaves import Flags
from dsgd.problems.averages import Training, depends, require_supported

_MODULE = "an instance of a flax module, such as problems.MLP(classes=10)"
_NEED = f"{_MODULE}, a function from nnx.Rngs to an nnx module, or problems.Model(init, apply)"
# Names of arguments of `__call__` or of fields that switch between training and evaluation, with
# their values in training.
_SWITCHES = {"train": True, "training": True, "is_training": True} | dict.fromkeys(
    ("deterministic", "use_running_average", "eval", "is_eval", "evaluate", "inference"), False
)
_SWITCH = (
    "an argument of its __call__, or a field, that switches between training and evaluation, "
    "named train or deterministic"
)


@checks.arguments
@dataclass(frozen=True)
class Model:
    """A model as two functions of its parameters, which are a pytree of arrays. The floating-point
    leaves are trained.

    Args:
        init: key -> parameters.
        apply: (parameters, inputs) -> outputs; the leaves of inputs and outputs are `[m, ...]`.
    """

    init: Annotated[Callable[[jax.Array], PyTree], "(key)"]
    apply: Annotated[Callable[[PyTree, PyTree], PyTree], "(parameters, inputs)"]


class Network(NamedTuple):
    """A model in the form that `finite_sum` uses.

    Args:
        parameters: `init` as in `Model`, and which leaves are trained.
        apply: as in `Model`; returns the outputs in evaluation mode.
        training: how the model differs in training mode; None: it does not differ.
    """

    parameters: Parameters
    apply: Callable[[PyTree, PyTree], PyTree]
    training: Training | None = None


def adapt(model: Any, inputs: PyTree) -> Network:
    """Converts a model to functions. They compare equal if the modules do, so that the same problem
    built twice is compiled once.

    Args:
        model: a flax linen module, whose parameters are drawn by each key; an nnx module, whose
            parameters are used for every key; a function from `nnx.Rngs` to an nnx module; or a
            `Model`. A linen module that differs in training needs an argument of its `__call__`, or
            a field, named for example train or deterministic. An nnx module may have such an
            argument; it is also switched by its methods `train` and `eval`.
        inputs: arrays, or shapes and types, leaves `[m, ...]`.

    Raises:
        ValueError: if the model is none of these, has no parameters, cannot be switched between
            training and evaluation, or has state other than running averages that changes in
            training. The message names the model.
    """
    if isinstance(model, Network):
        return model
    if isinstance(model, Model):
        return Network(Parameters(model.init), model.apply)
    from flax import linen, nnx  # noqa: PLC0415 (takes a quarter of a second to import)

    if isinstance(model, linen.Module):
        return _adapt_linen(model, _samples(inputs))
    if isinstance(model, nnx.Module):
        parts = _split(model)
        return _adapt_nnx(
            type(model).__name__,
            parts,
            _Given(jax.tree.map(_copy, parts.params)),
            _samples(inputs),
        )
    if callable(model) and (not inspect.isclass(model) or issubclass(model, nnx.Module)):
        parts = _make_parts(model)
        return _adapt_nnx(
            parts.graph.nodes[0].type.__name__, parts, _NnxInit(model), _samples(inputs)
        )
    raise ValueError(f"model = {checks.show(model)}; expected {_NEED}")


def _samples(inputs: PyTree) -> PyTree:
    """Returns the shapes and types of two samples."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape[1:]), leaf.dtype), inputs)


def _arguments(kind: type, training: bool) -> dict[str, bool]:
    """Returns the arguments of a module's `__call__` that switch it to training or to
    evaluation.
    """
    parameters = inspect.signature(kind.__call__).parameters
    return {name: value == training for name, value in _SWITCHES.items() if name in parameters}


def _fields(module: Any, training: bool) -> dict[str, bool]:
    """Returns the fields of a linen module that switch it to training or to evaluation."""
    return {
        name: value == training
        for name, value in _SWITCHES.items()
        if isinstance(getattr(module, name, ()), bool | np.bool_ | None)
    }


@dataclass(frozen=True, eq=False)
class _Linen(sameness.Compared):
    """The function that a linen module computes in one mode.

    Args:
        module: the module, switched to the mode.
        arguments: of its `__call__`, in addition to the inputs.
        others: names of the collections other than "params". If there are none, the parameters are
            those of "params" only, else a dictionary of all collections.
    """

    module: Any
    arguments: tuple[tuple[str, bool], ...]
    others: tuple[str, ...] = ()

    def variables(self, params: PyTree) -> PyTree:
        return params if self.others else {"params": params}


class _LinenApply(_Linen):
    def __call__(self, params: PyTree, inputs: PyTree) -> PyTree:
        return self.module.apply(self.variables(params), inputs, **dict(self.arguments))


class _LinenTrain(_Linen):
    def __call__(
        self, params: PyTree, inputs: PyTree, key: jax.Array | None
    ) -> tuple[PyTree, PyTree]:
        # flax derives the keys of all other streams from "params". "dropout" is given separately,
        # since a module may test whether it has this stream.
        streams = None if key is None else {"params": key, "dropout": jax.random.fold_in(key, 1)}
        variables, mutable = self.variables(params), list(self.others)
        outputs, changed = self.module.apply(
            variables, inputs, rngs=streams, mutable=mutable, **dict(self.arguments)
        )
        return outputs, {**params, **changed} if self.others else params


@dataclass(frozen=True, eq=False)
class _LinenInit(sameness.Compared):
    apply: _LinenApply
    structure: Any
    shapes: tuple[jax.ShapeDtypeStruct, ...]  # the inputs of one sample

    def __call__(self, key: jax.Array) -> PyTree:
        variables = self.all_variables(key)
        return dict(variables) if self.apply.others else variables["params"]

    def all_variables(self, key: jax.Array) -> PyTree:
        zeros = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in self.shapes]
        return self.apply.module.init(
            key, jax.tree.unflatten(self.structure, zeros), **dict(self.apply.arguments)
        )


def _adapt_linen(module: Any, inputs: PyTree) -> Network:
    from flax.errors import InvalidRngError, ModifyScopeVariableError  # noqa: PLC0415

    name, leaves, structure = type(module).__name__, *jax.tree.flatten(inputs)
    modes = [
        (module.clone(**_fields(module, mode)), tuple(_arguments(type(module), mode).items()))
        for mode in (False, True)
    ]
    shapes = tuple(jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype) for leaf in leaves)
    key = jax.eval_shape(lambda: jax.random.key(0))
    with causes.refuse_errors(f"model {name}: init"):
        variables = jax.eval_shape(
            _LinenInit(_LinenApply(*modes[0]), structure, shapes).all_variables, key
        )
    if "params" not in variables:
        raise _refusal(name, "no parameters", "a module with parameters")
    others = tuple(sorted(set(variables) - {"params"}))
    evaluated, trained = _LinenApply(*modes[0], others), _LinenTrain(*modes[1], others)
    init = _LinenInit(evaluated, structure, shapes)
    params = jax.eval_shape(init, key)
    try:
        jax.eval_shape(evaluated, params, inputs)
    except (InvalidRngError, ModifyScopeVariableError) as error:
        reason = str(error).splitlines()[0]
        raise _refusal(
            name, f"dropout or batch norm that is always in training mode ({reason})", _SWITCH
        ) from error
    switched = _arguments(type(module), True) or _fields(module, True)
    if "batch_stats" in others and not switched:
        raise _refusal(name, "batch_stats that are never updated", _SWITCH)
    flags = (
        Flags(tuple(path[0].key == "params" for path, _ in tree_leaves_with_path(params)))
        if others
        else None
    )
    with causes.refuse_errors(f"model {name} in training"):
        random = depends(
            lambda key, params, inputs: trained(params, inputs, key)[0], key, params, inputs
        )
    if not (switched or random):
        return Network(Parameters(init, flags), evaluated)
    averages = tuple(
        bool(others) and path[0].key == "batch_stats" for path, _ in tree_leaves_with_path(params)
    )
    training = Training(trained, averages, random)
    require_supported(
        name, training, params, inputs, flags.flags if flags else (True,) * len(averages)
    )
    return Network(Parameters(init, flags), evaluated, training)


def _refusal(name: str, kept: str, expected: str) -> ValueError:
    return ValueError(f"model {name} keeps {kept}; expected {expected}")


class _Parts(NamedTuple):
    """An nnx module in parts.

    Args:
        graph: the module without its arrays.
        params: its arrays in nested dictionaries, without those of random streams.
        streams: path of each leaf of its random streams, with the shape of a key; None for a
            counter.
        trained: which leaves of `params` are trained (`nnx.Param`).
        averages: which leaves of `params` are running averages (`nnx.BatchStat`).
    """

    graph: Any
    params: PyTree
    streams: tuple[tuple[tuple[Any, ...], Any], ...]
    trained: tuple[bool, ...]
    averages: tuple[bool, ...]


def _split(module: Any) -> _Parts:
    from flax import nnx  # noqa: PLC0415

    graph, random, rest = nnx.split(module, nnx.RngState, ...)
    streams = tuple(
        (path, variable.get_value().shape if isinstance(variable, nnx.RngKey) else None)
        for path, variable in nnx.to_flat_state(random)
    )
    params, kinds = nnx.to_pure_dict(rest), dict(nnx.to_flat_state(rest))

    def flags(kind: Any) -> tuple[bool, ...]:
        paths = [
            tuple(getattr(entry, "key", entry) for entry in path)
            for path, _ in tree_leaves_with_path(params)
        ]
        return tuple(
            any(isinstance(kinds.get(path[:length]), kind) for length in range(len(path) + 1))
            for path in paths
        )

    return _Parts(graph, params, streams, flags(nnx.Param), flags(nnx.BatchStat))


@dataclass(frozen=True, eq=False)
class _Nnx(sameness.Compared):
    """The function that an nnx module computes, with the arguments that its `__call__` gets in one
    mode.
    """

    graph: Any
    streams: tuple[tuple[tuple[Any, ...], Any], ...]
    arguments: tuple[tuple[str, bool], ...]

    def module(self, params: PyTree, key: jax.Array | None) -> Any:
        from flax import nnx  # noqa: PLC0415

        # A copy of the dictionaries, to which the random streams are added.
        whole = jax.tree.map(lambda leaf: leaf, params)
        for number, (path, shape) in enumerate(self.streams):
            *folders, name = path
            place = whole
            for folder in folders:
                place = place.setdefault(folder, {})
            stream_key = jax.random.fold_in(jax.random.key(0) if key is None else key, number)
            count = jnp.zeros((), jnp.uint32)
            place[name] = (
                count
                if shape is None
                else jax.random.split(stream_key, shape)
                if shape
                else stream_key
            )
        return nnx.merge(self.graph, nnx.State(whole))


class _NnxApply(_Nnx):
    def __call__(self, params: PyTree, inputs: PyTree) -> PyTree:
        module = self.module(params, None)
        module.eval()
        return module(inputs, **dict(self.arguments))


class _NnxTrain(_Nnx):
    def __call__(
        self, params: PyTree, inputs: PyTree, key: jax.Array | None
    ) -> tuple[PyTree, PyTree]:
        module = self.module(params, key)
        module.train()
        outputs = module(inputs, **dict(self.arguments))
        after = _split(module).params
        kept = [_look_up(after, path) for path, _ in tree_leaves_with_path(params)]
        return outputs, jax.tree.unflatten(jax.tree.structure(params), kept)


def _look_up(tree: PyTree, path: tuple[Any, ...]) -> Any:
    for entry in path:
        tree = tree[entry.key]
    return tree


@dataclass(frozen=True, eq=False)
class _NnxInit(sameness.Compared):
    factory: Callable

    def __call__(self, key: jax.Array) -> PyTree:
        from flax import nnx  # noqa: PLC0415

        return _split(_mark_arrays(self.factory(nnx.Rngs(key)))).params


def _mark_arrays(module: Any) -> Any:
    """Marks attributes that are arrays as part of the module's state, if the module was made inside
    a trace; flax recognises such attributes outside of traces only.
    """
    from flax import nnx  # noqa: PLC0415

    state_leaves = set(map(id, jax.tree.leaves(nnx.state(module))))
    for path, node in list(nnx.iter_graph(module)):
        for name, value in list(vars(node).items()) if isinstance(node, nnx.Module) else ():
            if isinstance(value, Tracer):
                setattr(node, name, nnx.data(value))
            elif not nnx.is_data(value) and any(
                isinstance(leaf, Tracer) and id(leaf) not in state_leaves
                for leaf in jax.tree.leaves(value)
            ):
                attribute = ".".join(map(str, (*path, name)))
                raise ValueError(
                    f"model {type(module).__name__}: its attribute {attribute} is a "
                    f"{type(value).__name__} with arrays; expected an nnx.List or"
                    " nnx.Dict of nnx.Variable, which flax treats as part of the module's state"
                )
    return module


@dataclass(frozen=True, eq=False)
class _Given:
    """An `init` that returns the same parameters for every key. Two of them are equal if their
    parameters are.
    """

    params: PyTree

    def __call__(self, key: jax.Array) -> PyTree:
        return jax.tree.map(jnp.asarray, self.params)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Given) or jax.tree.structure(self.params) != jax.tree.structure(
            other.params
        ):
            return False
        return all(map(np.array_equal, jax.tree.leaves(self.params), jax.tree.leaves(other.params)))

    def __hash__(self) -> int:
        return hash(jax.tree.structure(self.params))


def _make_parts(factory: Callable) -> _Parts:
    """Returns the parts of the module that the factory makes, without computing its arrays."""
    from flax import nnx  # noqa: PLC0415

    checks.require_call("model", factory, "rngs")
    made: list[_Parts] = []
    others: list[Any] = []

    def make() -> PyTree:
        module = factory(nnx.Rngs(0))
        if not isinstance(module, nnx.Module):
            others.append(module)
            return None
        parts = _split(_mark_arrays(module))
        made.append(parts._replace(params=None))
        return parts.params

    with causes.refuse_errors(f"model = {checks.show(factory)}"):
        params = jax.eval_shape(make)
    if others:
        raise ValueError(
            f"model = {checks.show(factory)} returned {checks.kind(others[0])}; expected {_NEED}"
        )
    return made[0]._replace(params=params)


def _copy(leaf: Any) -> Any:
    """Copies a leaf to the host; random keys stay JAX arrays."""
    return leaf if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key) else np.array(leaf)


def _adapt_nnx(
    name: str, parts: _Parts, init: Callable[[jax.Array], PyTree], inputs: PyTree
) -> Network:
    if not any(parts.trained):
        raise _refusal(name, "no parameters", "a module with parameters, nnx.Param")
    arguments = [
        tuple(_arguments(parts.graph.nodes[0].type, mode).items()) for mode in (False, True)
    ]
    trainable = None if all(parts.trained) else Flags(parts.trained)
    train = _NnxTrain(parts.graph, parts.streams, arguments[1])
    training = Training(train, parts.averages, bool(parts.streams))
    params = jax.eval_shape(init, jax.eval_shape(lambda: jax.random.key(0)))
    require_supported(name, training, params, inputs, parts.trained)
    differs = bool(parts.streams or any(parts.averages) or arguments[1])
    return Network(
        Parameters(init, trainable),
        _NnxApply(parts.graph, parts.streams, arguments[0]),
        training if differs else None,
    )
