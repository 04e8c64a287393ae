"""Refusals that many places share."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing
from jax.core import Tracer

from dsgd.base import Key

F = TypeVar("F", bound=Callable)


def positive_int(name: str, value: Any) -> int:
    """The value, if it is an integer of at least 1.

    Raises:
        ValueError: it is not.
    """
    if not is_integer(value) or value < 1:
        raise ValueError(f"{name} = {shown(value)}: need an integer, at least 1")
    return int(value)


def natural(name: str, value: Any) -> int:
    """The value, if it is an integer of at least 0.

    Raises:
        ValueError: it is not.
    """
    if not is_integer(value) or value < 0:
        raise ValueError(f"{name} = {shown(value)}: need an integer, at least 0")
    return int(value)


def counted(name: str, value: Any, *, least: int = 1, most: int = 2**31 - 1) -> int:
    """The value, if it is an integer from `least` to `most`: what compiled programs count in int32, or keep as many of.

    Raises:
        ValueError: it is not.
    """
    if not is_integer(value) or value < least:
        raise ValueError(f"{name} = {shown(value)}: need an integer, at least {least}")
    if value > most:
        given = value if value < 10**30 else "an integer above 10^30"
        raise ValueError(f"{name} = {given}: need an integer, at most {most:,}")
    return int(value)


def shown(value: Any) -> str:
    """A value in an error message: one line, not a long one."""
    if inspect.isclass(value) or inspect.isfunction(value):
        return f"the {'class' if inspect.isclass(value) else 'function'} {value.__name__}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 120 else f"{text[:100]} ..."


def typed(value: Any) -> str:
    """A value in an error message: an array by its type and shape, numbers and text as they are, all else by its type."""
    if isinstance(value, jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.generic):
        return f"{value.dtype}{list(value.shape)}"
    return repr(value) if isinstance(value, int | float | str | None) else f"a {type(value).__name__}"


def arguments(function: F) -> F:
    """The same function (or the class, of its constructor), which first holds its arguments against its annotations.

    What is of another type is a ValueError that names the function, the argument, and what is needed. Ranges are the function's own
    business, and so are missing and unknown arguments. Traced values pass. `Annotated[T, "a pair"]` says in words what is needed.

    Args:
        function: whose annotations name what is there when it is first called; one that names what only type checkers import is not held.
    """
    made: Any = function
    if inspect.isclass(function):
        made.__init__ = _held(made.__init__, made.__name__)
        return made
    return _held(function, function.__qualname__.rpartition("<locals>.")[2].removesuffix(".__init__"))


def _held(function: Any, name: str) -> Any:
    order = tuple(inspect.signature(function).parameters)

    @functools.cache
    def needs() -> dict[str, _Need]:
        scope = inspect.unwrap(function).__globals__
        read = {argument: _read(text, scope) for argument, text in function.__annotations__.items() if argument != "return"}
        return {argument: need for argument, need in read.items() if need}

    @functools.wraps(function)
    def holds(*args: Any, **kwargs: Any) -> Any:
        wanted = needs()
        for argument, value in (*zip(order, args, strict=False), *kwargs.items()):
            need = wanted.get(argument)
            if need and not need.met(value) and not isinstance(value, Tracer):
                raise ValueError(f"{name}: {argument} = {shown(value)}: need {need.words}")
        return function(*args, **kwargs)

    return holds


class _Need(NamedTuple):
    """What an argument must be, and how that is said."""

    met: Callable[[Any], bool]
    words: str


def _read(annotation: Any, scope: dict[str, Any]) -> _Need | None:
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, scope)
        except NameError:
            return None
    return _need(annotation)


def _need(annotation: Any) -> _Need | None:
    """None: anything will do."""
    if annotation is Any or isinstance(annotation, TypeVar):
        return None
    origin, inner = get_origin(annotation), get_args(annotation)
    for known, need in _NEEDS:
        if known in (annotation, origin):
            return need
    if origin is Annotated:
        need = _need(inner[0])
        return need and _Need(need.met, next((words for words in inner[1:] if isinstance(words, str)), need.words))
    if origin in (Union, types.UnionType):
        arrays = get_args(numpy.typing.ArrayLike)  # itself a union in older numpy, which falls apart in another
        apart = arrays and set(arrays) <= set(inner)
        whole = [numpy.typing.ArrayLike, *(one for one in inner if one not in arrays)] if apart else inner
        return _any_of([_need(one) for one in whole])
    if origin is Literal:
        kinds = tuple({type(one) for one in inner})
        return _Need(lambda value: isinstance(value, kinds), " or ".join(map(repr, inner)))
    if origin in _LISTS:
        return _list_of(_need(inner[0]) if inner and origin is not tuple else None)
    kind = origin or annotation
    if kind is Callable:
        return _Need(lambda value: callable(value) and not inspect.isclass(value), "a function")
    return _Need(lambda value: isinstance(value, kind), _WORDS.get(kind.__name__, f"a {kind.__name__}"))


def _any_of(needs: Sequence[_Need | None]) -> _Need | None:
    some = [need for need in needs if need]
    if len(some) < len(needs):
        return None
    *first, last = dict.fromkeys(need.words for need in some)
    words = f"{', '.join(first)}{',' * any(',' in one for one in first)} or {last}" if first else last
    return _Need(lambda value: any(need.met(value) for need in some), words)


def _list_of(each: _Need | None) -> _Need:
    """A list, which no string is, nor a tuple with names, nor an array."""

    def met(value: Any) -> bool:
        listed = isinstance(value, Sequence) and not isinstance(value, str | bytes) and not hasattr(value, "_fields")
        return listed and (each is None or all(map(each.met, value)))

    return _Need(met, "a list" if each is None else f"a list, each {each.words}")


def is_integer(value: Any) -> bool:
    """Whether it is one, of Python or numpy; True is none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_key(value: Any) -> bool:
    """One key of JAX, of the new type or the old."""
    if not isinstance(value, jax.Array):
        return False
    return value.ndim == 0 if jnp.issubdtype(value.dtype, jax.dtypes.prng_key) else value.dtype == jnp.uint32 and value.ndim == 1


def is_number(value: Any) -> bool:
    """Whether it is one real number, of Python, a Fraction, or of an array without axes."""
    if isinstance(value, np.ndarray | jax.Array):
        return value.ndim == 0 and is_numeric(value)
    return isinstance(value, int | float | np.integer | np.floating | Fraction) and not isinstance(value, bool)


def is_numeric(value: Any) -> bool:
    """Whether numpy makes an array of real numbers of it."""
    try:
        kind = value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
    except Exception:  # ragged lists, and whatever an object's own conversion raises
        return False
    return jnp.issubdtype(kind, np.integer) or jnp.issubdtype(kind, np.floating) or kind == np.bool_


_LISTS = (Sequence, list, tuple)
_ARRAY = _Need(lambda value: isinstance(value, np.ndarray | jax.Array) and is_numeric(value), "an array of numbers")
_NUMBERS = _Need(is_numeric, "numbers")
_NUMBER = _Need(is_number, "a number")
_NEEDS = (
    (int, _Need(is_integer, "an integer")),
    (float, _NUMBER),
    (Fraction, _NUMBER),
    (bool, _Need(lambda value: isinstance(value, bool | np.bool_), "True or False")),
    (str, _Need(lambda value: isinstance(value, str), "a string")),
    (Path, _Need(lambda value: isinstance(value, Path), "a path")),
    (types.NoneType, _Need(lambda value: value is None, "None")),
    (np.ndarray, _ARRAY),
    (jax.Array, _ARRAY),
    (Key, _Need(_is_key, get_args(Key)[1])),
    (numpy.typing.ArrayLike, _NUMBERS),
    (Iterable, _Need(lambda value: isinstance(value, Iterable) and getattr(value, "shape", None) != (), "an iterator")),
)
_WORDS = {
    "Algorithm": "a dsgd.Algorithm, algorithms.minibatch_sgd(optax.sgd(0.1)), say",
    "Cluster": "a dsgd.clusters.Cluster, clusters.Cluster(clusters.constant(1.0)), say",
    "Compressor": "a dsgd.Compressor, compressors.sign or compressors.top_k(0.1), say",
    "Delays": "one of algorithms.delays, delays.constant(4), say",
    "GradientTransformation": "an optax optimiser, optax.sgd(0.1), say (of an optax.MultiSteps, its gradient_transformation())",
    "Mesh": "a mesh, dsgd.workers.mesh(4), say",
    "Pattern": "a pattern of dsgd.network, network.multi_server or network.gossip(topologies.ring(16)), say",
    "Result": "a dsgd.Result, of dsgd.run",
    "State": "its State",
    "Problem": "a dsgd.Problem, problems.logistic_regression(), say",
    "Quantity": "a quantity, clusters.constant(1.0), say",
    "Topology": "a topology, topologies.ring(16) or topologies.from_matrix(W), say",
    "Work": "a dsgd.Work, work.local_batches([4, 2], batch_size=4), say",
}
