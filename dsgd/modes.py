"""JAX's modes in which this package works, independently of the user's settings.

Some of JAX's flags change what is an error: NaN (which marks missing entries of records), type
promotion (which optax relies on), transfers to devices. Others change what a compiled program is:
`jax_disable_jit`, and the mesh of `jax.set_mesh`.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh

from dsgd import causes

F = TypeVar("F", bound=Callable)

_TRACED = "traced by jax.jit"
_NO_MESH = Mesh(np.empty((), object), ())
# Flag, the values of it that are overridden, and the context that does so.
_CHANGED: tuple[tuple[str, tuple[Any, ...], Callable[[], Any]], ...] = (
    ("jax_debug_nans", (True,), lambda: jax.debug_nans(False)),
    ("jax_debug_infs", (True,), lambda: jax.debug_infs(False)),
    ("jax_numpy_dtype_promotion", ("strict",), lambda: jax.numpy_dtype_promotion("standard")),
    *(
        (
            f"jax_transfer_guard_{way}",
            ("disallow", "disallow_explicit"),
            functools.partial(getattr(jax, f"transfer_guard_{way}"), "allow"),
        )
        for way in ("host_to_device", "device_to_device", "device_to_host")
    ),
)


@contextmanager
def ours() -> Iterator[None]:
    """Context in which JAX's checks for NaN, infinity, type promotion and transfers have their
    defaults.

    Errors of the block end with the notes of `causes`.
    """
    with ExitStack() as stack:
        for flag, values, context in _CHANGED:
            if getattr(jax.config, flag) in values:
                stack.enter_context(context())
        try:
            yield
        except Exception as error:
            causes.put_last(error)
            raise


def wide_type(dtype: Any) -> np.dtype:
    """Returns the floating type in which numbers of a type are added and averaged: at least
    float32; for booleans and integers JAX's default, which is float64 with `jax_enable_x64`.
    """
    return jnp.promote_types(jnp.result_type(dtype, float), jnp.float32)


def outermost(function: F) -> F:
    """Decorates a function that compiles its own programs.

    It is called with `jit` enabled, without the user's mesh, and not inside a JAX
    transformation.

    Raises:
        ValueError: if JAX traces the call.
    """
    config: Any = jax.config
    name, order = function.__name__, tuple(inspect.signature(function).parameters)

    @functools.wraps(function)
    def compiles(*args: Any, **kwargs: Any) -> Any:
        _require_values(name, {**dict(zip(order, args, strict=False)), **kwargs})
        with ExitStack() as stack:
            if config.jax_disable_jit:
                warnings.warn(
                    f"{name}: jax_disable_jit has no effect, because rounds are compiled programs; "
                    "use jax.debug.print to show values inside a program, or call init, query and "
                    "update of a method directly",
                    stacklevel=4,
                )
                stack.enter_context(jax.disable_jit(False))
            if not jax.sharding.get_abstract_mesh().empty:
                stack.enter_context(jax.set_mesh(_NO_MESH))
            return function(*args, **kwargs)

    return compiles  # type: ignore[return-value]


def refuse_tracing(name: str, what: str, needed: str = "concrete values") -> NoReturn:
    """Raises the ValueError for a call that JAX traces.

    Args:
        name: name of the function.
        what: what is traced, with its verb, for example "the call is".
        needed: what the function needs, for example "an integer"; "": it compiles programs.
    """
    why = (
        f"needs {needed}; expected a concrete value; call {name} outside the transformation, and "
        "use its result inside"
        if needed
        else "compiles its own programs and cannot be transformed; expected concrete values; call "
        "it outside the transformation (dsgd.run with seeds=R executes R runs, dsgd.sweep runs a "
        "grid of hyperparameters, each as one program)"
    )
    raise ValueError(
        f"{name}: {what} {_TRACED}, jax.grad, jax.vmap or another transformation, but {name} {why}"
    )


def explain_tracing(name: str, arguments: dict[str, Any], error: Exception) -> None:
    """Raises the ValueError for an error of a function because it needs a value that JAX traces.

    It names the outermost function that received the traced value. Errors with other causes, and
    those of the user's functions, which have a note of `causes`, are left to the caller.

    Args:
        name: name of the function.
        arguments: its arguments by name.
        error: the error.
    """
    text = str(error)
    of_another = _TRACED in text and not text.startswith(f"{name}: ")
    of_tracing = isinstance(error, causes.TRACING) or "Tracer" in text or of_another
    if of_tracing and not causes.note_on(error):
        try:
            _require_values(name, arguments, "concrete values")
        except ValueError as explained:
            raise explained from error


def _is_iterator(value: Any) -> bool:
    """Whether a value is an iterator, such as streamed batches, which is not a pytree."""
    return isinstance(value, Iterator)


def _require_values(name: str, arguments: dict[str, Any], needed: str = "") -> None:
    for argument, value in arguments.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(value, is_leaf=_is_iterator):
            if isinstance(leaf, Tracer):
                refuse_tracing(name, f"{argument}{jax.tree_util.keystr(path)} is", needed)
    if isinstance(jnp.zeros(()), Tracer):  # inside a transformation that traces all operations
        refuse_tracing(name, "the call is", needed)
