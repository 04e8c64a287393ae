"""Compiled programs, shared by all that lower to the same text.

A method is made of closures, and two calls of its factory are different to `jax.jit`, which would compile both: a notebook cell
that runs twice, or each method of a test. Here a program is found by what it computes. The same method again costs a look-up, an equal one
a trace and a lowering (tenths of a second), and only new mathematics a compilation (seconds).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakKeyDictionary

import jax

_by_trace: WeakKeyDictionary[Any, Callable] = WeakKeyDictionary()
_by_content: dict[Hashable, Callable] = {}


def call(function: Any, plan: Any, *args: Any) -> Any:
    """`function(plan, *args)`, compiled once for each lowered program.

    Args:
        function: of `jax.jit`, whose only static argument is the first.
        plan: static and hashable, with a `mesh`.
        args: arrays.
    """
    traced = function.trace(plan, *args)
    if traced.jaxpr not in _by_trace:
        _by_trace[traced.jaxpr] = _program(traced, plan.mesh)
    return _by_trace[traced.jaxpr](*args)


def compiled() -> int:
    """How many programs have been compiled so far."""
    return len(_by_content)


def clear() -> None:
    """Forgets them all."""
    _by_trace.clear()
    _by_content.clear()


def _program(traced: Any, mesh: Any) -> Callable:
    lowered = traced.lower()
    # With this flag constants are arguments, and the text does not hold their values.
    if getattr(jax.config, "jax_use_simplified_jaxpr_constants", False):
        return lowered.compile()
    text = hashlib.sha256(lowered.as_text().encode()).hexdigest()
    # The text leaves out arguments that are not used, and the types of keys.
    leaves, structure = jax.tree.flatten(lowered.args_info)
    shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
    content = (text, structure, shapes, jax.tree.structure(lowered.out_info), mesh)
    if content not in _by_content:
        _by_content[content] = lowered.compile()
    return _by_content[content]
