"""Compiled programs, shared by all that lower to the same text.

A method is made of closures, and two calls of its factory are different to `jax.jit`, which would compile both: a notebook cell
that runs twice, or each method of a test. Here a program is found by what it computes. The same method again costs a look-up, an equal one
a trace and a lowering (tenths of a second), and only new mathematics a compilation (seconds).

Only the latest are kept. A compiled program holds some 150 maps of memory, of which Linux allows a process 65,530.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakKeyDictionary

import jax

MOST = 48  # programs that are kept

_contents: WeakKeyDictionary[Any, Hashable] = WeakKeyDictionary()  # by trace
_programs: OrderedDict[Hashable, Callable] = OrderedDict()  # by content, the latest used last
_compiled = 0


def call(function: Any, plan: Any, *args: Any) -> Any:
    """`function(plan, *args)`, compiled once for each lowered program, as long as it is among the `MOST` used last.

    Args:
        function: of `jax.jit`, whose only static argument is the first.
        plan: static and hashable, with a `mesh`.
        args: arrays.
    """
    traced = function.trace(plan, *args)
    content = _contents.get(traced.jaxpr)
    if content not in _programs:
        lowered = traced.lower()
        content = _contents[traced.jaxpr] = _content(lowered, plan.mesh)
        if content not in _programs:
            _keep(content, lowered)
    _programs.move_to_end(content)
    return _programs[content](*args)


def compiled() -> int:
    """How many programs have been compiled so far."""
    return _compiled


def clear() -> None:
    """Forgets them all."""
    _contents.clear()
    _programs.clear()


def _keep(content: Hashable, lowered: Any) -> None:
    global _compiled  # noqa: PLW0603 (a count for tests, beside the programs, which are global, too)
    _programs[content] = lowered.compile()
    _compiled += 1
    while len(_programs) > MOST:
        _programs.popitem(last=False)


def _content(lowered: Any, mesh: Any) -> Hashable:
    # With this flag constants are arguments, and the text does not hold their values.
    if getattr(jax.config, "jax_use_simplified_jaxpr_constants", False):
        return object()
    text = hashlib.sha256(lowered.as_text().encode()).hexdigest()
    # The text leaves out arguments that are not used, and the types of keys.
    leaves, structure = jax.tree.flatten(lowered.args_info)
    shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
    return text, structure, shapes, jax.tree.structure(lowered.out_info), mesh
