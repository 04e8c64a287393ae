"""JAX's modes in which this package works, whatever the user sets for their own code.

Some of JAX's flags change what is an error: NaN (here a record's placeholder before the first
round), a promotion of types (which optax makes), a transfer to a device. Others change what a
compiled program is: `jax_disable_jit`, and the mesh of `jax.set_mesh`.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh

from dsgd import causes

F = TypeVar("F", bound=Callable)

_NO_MESH = Mesh(np.empty((), object), ())
# Flag, the value that is changed, and the context without it.
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
    """JAX's default checks of NaN, infinity, type promotion and transfers; errors end with what
    `causes` says of them.
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


def outermost(function: F) -> F:
    """The same function, which compiles programs of its own: with `jit`, without the user's mesh,
    and in no transformation of JAX.

    Raises:
        ValueError: JAX traces the call.
    """
    config: Any = jax.config
    name, order = function.__name__, tuple(inspect.signature(function).parameters)

    @functools.wraps(function)
    def compiles(*args: Any, **kwargs: Any) -> Any:
        _need_values(name, {**dict(zip(order, args, strict=False)), **kwargs})
        with ExitStack() as stack:
            if config.jax_disable_jit:
                remedy = "jax.debug.print shows values inside of one, and init, query and update of a method can be called by themselves"
                warnings.warn(
                    f"{name}: jax_disable_jit does not apply, since rounds are compiled programs; "
                    f"{remedy}",
                    stacklevel=4,
                )
                stack.enter_context(jax.disable_jit(False))
            if not jax.sharding.get_abstract_mesh().empty:
                stack.enter_context(jax.set_mesh(_NO_MESH))
            return function(*args, **kwargs)

    return compiles  # type: ignore[return-value]


def refuse_tracing(name: str, what: str) -> None:
    """Raises the ValueError of a call that JAX traces.

    Args:
        name: of the function.
        what: is traced.
    """
    raise ValueError(
        f"{name}: {what} traced by jax.jit, jax.grad, jax.vmap or another transformation, but "
        f"expected values: {name} compiles programs"
        " of its own and cannot be transformed; call it outside (dsgd.run with seeds=R makes R "
        "runs, dsgd.sweep runs a grid of"
        " hyperparameters, each as one program)"
    )


def _is_iterator(value: Any) -> bool:
    """Batches that are made one by one are no pytree."""
    return isinstance(value, Iterator)


def _need_values(name: str, arguments: dict[str, Any]) -> None:
    for argument, value in arguments.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(value, is_leaf=_is_iterator):
            if isinstance(leaf, Tracer):
                refuse_tracing(name, f"{argument}{jax.tree_util.keystr(path)} is")
    if isinstance(jnp.zeros(()), Tracer):  # in a transformation that traces all operations
        refuse_tracing(name, "the call is")
