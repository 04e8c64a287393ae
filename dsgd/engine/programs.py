"""Compiled programs, shared by all functions that lower to the same text.

A method consists of closures, and two calls of its factory are different functions to `jax.jit`,
which would compile both, for example if a notebook cell is run twice. Here a program is identified
by what it computes. Running the same method again takes a look-up, an equal method a trace and a
lowering (tenths of a second), and only a different computation is compiled (seconds).

Only the most recently used programs are kept. A compiled program holds about 150 memory maps, of
which Linux allows a process 65,530.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np

from dsgd import modes, sameness
from dsgd.engine import cache, literals

MOST = 64  # maximum number of programs, and of traced functions, that are kept


class _Latest(OrderedDict[Hashable, Any]):
    """A dictionary of the most recently used values."""

    def find(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Returns the value of the key; calls `make` if there is none."""
        if key not in self:
            self[key] = make()
        self.move_to_end(key)
        while len(self) > MOST:
            self.popitem(last=False)
        return self[key]


# JAX keeps compiled programs for as long as the function that it traced exists. Each plan has its
# own function, which can be dropped.
_functions = _Latest()  # by function and plan
_contents: WeakKeyDictionary[Any, Hashable] = WeakKeyDictionary()  # by trace
_numbers: WeakKeyDictionary[Any, np.ndarray] = WeakKeyDictionary()  # by trace
_texts: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # by trace
_programs = _Latest()  # by content
_compiled = 0
_forms: dict[bytes, bytes] = {}  # hash of the first program's text, by that without numbers
_suggested = list[bytes]()  # the form for which `dsgd.sweep` was suggested
_log = logging.getLogger(__name__)
_NUMBER = re.compile(r"dense<-?\d[\d.]*[.E][^>]*> : tensor<b?f\d+>")  # scalar constants
_LAYOUT = re.compile(r"#sdy\.sharding<@mesh, \[[^]]*\]>")


def call(function: Callable, plan: Any, *args: Any, donate: tuple[int, ...] = ()) -> Any:
    """Returns `function(plan, *args)`. Each lowered program is compiled once, as long as it is
    among the `MOST` most recently used programs.

    Args:
        function: function of the plan and of arrays.
        plan: static and hashable, with an attribute `mesh`; the plan of a run also has `runs`.
        args: arrays.
        donate: positions in `args` of arrays that are donated.
    """
    with _no_garbage():
        traced, numbers = _trace(traceable(function, plan, donate), args)
        lowered = None
        if traced.jaxpr not in _contents:
            if (
                len(traced.jaxpr.in_avals) > len(jax.tree.leaves(args)) + 1
                and not _constants_are_left_out()
            ):
                modes.refuse_tracing("run", "a value that the method or the problem uses is", "")
            lowered = traced.lower()
            _contents[traced.jaxpr] = _content(lowered, plan.mesh)
    content = _contents[traced.jaxpr]
    compiled = _programs.find(content, lambda: _compile(lowered or traced.lower(), plan))
    return compiled(*args, numbers)


def traceable(function: Callable, plan: Any, donate: tuple[int, ...] = ()) -> Any:
    """Returns the function of arrays alone that `call` traces, a `jax.jit`; arguments as in
    `call`. Its last argument are the lifted numbers, `literals.SHAPE`.
    """
    return _functions.find(
        sameness.Key((function, plan)),
        lambda: jax.jit(_Lifting(function, plan), donate_argnums=donate),
    )


class _Lifting:
    """`function(plan, *args)` as a function of arrays: args, and the lifted numbers.

    Attributes:
        values: the lifted numbers of the latest trace.
    """

    def __init__(self, function: Callable, plan: Any) -> None:
        self._function, self._plan = function, plan
        self.values = np.empty(0)

    def __call__(self, *args: Any) -> Any:
        with literals.lifting(args[-1]) as lifted:
            result = self._function(self._plan, *args[:-1])
        self.values = lifted.values
        return result


def _trace(traceable: Any, args: Sequence[Any]) -> tuple[Any, np.ndarray]:
    """Returns the trace of the function, and the values of its lifted numbers."""
    traced = traceable.trace(*args, literals.shape())
    if traced.jaxpr not in _numbers:  # otherwise JAX returned an earlier trace
        _numbers[traced.jaxpr] = traceable.__wrapped__.values
    return traced, _numbers[traced.jaxpr]


def compile_alone(function: Callable, plan: Any, *shapes: Any) -> Any:
    """Returns the compiled program of `function(plan, *args)`, which is not kept; arguments as in
    `text`.
    """
    return jax.jit(partial(function, plan)).lower(*shapes).compile()


def text(function: Callable, plan: Any, *shapes: Any) -> str:
    """Returns the lowered text of `function(plan, *args)`, with its lifted numbers. It is the same
    in every process with the same version of JAX and kind of device.

    Args:
        function, plan: as in `call`.
        shapes: shapes and types of the arrays.

    Raises:
        ValueError: if JAX is configured to leave constants out of the text.
    """
    if _constants_are_left_out():
        raise ValueError(
            "checkpoints: with jax_use_simplified_jaxpr_constants, the text of a program lacks its "
            "constants; expected the flag to be off"
        )
    with _no_garbage():
        traced, numbers = _trace(traceable(function, plan), shapes)
        if traced.jaxpr not in _texts:
            _texts[traced.jaxpr] = f"{traced.lower().as_text()}{numbers.tolist()}"
    return _texts[traced.jaxpr]


def count_compiled() -> int:
    """Returns how many programs have been compiled so far."""
    return _compiled


def count_kept() -> int:
    """Returns how many programs are kept."""
    return len(_programs)


def clear() -> None:
    """Drops all programs."""
    for memory in (_functions, _contents, _numbers, _texts, _programs, _forms):
        memory.clear()


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Context in which Python's garbage collector is off. Traced objects stay alive, and scanning
    them repeatedly would take as long as lowering the program.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _compile(lowered: Any, plan: Any) -> Callable:
    global _compiled  # noqa: PLW0603 (a count for tests, like the programs, which are global)
    _compiled += 1
    if _compiled == 1:
        cache.enable()
    if getattr(plan, "runs", 2) < 2:  # neither a sweep nor a replay
        _suggest_sweep(lowered.as_text())
    return lowered.compile()


def _suggest_sweep(text: str) -> None:
    """Logs once in a process that a program differs from an earlier one in numbers only. Equal
    texts, of programs that differ in the structure of their arguments, do not count.
    """
    form, whole = (hashlib.sha256(each.encode()).digest() for each in (_NUMBER.sub("", text), text))
    if _forms.setdefault(form, whole) != whole and not _suggested:
        _suggested.append(form)
        _log.warning(
            "dsgd: a run that differs from an earlier one in numbers only is compiled again; "
            "dsgd.sweep compiles one program for all values of a hyperparameter"
        )


def _content(lowered: Any, mesh: Any) -> Hashable:
    """Returns what identifies a program: equal programs have equal contents."""
    if _constants_are_left_out():
        return object()
    text = lowered.as_text()
    if mesh.size == 1:  # all layouts are equal, and JAX writes the one that was given
        text = _LAYOUT.sub("", text)
    text = hashlib.sha256(text.encode()).hexdigest()
    # The text leaves out unused arguments and the types of keys.
    leaves, structure = jax.tree.flatten(lowered.args_info)
    shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
    return text, structure, shapes, jax.tree.structure(lowered.out_info), mesh


def _constants_are_left_out() -> bool:
    """Whether constants are arguments of programs, so that the text lacks their values."""
    return getattr(jax.config, "jax_use_simplified_jaxpr_constants", False)
