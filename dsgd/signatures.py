"""Signatures of public functions and named tuples that read like the source."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, ForwardRef


class _Parameter(inspect.Parameter):
    """A parameter that prints its annotation as in the source, and a default value by its name."""

    __slots__ = ()

    def __str__(self) -> str:
        note = "" if self.annotation is self.empty else f": {_annotation(self.annotation)}"
        end = "" if self.default is self.empty else f"{' = ' if note else '='}{_name(self.default)}"
        star = {self.VAR_POSITIONAL: "*", self.VAR_KEYWORD: "**"}.get(self.kind, "")
        return f"{star}{self.name}{note}{end}"


class _Annotation(str):
    """The text of a result's annotation, which prints without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _annotation(annotation: Any) -> str:
    if isinstance(annotation, ForwardRef):
        return annotation.__forward_arg__
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _name(value: Any) -> str:
    if inspect.isroutine(value):
        return value.__name__
    if hasattr(value, "_fields"):
        return f"{type(value).__name__}({getattr(value, 'name', '...')})"
    return repr(value)


def readable(function: Callable) -> inspect.Signature:
    """Returns the signature of a function. Only its text differs from `inspect.signature`."""
    given = inspect.signature(function)
    result = given.return_annotation
    return given.replace(
        parameters=[
            _Parameter(each.name, each.kind, default=each.default, annotation=each.annotation)
            for each in given.parameters.values()
        ],
        return_annotation=_Annotation(result) if isinstance(result, str) else result,
    )


def simplify(module: str) -> None:
    """Makes the signatures of the named tuples in a module readable."""
    for each in vars(sys.modules[module]).values():
        if inspect.isclass(each) and hasattr(each, "_fields"):
            makers: list[Any] = [each, each.__new__]
            for maker in makers:
                maker.__signature__ = readable(maker)
