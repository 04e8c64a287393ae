"""Calls from compiled programs to functions of this process.

A compiled program is shared by all runs that lower to the same text, so it must not contain the
object that a call is for, such as the store of one run. It has the object's number as an argument,
and the call looks the object up.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dsgd.base import PyTree

_objects = WeakValueDictionary[int, Any]()
_numbers = itertools.count(1)
# The functions are called in this thread, since the threads of XLA's callbacks crash if they call
# JAX, as users' functions may: objects of JAX in their thread-local storage outlive their state.
_thread = ThreadPoolExecutor(1, "dsgd-host")
errors: list[Exception] = []  # of functions that programs called; the programs went on with zeros


def raise_error() -> None:
    """Raises the first error of a function since the last call."""
    if errors:
        first, *_ = errors
        errors.clear()
        raise first


def number(thing: Any) -> int:
    """Returns a number by which `call` finds the object, as long as the object exists."""
    new = next(_numbers)
    _objects[new] = thing
    return new


def call(function: Callable, shapes: PyTree, of: jax.Array, *args: Any) -> PyTree:
    """Returns `function(object, *args)` with numpy arrays, called while the program runs.

    XLA may call it twice for the same arguments, or not at all if the result is not used. A
    function that changes the object must have the same effect and result if it is called again.

    Args:
        function: a function of a module, the same for all programs.
        shapes: shapes and types of the result.
        of: `number(object)`, int32 scalar.
        args: arrays. In a program that is mapped over runs, the function is called for each run.
    """
    sent = jax.tree.map(_halves, (of, *args))
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (of, *args))
    result = jax.pure_callback(
        _EachRun(function, like, shapes),
        jax.eval_shape(partial(jax.tree.map, _halves), shapes),
        *sent,
        vmap_method="broadcast_all",
    )
    return jax.tree.map(_whole, result, shapes)


def _halves(leaf: jax.Array) -> jax.Array:
    """Returns a 64-bit array as pairs of 32-bit numbers. JAX calls functions in a thread in which
    64-bit types are off, unless they are on for the whole process.
    """
    wide = leaf.dtype.itemsize == 8
    return lax.bitcast_convert_type(leaf, jnp.uint32) if wide else leaf


def _whole(leaf: jax.Array, like: jax.ShapeDtypeStruct) -> jax.Array:
    return lax.bitcast_convert_type(leaf, like.dtype) if leaf.dtype != like.dtype else leaf


@dataclass(frozen=True, eq=False)
class _EachRun:
    """The function for arguments with leading axes of runs.

    Args:
        function: the function.
        args, shapes: shapes of the arguments and of the result of one run.
    """

    function: Callable
    args: PyTree
    shapes: PyTree

    def __call__(self, of: Any, *args: Any) -> PyTree:
        of = np.asarray(of)
        given = jax.tree.map(self._from_halves, args, self.args[1:])
        results = _thread.submit(self._all, of, given).result()
        if not of.ndim:
            return results[0]
        return jax.tree.map(
            lambda *rows: np.stack(rows).reshape(*of.shape, *rows[0].shape), *results
        )

    def _all(self, of: np.ndarray, args: PyTree) -> list[PyTree]:
        return [self._one(of, args, run) for run in np.ndindex(of.shape)]

    def _one(self, of: np.ndarray, args: PyTree, run: tuple[int, ...]) -> PyTree:
        mine = jax.tree.map(lambda leaf: leaf[run], args)
        try:
            result = self.function(_objects[int(of[run])], *mine)
        except Exception as error:  # it may be of any kind, since users' functions are called
            if not isinstance(error, ValueError):  # these say themselves where they are from
                error.add_note(traceback.format_tb(error.__traceback__)[-1])
            # Its frames would keep arrays of the program after their memory was released.
            errors.append(error.with_traceback(None))
            result = jax.tree.map(lambda like: np.zeros(like.shape, like.dtype), self.shapes)
        return jax.tree.map(_to_halves, result, self.shapes)

    @staticmethod
    def _from_halves(leaf: Any, like: jax.ShapeDtypeStruct) -> np.ndarray:
        array = np.asarray(leaf, order="C")
        return array if array.dtype == like.dtype else array.view(like.dtype)[..., 0]


def _to_halves(leaf: Any, like: jax.ShapeDtypeStruct) -> np.ndarray:
    array = np.asarray(leaf, like.dtype, order="C")
    if like.dtype.itemsize < 8:
        return array
    return array.reshape(*array.shape, 1).view(np.uint32)
