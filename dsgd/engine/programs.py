"""Compiled programs, shared by all that lower to the same text.

A method is made of closures, and two calls of its factory are different to `jax.jit`, which would
compile both: a notebook cell that runs twice, or each method of a test. Here a program is found by
what it computes. The same method again costs a look-up, an equal one a trace and a lowering (tenths
of a second), and only new mathematics a compilation (seconds).

Only the latest are kept. A compiled program holds some 150 maps of memory, of which Linux allows a
process 65,530.
"""

from __future__ import annotations

import gc
import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import jax

from dsgd import modes, sameness, xla

MOST = 64  # that are kept, of programs and of traced functions


class _Latest(OrderedDict[Hashable, Any]):
    """What was used last."""

    def find(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The value of that key, made if it is not there."""
        if key not in self:
            self[key] = make()
        self.move_to_end(key)
        while len(self) > MOST:
            self.popitem(last=False)
        return self[key]


# JAX keeps what it has compiled as long as the function that it traced: so each plan has its own,
# which can be forgotten.
_functions = _Latest()  # by function and plan
_contents: WeakKeyDictionary[Any, Hashable] = WeakKeyDictionary()  # by trace
_texts: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # by trace
_programs = _Latest()  # by content
_compiled = 0
_LAYOUT = re.compile(r"#sdy\.sharding<@mesh, \[[^]]*\]>")


def call(function: Callable, plan: Any, *args: Any, donate: tuple[int, ...] = ()) -> Any:
    """`function(plan, *args)`, compiled once for each lowered program, as long as it is among the
    `MOST` used last.

    Args:
        function: of the plan and of arrays.
        plan: static and hashable, with a `mesh`.
        args: arrays.
        donate: which of the arrays' places are donated.
    """
    platform = plan.mesh.devices.flat[0].platform
    with _no_garbage():
        traced = traceable(function, plan, donate).trace(*args)
        lowered = None
        if traced.jaxpr not in _contents:
            if (
                len(traced.jaxpr.in_avals) > len(jax.tree.leaves(args))
                and not _constants_are_left_out()
            ):
                modes.refuse_tracing("run", "a value that the method or the problem uses is")
            lowered = xla.lower(traced, platform)
            _contents[traced.jaxpr] = _content(lowered, plan.mesh)
    return _programs.find(
        _contents[traced.jaxpr], lambda: _compile(lowered or xla.lower(traced, platform))
    )(*args)


def traceable(function: Callable, plan: Any, donate: tuple[int, ...] = ()) -> Any:
    """The function of arrays alone that `call` traces, of `jax.jit`. Arguments as there."""
    return _functions.find(
        sameness.Key((function, plan)),
        lambda: jax.jit(partial(function, plan), donate_argnums=donate),
    )


def text(function: Callable, plan: Any, *shapes: Any) -> str:
    """What `function(plan, *args)` computes, lowered but not compiled: the same in every process
    with this JAX and kind of device.

    Args:
        function, plan: as in `call`.
        shapes: of the arrays.

    Raises:
        ValueError: JAX is told to keep constants out of the text.
    """
    if _constants_are_left_out():
        raise ValueError(
            "with jax_use_simplified_jaxpr_constants, a program's text lacks its constants: need "
            "the flag off for checkpoints"
        )
    with _no_garbage():
        traced = traceable(function, plan).trace(*shapes)
        if traced.jaxpr not in _texts:
            _texts[traced.jaxpr] = traced.lower().as_text()
    return _texts[traced.jaxpr]


def compiled() -> int:
    """How many programs have been compiled so far."""
    return _compiled


def kept() -> int:
    """How many there are now."""
    return len(_programs)


def clear() -> None:
    """Forgets them all."""
    for memory in (_functions, _contents, _texts, _programs):
        memory.clear()


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Python's collector waits: what is traced lives on, and to look through it again and again
    takes as long as to lower it.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _compile(lowered: Any) -> Callable:
    global _compiled  # noqa: PLW0603 (a count for tests, beside the programs, which are global, too)
    _compiled += 1
    return lowered.compile()


def _content(lowered: Any, mesh: Any) -> Hashable:
    if _constants_are_left_out():
        return object()
    text = lowered.as_text()
    if mesh.size == 1:  # all layouts are one, and JAX writes that of a result as it was given
        text = _LAYOUT.sub("", text)
    text = hashlib.sha256(text.encode()).hexdigest()
    # The text leaves out arguments that are not used, and the types of keys.
    leaves, structure = jax.tree.flatten(lowered.args_info)
    shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
    return text, structure, shapes, jax.tree.structure(lowered.out_info), mesh


def _constants_are_left_out() -> bool:
    """With this flag constants are arguments, and the text does not hold their values."""
    return getattr(jax.config, "jax_use_simplified_jaxpr_constants", False)
