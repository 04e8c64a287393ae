"""Validation of arguments, shared by the whole package."""

from __future__ import annotations

import copy
import functools
import inspect
import operator
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing
from jax.core import Tracer
from jax.tree_util import keystr, tree_leaves_with_path

from dsgd import array_likes, modes, signatures, spelling
from dsgd.base import Evaluation, Key, Loss, Parameters, PyTree, Sampler

F = TypeVar("F", bound=Callable)
_SHOWN = 6  # maximum number of leaf names in a message
_VALIDATED = set[str]()  # names of the functions that `arguments` decorates


def positive_int(name: str, value: Any, most: int | None = 2**31 - 1) -> int:
    """Returns the value as a Python int, if it is an integer from 1 to `most`.

    By default `most` is the largest int32, the type in which compiled programs count; None: no
    limit.

    Raises:
        ValueError: if it is not.
    """
    return _whole(name, value, 1, most)


def natural(name: str, value: Any, most: int | None = 2**31 - 1) -> int:
    """Returns the value as a Python int, if it is an integer from 0 to `most`.

    By default `most` is the largest int32; None: no limit.

    Raises:
        ValueError: if it is not.
    """
    return _whole(name, value, 0, most)


def _whole(name: str, value: Any, least: int, most: int | None) -> int:
    if not is_integer(value) or value < least:
        raise ValueError(f"{name} = {show(value)}; expected an integer, at least {least}")
    if most is not None and value > most:
        raise ValueError(f"{name} = {show(value)}; expected an integer, at most {most:,}")
    return int(value)


def period(name: str, value: Any, least: int = 1) -> Any:
    """Returns a number of rounds: a Python int from `least` to the largest int32, or a traced value
    of a sweep, which is not validated.

    Raises:
        ValueError: if it is neither.
    """
    return value if isinstance(value, Tracer) else _whole(name, value, least, 2**31 - 1)


def number(name: str, value: Any, interval: str) -> Any:
    """Returns a real number of the interval, or a traced value of a sweep, which is not validated.

    Args:
        name: where the value comes from, for the message.
        value: the number.
        interval: such as "(0, 1]"; inf is a valid bound.

    Raises:
        ValueError: if it is neither.
    """
    if isinstance(value, Tracer):
        return value
    low, high = map(float, interval[1:-1].split(","))
    inside = is_number(value) and (
        (low <= value if interval[0] == "[" else low < value)
        and (value <= high if interval[-1] == "]" else value < high)
    )
    if not inside:
        raise ValueError(f"{name} = {show(value)}; expected a number in {interval}")
    return value


def truth(where: str, given: Any, example: str) -> bool:
    """Returns the result of a user's function as a bool.

    Args:
        where: name of the function, for messages.
        given: its return value.
        example: an example of a valid return value, for the message.

    Raises:
        ValueError: if it is not a single truth value.
    """
    if not isinstance(given, bool) and (
        getattr(given, "dtype", None) != np.bool_ or np.shape(given)
    ):
        raise ValueError(
            f"{where} returned {kind(given)}; expected True or False, such as {example}"
        )
    return bool(given)


def show(value: Any) -> str:
    """Returns a value as text for an error message: one line of limited length."""
    if isinstance(value, Tracer):
        return f"a traced {kind(value)}"
    if hasattr(value, "_fields") and isinstance(getattr(value, "name", None), str):
        return f"the {type(value).__name__} {value.name}"  # a method, a compressor, a pattern
    if inspect.isclass(value) or inspect.isfunction(value):
        return f"the {'class' if inspect.isclass(value) else 'function'} {value.__name__}"
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = str(value) if isinstance(value, Fraction) else " ".join(repr(value).split())
    except Exception:
        # The repr of a user's class may fail, and integers may be too long to print.
        return f"a {type(value).__name__}"
    return text if len(text) <= 120 else f"{text[:100]} ..."


def kind(value: Any) -> str:
    """Returns a value as text for an error message: arrays by type and shape, numbers and texts by
    value, and other objects by type.
    """
    if isinstance(value, jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.generic):
        return f"{value.dtype}{list(value.shape)}"
    return (
        show(value) if isinstance(value, int | float | str | None) else f"a {type(value).__name__}"
    )


def outline(tree: PyTree) -> str:
    """Returns a pytree as text for an error message: one array, or a container with its leaves."""
    if jax.tree_util.all_leaves([tree]):
        return "one array"
    return f"a {type(tree).__name__} with leaves {_leaves(tree)}"


def require_same(
    where: str, given: PyTree, needed: PyTree, leading: Sequence[int] = (), *, types: bool = False
) -> None:
    """Raises ValueError if two trees differ in structure or shapes.

    Args:
        where: beginning of the message.
        given: tree whose leaves should have the shapes `[*leading, *shape]`.
        needed: tree whose leaves have `shape` and `dtype`.
        leading: leading axes.
        types: whether the element types must be equal as well.
    """
    if jax.tree.structure(given) != jax.tree.structure(needed):
        raise ValueError(
            f"{where} with leaves {_leaves(given)}; expected the tree with leaves {_leaves(needed)}"
        )
    for (path, leaf), want in zip(
        tree_leaves_with_path(given), jax.tree.leaves(needed), strict=True
    ):
        shape = (*leading, *jnp.shape(want))
        if jnp.shape(leaf) != shape or (types and jnp.result_type(leaf) != jnp.result_type(want)):
            expected = jax.ShapeDtypeStruct(shape, jnp.result_type(want))
            raise ValueError(f"{where}{keystr(path)} as {kind(leaf)}; expected {kind(expected)}")


def require_workers_axis(where: str, tree: PyTree, N: int, remedy: str = "") -> None:
    """Raises ValueError if a leaf of a tree has no leading axis of N workers.

    Args:
        where: beginning of the message.
        tree: the arrays.
        N: number of workers.
        remedy: end of the message.
    """
    for path, leaf in tree_leaves_with_path(tree):
        if np.ndim(leaf) < 1 or np.shape(leaf)[0] != N:
            raise ValueError(
                f"{where}{keystr(path)} has shape {np.shape(leaf)}; expected a leading axis for "
                f"the {N} workers{remedy}"
            )


def require_scalar(where: str, value: Any, expected: str = "a scalar,") -> None:
    """Raises ValueError if the value is not a scalar.

    Args:
        where: beginning of the message.
        value: any object.
        expected: description of the scalar, for the message.
    """
    if (
        not isinstance(value, jax.Array | np.ndarray | np.generic | int | float)
        or np.ndim(value) != 0
    ):
        raise ValueError(f"{where} as {kind(value)}; expected {expected} the same on every device")


def _leaves(tree: PyTree) -> str:
    names = [keystr(path) or "itself" for path, _ in tree_leaves_with_path(tree)]
    return (
        "(none)"
        if not names
        else ", ".join(names[:_SHOWN]) + (f", ... ({len(names)})" if len(names) > _SHOWN else "")
    )


def arguments(function: F, *, members: bool = True) -> F:
    """Decorates a function, or the constructor of a class, to validate its arguments against its
    annotations.

    An argument of another type raises a ValueError that names the function, the argument, and what
    was expected; an unknown one a TypeError with the most similar name. Ranges and missing
    arguments are left to the function. Traced values
    are accepted as numbers and arrays. If the function needs the value of one, the error names the
    argument. `Annotated[T, "a pair"]` replaces the description in the message.
    `Annotated[Callable[[A, B], C], "(x, y)"]` describes the arguments with which a function is
    called, and rejects functions that do not accept that many.

    If the function passes an argument on to another such function of the library, which raises a
    ValueError about it, the message begins with the name of the function that the user called.

    Values are normalised: old-style keys and integers become typed keys, learning rates of
    optimizers `optax.sgd`; numpy scalars, and arrays without axes,
    become Python numbers, which do not overflow. Arrays and lists are copied, so that their owner
    may modify them later. Integers of more than 64 bits are not accepted, except for a `seed`.

    Args:
        function: the function. Its annotations are resolved at the first call; those that name
            types which only type checkers import are not validated.
        members: whether to validate the functions in a method, a problem or a compressor as well.
            If False, the decorated function reports their faults.
    """
    made: Any = function
    if inspect.isclass(function):
        made.__init__ = _validate(made.__init__, made.__name__, members)
        return made
    return _validate(
        function,
        function.__qualname__.rpartition("<locals>.")[2].removesuffix(".__init__"),
        members,
    )


def _validate(function: Any, name: str, members: bool) -> Any:
    signature = signatures.readable(function)
    order = tuple(signature.parameters)
    any_keyword = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    _VALIDATED.add(name.rpartition(".")[2])

    @functools.cache
    def needs() -> dict[str, _Requirement]:
        scope = inspect.unwrap(function).__globals__
        read = {
            argument: _read(text, scope)
            for argument, text in function.__annotations__.items()
            if argument != "return"
        }
        return {
            argument: _SEED if argument == "seed" and need is _INTEGER else need
            for argument, need in read.items()
            if need
        }

    @functools.wraps(function)
    def validating(*args: Any, **kwargs: Any) -> Any:
        if not any_keyword and (unknown := next((key for key in kwargs if key not in order), "")):
            known = [argument for argument in order if argument != "self"]
            end = spelling.suggest(unknown, known) or f"; expected {', '.join(known)}"
            raise TypeError(f"{name}: unexpected keyword argument {unknown!r}{end}")
        requirements = needs()
        given = {**dict(zip(order, args, strict=False)), **kwargs}

        def convert(argument: str, value: Any) -> Any:
            need = requirements.get(argument)
            if need and need.accepts(value):
                if need.convert is _check_members and not members:
                    return value
                return need.convert(f"{name}: {argument}", value)
            if need and isinstance(value, Tracer):
                modes.refuse_tracing(name, f"{argument} is", f"{need.words}, not {kind(value)}")
            if need:
                raise ValueError(
                    f"{name}: {argument} = {_mismatch(value, need)}{array_likes.hint(value)}"
                    f"{_swap_hint(argument, given, requirements)}"
                )
            return value

        positional = [
            convert(argument, value) for argument, value in zip(order, args, strict=False)
        ]
        named = {argument: convert(argument, value) for argument, value in kwargs.items()}
        try:
            with modes.ours():
                return function(*positional, *args[len(order) :], **named)
        except Exception as error:
            modes.explain_tracing(name, given, error)
            _name_caller(error, name, function.__module__, order)
            raise

    shown: Any = validating
    shown.__signature__ = signature
    return shown


def require(where: str, value: Any, annotation: Any) -> Any:
    """Returns the value as `arguments` does for an argument with this annotation.

    Raises:
        ValueError: if it is of another type.
    """
    need = _need(annotation)
    if not need or need.accepts(value):
        return need.convert(where, value) if need else value
    raise ValueError(f"{where} = {_mismatch(value, need)}{array_likes.hint(value)}")


def _name_caller(error: Exception, name: str, module: str, parameters: Sequence[str]) -> None:
    """Replaces the name with which a message begins by `name`, if it is that of another validated
    function, which the library called, and the message is about a parameter of `name`, too.
    """
    said = re.match(r"([\w.]+): (\w+)", str(error))
    if not isinstance(error, ValueError) or not said or said[2] not in parameters:
        return
    other = said[1].rpartition(".")[2]
    if other not in _VALIDATED or other == name.rpartition(".")[2]:
        return
    library = {"dsgd", module.partition(".")[0]}
    frames = traceback.walk_tb(error.__traceback__)
    if all(frame.f_globals.get("__name__", "").partition(".")[0] in library for frame, _ in frames):
        error.args = (f"{name}{str(error)[len(said[1]) :]}",)


def _identity(where: str, value: Any) -> Any:
    return value


class _Requirement(NamedTuple):
    """The requirement on an argument.

    Args:
        accepts: value -> whether it satisfies the requirement.
        words: description of valid values, for messages.
        convert: (where, value) -> the value that the function receives, for example with where =
            "run: key".
        call: for functions, the number of arguments of a call.
    """

    accepts: Callable[[Any], bool]
    words: str
    convert: Callable[[str, Any], Any] = _identity
    call: str = ""  # for functions: the number of arguments of a call


def _mismatch(value: Any, need: _Requirement) -> str:
    """Returns the given value and the expected one, as text."""
    if need.call and callable(value) and not inspect.isclass(value):
        signature = _signature(value)
        return f"{show(value)}, which takes {signature}; expected a function of {need.call}"
    long = _is_long(value) and need.words.startswith(("an integer", "a number"))
    return f"{show(value)}; expected {need.words}{' of at most 64 bits' if long else ''}"


def _swap_hint(argument: str, given: dict[str, Any], needs: dict[str, _Requirement]) -> str:
    """Returns the end of a message if this value and that of another argument, both invalid, are
    valid for each other's argument; else "".
    """
    here, need = given[argument], needs[argument]
    for other, there in given.items():
        its = needs.get(other)
        if its and not its.accepts(there) and its.accepts(here) and need.accepts(there):
            return f"; {argument} and {other} are swapped"
    return ""


def _read(annotation: Any, scope: dict[str, Any]) -> _Requirement | None:
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, scope)
        except NameError:
            return None
    return _need(annotation)


def _need(annotation: Any) -> _Requirement | None:
    """Returns the requirement of an annotation; None if any value is valid."""
    if annotation is Any or isinstance(annotation, TypeVar):
        return None
    origin, inner = get_origin(annotation), get_args(annotation)
    for known, need in _NEEDS:
        if known in (annotation, origin):
            return need
    if origin is Annotated:
        need, words = (
            _need(inner[0]),
            next((words for words in inner[1:] if isinstance(words, str)), None),
        )
        if need is None or words is None:
            return need
        return (
            need._replace(call=f"{need.call} {words}")
            if words.startswith("(")
            else need._replace(words=words)
        )
    if origin in (Union, types.UnionType):
        # In older versions of numpy, ArrayLike is itself a union, which is flattened into another.
        arrays = get_args(numpy.typing.ArrayLike)
        flattened = arrays and set(arrays) <= set(inner)
        members = (
            [numpy.typing.ArrayLike, *(one for one in inner if one not in arrays)]
            if flattened
            else inner
        )
        return _any_of([_need(one) for one in members])
    if origin is Literal:
        kinds = tuple({type(one) for one in inner})
        return _Requirement(lambda value: isinstance(value, kinds), " or ".join(map(repr, inner)))
    if origin in _LISTS:
        return _list_of(_need(inner[0]) if inner and origin is not tuple else None)
    kind = origin or annotation
    if kind.__name__ == "GradientTransformation":
        return _Requirement(
            lambda value: isinstance(value, kind) or is_number(value) or _is_schedule(value),
            describe_kind(kind),
            lambda where, value: value if isinstance(value, kind) else _sgd(where, value),
        )
    if kind is Callable:
        return _function_of(len(inner[0]) if inner and isinstance(inner[0], list) else None)
    return _Requirement(
        lambda value: isinstance(value, kind),
        describe_kind(kind),
        _check_members
        if any(base.__name__ in _MEMBERS for base in inspect.getmro(kind))
        else _identity,
    )


def describe_kind(kind: type) -> str:
    """Returns the description of a type, for messages: "a dsgd.Algorithm, such as ..."."""
    return _WORDS.get(kind.__name__, f"a {kind.__name__}")


def _any_of(needs: Sequence[_Requirement | None]) -> _Requirement | None:
    some = [need for need in needs if need]
    if len(some) < len(needs):
        return None
    *first, last = dict.fromkeys(need.words for need in some)
    words = (
        f"{', '.join(first)}{',' * any(',' in one for one in first)} or {last}" if first else last
    )

    def convert(where: str, value: Any) -> Any:
        if isinstance(value, jax.Array) and any(need in (_ARRAY, _NUMBERS) for need in some):
            return value
        ordered = [_FRACTION, *some] if _FRACTION in some else some  # keeps exact numbers exact
        return next(need for need in ordered if need.accepts(value)).convert(where, value)

    return _Requirement(
        lambda value: any(need.accepts(value) for need in some),
        words,
        convert,
        next((need.call for need in some if need.call), ""),
    )


def _list_of(each: _Requirement | None) -> _Requirement:
    """Returns the requirement that a value is a list, and each entry meets `each`. Strings, named
    tuples and arrays are not lists.
    """

    def accepts(value: Any) -> bool:
        listed = (
            isinstance(value, Sequence)
            and not isinstance(value, str | bytes)
            and not hasattr(value, "_fields")
        )
        return listed and (each is None or all(map(each.accepts, value)))

    def convert(where: str, value: Any) -> Any:
        made = list(value) if each is None else [each.convert(where, one) for one in value]
        same = not isinstance(value, list) and all(map(operator.is_, made, value))
        return value if same else made

    return _Requirement(
        accepts, "a list" if each is None else f"a list, each {each.words}", convert
    )


def _function_of(count: int | None) -> _Requirement:
    """Returns the requirement of a function, not a class, that accepts `count` arguments (None: any
    number).
    """

    def accepts(value: Any) -> bool:
        return (
            callable(value)
            and not inspect.isclass(value)
            and (count is None or _takes(value, count))
        )

    return _Requirement(accepts, "a function", call="" if count is None else _count(count))


def _is_schedule(value: Any) -> bool:
    """Whether `value` is a function from the number of the step to a learning rate. A function that
    returns an optimizer, such as `optax.sgd`, is not one.
    """
    if not callable(value) or inspect.isclass(value) or not _takes(value, 1):
        return False
    try:
        rate = jax.eval_shape(value, jax.ShapeDtypeStruct((), jnp.int32))
    except Exception:  # a user's function may raise any exception
        return False
    return getattr(rate, "shape", None) == () and jnp.issubdtype(rate.dtype, jnp.floating)


def _sgd(where: str, rate: Any) -> Any:
    """Returns `optax.sgd` with a learning rate, a number or a schedule."""
    import optax  # noqa: PLC0415 (takes a tenth of a second to import)

    return optax.sgd(_float(rate if callable(rate) else number(where, rate, "(-inf, inf)")))


def require_call(where: str, function: Any, *arguments: str, keywords: Sequence[str] = ()) -> None:
    """Raises ValueError unless `function` is a function that accepts these arguments.

    Args:
        where: name of the function, for the message.
        function: any object.
        arguments: names of the positional arguments, for the message.
        keywords: names of the keyword arguments.
    """
    named = [*arguments, *(f"{name}=..." for name in keywords)]
    if not callable(function):
        raise ValueError(f"{where} = {show(function)}; expected a function ({', '.join(named)})")
    if not _takes(function, len(arguments), keywords):
        given = f"{show(function)}, which takes {_signature(function)}"
        raise ValueError(
            f"{where} = {given}; expected a function of {_count(len(named))} ({', '.join(named)})"
        )


def _check_members(where: str, value: Any) -> Any:
    """Validates the functions in a method, a problem or a compressor.

    Raises:
        ValueError: if one of them is not a function of its arguments.
    """
    for member, function, arguments in _members(value):
        require_call(f"{where} = {value.name}: {member}", function, *arguments)
    return value


def _members(value: Any) -> Iterator[tuple[str, Any, list[str]]]:
    """Yields the member functions: (name, function, names of its arguments). Those of a problem's
    parts are named, for example, "loss.gradient".
    """
    kind = next(kind.__name__ for kind in type(value).__mro__ if kind.__name__ in _MEMBERS)
    for member, arguments in _MEMBERS[kind].items():
        function = getattr(value, member)
        if isinstance(function, _PARTS.get(member, ())):
            yield from (
                (f"{member}.{inner}", its, names) for inner, its, names in _members(function)
            )
        elif member not in _OPTIONAL or not (function is None or isinstance(function, str)):
            numbered = member == "draw" and value.numbered
            yield member, function, [*arguments.split(), *["k"] * numbered]


def require_delay(where: str, value: Any) -> float:
    """Returns the delay in seconds that a user's function returned, as a float.

    Raises:
        ValueError: if it is not a finite number, at least 0.
    """
    if not is_number(value) or not 0 <= value < float("inf"):
        raise ValueError(f"{where} = {show(value)}; expected finite seconds >= 0")
    return float(value)


def _count(arguments: int) -> str:
    return f"{arguments} argument{'s' * (arguments != 1)}"


def _takes(function: Any, count: int, keywords: Sequence[str] = ()) -> bool:
    """Whether a function accepts `count` positional arguments, according to its signature or to
    that of the function that it wraps.
    """
    for wrapped in (True, False):
        try:
            signature = inspect.signature(function, follow_wrapped=wrapped)
        except (ValueError, TypeError):  # functions written in C may have no signature
            return True
        try:
            signature.bind(*range(count), **dict.fromkeys(keywords))
            return True
        except TypeError:
            pass
    return False


def _signature(function: Any) -> str:
    """Returns the parameters of a function as text, for an error message."""
    return re.sub(
        r"(?s)\s*->.*",
        "",
        str(inspect.signature(function).replace(return_annotation=inspect.Signature.empty)),
    )


def python_number(value: Any) -> Any:
    """Converts numpy scalars, and arrays without axes, to Python numbers or bools, which do not
    overflow. Other objects are returned unchanged.
    """
    single = isinstance(value, np.generic | np.ndarray | jax.Array) and value.ndim == 0
    if single and not isinstance(value, Tracer) and not np.ma.is_masked(value):
        for kind, python in ((np.bool_, bool), (np.integer, int), (np.floating, float)):
            if jnp.issubdtype(value.dtype, kind):
                return python(value)
    return value


def typed_key(key: Key = 0) -> jax.Array:
    """Returns a key that `arguments` accepts as a typed key of the implementation that runs
    require.
    """
    return _one_key("key", key)


def is_integer(value: Any) -> bool:
    """Whether `value` is a Python or NumPy integer (bools excluded)."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_key(value: Any) -> bool:
    """Whether `value` is a typed or an old-style JAX key."""
    return isinstance(value, jax.Array | np.ndarray) and (
        _is_typed_key(value) or value.dtype == jnp.uint32
    )


def _is_typed_key(value: Any) -> bool:
    return jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _one_key(where: str, value: Any) -> jax.Array:
    """Converts a key to a typed key. The uint32[2] of `jax.random.PRNGKey` yields the same
    draws; an integer i stands for `jax.random.key(i)`.

    Raises:
        ValueError: if there are several keys, or the data are not those of a key; or if the random
            bits of the key's implementation depend on the batch under `jax.vmap`: results would
            then depend on the number of devices, and two computations of the same draw could
            differ.
    """
    if not _is_key(value):
        # JAX would truncate a larger integer to 32 bits.
        return jax.random.key(natural(where, python_number(value), 2**32 - 1), impl=_THREEFRY)
    typed_key = _is_typed_key(value)
    implementation = (
        str(jax.random.key_impl(value))
        if typed_key
        else "rbg"
        if value.shape[-1:] == (4,)
        else _THREEFRY
    )
    if implementation in _BATCH_DEPENDENT:
        raise ValueError(
            f"{where} has the implementation {implementation!r}, whose random bits depend on the "
            f"number of devices; expected {_THREEFRY!r}; pass "
            f"jax.random.key(0, impl={_THREEFRY!r})"
        )
    if value.shape != (() if typed_key else (2,)):
        several = (
            "; pass one of these keys, keys[0]" if typed_key or value.shape[1:] == (2,) else ""
        )
        expected = "one key, such as jax.random.key(0), or the uint32[2] of jax.random.PRNGKey(0)"
        raise ValueError(f"{where} = {kind(value)}; expected {expected}{several}")
    return value if typed_key else jax.random.wrap_key_data(jnp.array(value), impl=_THREEFRY)


_THREEFRY = "threefry2x32"
_BATCH_DEPENDENT = ("rbg", "unsafe_rbg")


def is_number(value: Any) -> bool:
    """Whether `value` is one real number in the range of float64: a Python number, a Fraction, or
    an array without axes.
    """
    if isinstance(value, Tracer):
        return value.ndim == 0 and is_numeric(value)
    number = python_number(value)
    if isinstance(number, bool) or not isinstance(number, int | float | Fraction):
        return False
    return isinstance(number, float) or abs(number) <= sys.float_info.max


def _float(value: Any) -> Any:
    """Converts a number to one that JAX can compute with: fractions, and integers outside int32,
    become floats.
    """
    number = python_number(value)
    exact = isinstance(number, Fraction) or (
        isinstance(number, int) and not -(2**31) <= number < 2**31
    )
    return float(number) if exact else number


def _is_long(value: Any) -> bool:
    """Whether `value` is an integer outside int64."""
    return is_integer(value) and not -(2**63) <= value < 2**63


def is_numeric(value: Any) -> bool:
    """Whether `array_likes.numbers` can convert the value to an array of real numbers."""
    return array_likes.refusal(value) is None


def _is_array(value: Any) -> bool:
    """Whether `value` is an array of numpy, JAX or another library, or a column or table."""
    return not isinstance(value, np.generic) and (
        hasattr(value, "__array__") or hasattr(value, "__dlpack__")
    )


def copy_array(where: str, value: Any) -> Any:
    """Copies arrays, which their owner may modify later: those of other libraries, those of numpy
    in types that JAX does not accept, and lists of them, become arrays of numpy. Numbers and arrays
    of JAX are returned unchanged.
    """
    native = array_likes.is_native(value)
    if isinstance(value, jax.Array | int | float) or (native and np.ndim(value) == 0):
        return value
    if array_likes.is_leaf(value):
        return copy.deepcopy(value)
    return np.array(value if native else array_likes.numbers(where, value))


_LISTS = (Sequence, list, tuple)
_ARRAY = _Requirement(
    lambda value: _is_array(value) and is_numeric(value), "an array of numbers", copy_array
)
_NUMBERS = _Requirement(is_numeric, "numbers", copy_array)
_NUMBER = _Requirement(is_number, "a number", lambda where, value: _float(value))
_FRACTION = _Requirement(is_number, "a number", lambda where, value: python_number(value))
_INTEGER = _Requirement(
    lambda value: is_integer(python_number(value)) and not _is_long(value),
    "an integer",
    lambda where, value: python_number(value),
)
_SEED = _Requirement(  # seeds of numpy may have up to 128 bits
    lambda value: is_integer(python_number(value)) and int(value).bit_length() <= 128,
    "an integer",
    _INTEGER.convert,
)
_NEEDS = (
    (int, _INTEGER),
    (float, _NUMBER),
    (Fraction, _FRACTION),
    (
        bool,
        _Requirement(
            lambda value: isinstance(python_number(value), bool),
            "True or False",
            lambda where, value: python_number(value),
        ),
    ),
    (str, _Requirement(lambda value: isinstance(value, str), "a string")),
    (Path, _Requirement(lambda value: isinstance(value, Path), "a path")),
    (types.NoneType, _Requirement(lambda value: value is None, "None")),
    (np.ndarray, _ARRAY),
    (jax.Array, _ARRAY),
    (
        Key,
        _Requirement(
            lambda value: _is_key(value) or _INTEGER.accepts(value), get_args(Key)[1], _one_key
        ),
    ),
    (numpy.typing.ArrayLike, _NUMBERS),
    (
        Iterable,
        _Requirement(
            lambda value: isinstance(value, Iterable) and getattr(value, "shape", None) != (),
            "an iterator",
        ),
    ),
)
_MEMBERS = {  # arguments of the functions in these tuples
    "Algorithm": {
        "init": "params N",
        "query": "state round",
        "update": "state gradients round",
        "model": "state",
        "absent": "before after",
    },
    "Problem": {
        "init": "key",
        "loss": "params batch",
        "sample": "key data",
        "evaluate": "params data shared",
    },
    "Parameters": {"init": "key"},
    "Regularizer": {"value": "params", "prox": "params step"},
    "Sampler": {
        "draw": "key data",
        "truncate": "batch b",
        "keyed": "key batch",
        "read": "where batch N",
        "batch_error": "batches",
    },
    "Loss": {"value": "params batch", "gradient": "params batch"},
    "Evaluation": {"function": "params data shared", "statistics": "params data"},
    "Compressor": {
        "compress": "key x",
        "decompress": "message d",
        "bits": "message",
        "omega": "d",
        "delta": "d",
    },
    "LinearCode": {"encode": "key x", "decode": "key code d", "omega": "d", "delta": "d"},
    "ThreePoint": {"apply": "send x h y round", "constants": "d"},
    "Vector": {"start": "params", "step": "state g x"},
    "Delays": {"staleness": "key t parts moved"},
    "Pattern": {
        "seconds": "N latency transfer convention",
        "volume": "N",
        "messages": "N",
        "clock": "finish ports convention step",
    },
}
# Types that may replace a member function of a problem
_PARTS = {"init": Parameters, "loss": Loss, "sample": Sampler, "evaluate": Evaluation}
_OPTIONAL = {
    "absent",
    "batch_error",
    "evaluate",
    "function",
    "truncate",
    "keyed",
    "read",
    "statistics",
    "omega",
    "delta",
    "messages",
    "clock",
}
_WORDS = {
    "AllGather": "network.all_gather",
    "AllReduce": "a pattern that carries a mean over all workers: network.ring_all_reduce, "
    "multi_server, parameter_server, star, all_gather, or a custom network.AllReduce",
    "Asynchronous": "network.asynchronous_server, network.asynchronous_gossip or a custom "
    "network.Asynchronous",
    "Algorithm": "a dsgd.Algorithm, such as algorithms.minibatch_sgd(optax.sgd(0.1))",
    "Cluster": "a dsgd.clusters.Cluster, such as clusters.Cluster(clusters.constant(1.0))",
    "Compressor": "a dsgd.Compressor, such as compressors.sign or compressors.top_k(0.1)",
    "Delays": "one of algorithms.delays, such as delays.constant(4)",
    "GradientTransformation": "an optax optimizer, such as optax.sgd(0.1), or its learning rate, "
    "which stands for optax.sgd (for an optax.MultiSteps, pass its gradient_transformation())",
    "Mesh": "a mesh, such as dsgd.workers.mesh(4)",
    "NServers": "network.multi_server",
    "OneServer": "a pattern with one server, network.star or network.parameter_server",
    "Pattern": "a pattern of dsgd.network, such as network.multi_server or "
    "network.gossip(topologies.ring(16))",
    "Result": "a dsgd.Result, as returned by dsgd.run",
    "State": "a dsgd.State, such as the `state` of a dsgd.Result",
    "PointToPoint": "network.gossip(topologies.ring(16)), network.ring_shift or a custom "
    "network.PointToPoint",
    "Problem": "a dsgd.Problem, such as problems.logistic_regression()",
    "Quantity": "a quantity, such as clusters.constant(1.0)",
    "Topology": "a topology, such as topologies.ring(16) or topologies.from_matrix(W)",
    "LocalWork": "a dsgd.LocalWork, such as work.local_batches([4, 2], batch_size=4)",
}
