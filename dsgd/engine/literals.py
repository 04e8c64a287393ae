"""Numbers that a traced function contains as literals, as arguments of the compiled program.

The learning rate of an optax optimizer is a literal of its `update`, so that each one would be
compiled again. `lift` calls such a function with its literals replaced by elements of an array, an
argument of the program that `programs` adds; runs that differ in these numbers alone then have the
same program. The whole numbers from -2 to 2 remain literals, since most of them are part of a
formula, such as 1 - x, which XLA simplifies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Literal, Var, jaxpr_as_fun

from dsgd.base import PyTree

MOST = 64  # maximum number of lifted numbers in a program; more remain literals


def shape() -> jax.ShapeDtypeStruct:
    """Returns the shape and type of the argument that holds the lifted numbers."""
    return jax.ShapeDtypeStruct((MOST,), jnp.result_type(float))


class Lifted:
    """The numbers that are lifted while a program is traced.

    Args:
        array: the argument of the program, `[MOST]`.
    """

    def __init__(self, array: jax.Array) -> None:
        self._array = array
        self._places: dict[float, int] = {}  # equal numbers share a place

    @property
    def values(self) -> np.ndarray:
        """The values of the argument, `[MOST]`."""
        values = np.zeros(self._array.shape, self._array.dtype)
        values[: len(self._places)] = list(self._places)
        return values

    def lifts(self, value: Any) -> bool:
        """Whether a literal or constant is lifted: it is a floating-point scalar, but no whole
        number from -2 to 2.
        """
        if isinstance(value, Tracer) or np.shape(value):
            return False
        if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
            return False
        number = float(value)
        has_place = number in self._places or len(self._places) < MOST
        formula = number.is_integer() and abs(number) <= 2
        return has_place and math.isfinite(number) and not formula

    def read(self, value: Any, aval: Any) -> jax.Array:
        """Returns a number as an element of the argument, in the type `aval`."""
        place = self._places.setdefault(float(value), len(self._places))
        number = lax.index_in_dim(self._array, place, keepdims=False)
        return lax.convert_element_type(number, float if aval.weak_type else aval.dtype)


_current: ContextVar[Lifted | None] = ContextVar("lifted", default=None)
# The traced program closes over its argument, so JAX's caches of traced functions must not reuse
# it in another program.
_traced = jax.make_user_context(None)


@contextmanager
def lifting(array: jax.Array) -> Iterator[Lifted]:
    """Context in which `lift` replaces literals by elements of an argument of the program."""
    lifted = Lifted(array)
    before = _current.set(lifted)
    try:
        with _traced(object()):
            yield lifted
    finally:
        _current.reset(before)


def lift(function: Callable[..., PyTree], *args: PyTree) -> PyTree:
    """Returns `function(*args)`. In a compiled program, floating-point scalars in the function that
    do not depend on its arguments are arguments of the program, except whole numbers from -2 to 2
    and those inside loops, branches and other nested functions.

    Args:
        function: function of pytrees of arrays.
        args: pytrees of arrays.
    """
    lifted = _current.get()
    if lifted is None:
        return function(*args)
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    jaxpr, variables, numbers = closed.jaxpr, list[Var](), list[jax.Array]()

    def replace(operand):
        if not (isinstance(operand, Literal) and lifted.lifts(operand.val)):
            return operand
        variables.append(Var(operand.aval))
        numbers.append(lifted.read(operand.val, operand.aval))
        return variables[-1]

    equations = [
        equation.replace(invars=[replace(operand) for operand in equation.invars])
        for equation in jaxpr.eqns
    ]
    outputs = [replace(operand) for operand in jaxpr.outvars]
    constants = [
        lifted.read(value, variable.aval) if lifted.lifts(value) else value
        for variable, value in zip(jaxpr.constvars, closed.consts, strict=True)
    ]
    general = jaxpr.replace(
        constvars=[*jaxpr.constvars, *variables], eqns=equations, outvars=outputs
    )
    leaves = jaxpr_as_fun(ClosedJaxpr(general, [*constants, *numbers]))(*jax.tree.leaves(args))
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)
