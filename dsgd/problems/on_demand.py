"""Numbers that are computed when they are first read."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any


class OnDemand:
    """A function without arguments that is called once and keeps its result. Unlike a function of
    `functools.cache`, it can be sent to another process.

    Args:
        function: called with `args`.
        args: its arguments.
    """

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.function: Callable[..., Any] = function
        self.args: tuple[Any, ...] = args

    @cached_property
    def result(self) -> Any:
        return self.function(*self.args)

    def __call__(self) -> Any:
        return self.result
