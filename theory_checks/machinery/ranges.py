"""Ranges of numbers by their names: bounds, step sizes and rates validate their arguments before
they are evaluated.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dsgd import checks

F = TypeVar("F", bound=Callable)


class Range(NamedTuple):
    """A set of numbers and its description in words."""

    holds: Callable[[Any], bool]
    words: str


def _numbers(holds: Callable[[Any], bool], words: str) -> Range:
    return Range(lambda value: checks.is_number(value) and bool(holds(value)), words)


def _each(one: Range) -> Range:
    def holds(values: Any) -> bool:
        return isinstance(values, Sequence) and len(values) > 0 and all(map(one.holds, values))

    return Range(holds, f"a list, each {one.words}")


_POSITIVE = _numbers(lambda x: 0 < x < math.inf, "a positive, finite number")
_NOT_NEGATIVE = _numbers(lambda x: 0 <= x < math.inf, "a finite number, at least 0")
_MOST = 2**63 - 1
_COUNT = Range(
    lambda x: checks.is_integer(x) and 1 <= x <= _MOST,
    "an integer, at least 1 and at most 2^63 - 1",
)
_LISTS = {
    "contractions": _each(_numbers(lambda x: 0 < x <= 1, "in (0, 1]")),
    "layers": _each(_POSITIVE),
    "weights": _each(_POSITIVE),
    "deltas": _each(_POSITIVE),
    "times": _each(_POSITIVE),
    "first": _each(_NOT_NEGATIVE),
}
_NATURAL = Range(
    lambda x: checks.is_integer(x) and 0 <= x <= _MOST,
    "an integer, at least 0 and at most 2^63 - 1",
)
RANGES = {
    **dict.fromkeys(
        (
            "gap",
            "distance",
            "smoothness",
            "rms_smoothness",
            "strong_convexity",
            "total",
            "learning_rate",
            "epsilon",
        ),
        _POSITIVE,
    ),
    **dict.fromkeys(("probability", "shift", "gain"), _numbers(lambda x: 0 < x <= 1, "in (0, 1]")),
    **dict.fromkeys(
        ("bias", "residual"), _numbers(lambda x: 0 <= x < 1, "a number, at least 0, below 1")
    ),
    **dict.fromkeys(
        ("noise", "variance", "heterogeneity", "compression", "omega", "mean_residual"),
        _NOT_NEGATIVE,
    ),
    **dict.fromkeys(("steps", "workers", "batch_size", "samples"), _COUNT),
    **dict.fromkeys(("staleness", "tree_distance", "backups", "pivot"), _NATURAL),
    "rho": _numbers(lambda x: 0 <= x < 1, "a number, at least 0, below 1"),
    "effect": Range(
        lambda effect: all(map(_NOT_NEGATIVE.holds, effect)), "finite numbers, at least 0"
    ),
    "memory": Range(
        lambda memory: all(np.all((part >= 0) & (part < math.inf)) for part in memory),
        "finite numbers, at least 0",
    ),
    "travel": _each(_each(_NOT_NEGATIVE)),
    **_LISTS,
}


def require(where: str, given: Mapping[str, Any]) -> None:
    """Raises a ValueError, which begins with `where`, if a number is outside the range of its name,
    or if lists with one entry for each layer differ in length.
    """
    for name, value in given.items():
        if name in RANGES and not RANGES[name].holds(value):
            raise ValueError(
                f"{where}: {name} = {checks.show(value)}; expected {RANGES[name].words}"
            )
    lengths = {name: len(given[name]) for name in _LISTS if name in given}
    if len(set(lengths.values())) > 1:
        counted = ", ".join(f"{length} {name}" for name, length in lengths.items())
        raise ValueError(f"{where}: {counted}; expected one of each for every layer")


def _to_python(value: Any) -> Any:
    """Converts a number, or each number of a list, to a Python number, and fractions to floats."""
    if type(value) in (list, tuple):
        return type(value)(map(_to_python, value))
    exact = isinstance(value, Fraction) and checks.is_number(value)
    return float(value) if exact else checks.python_number(value)


def _show(given: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} = {checks.show(value)}" for name, value in given.items() if name in RANGES
    )


def validate(where: str) -> Callable[[F], F]:
    """Returns a decorator that validates a function's arguments by `require`. None is accepted if
    it is the default. NumPy numbers are converted to Python numbers, which do not overflow.

    Args:
        where: beginning of the messages.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        absent = {
            name for name, parameter in signature.parameters.items() if parameter.default is None
        }

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            given: dict[str, Any] = bound.arguments
            given.update(
                {name: _to_python(value) for name, value in given.items() if name in RANGES}
            )
            require(
                where,
                {
                    name: value
                    for name, value in given.items()
                    if value is not None or name not in absent
                },
            )
            try:
                return function(*bound.args, **bound.kwargs)
            except (OverflowError, ZeroDivisionError) as error:
                raise ValueError(
                    f"{where}: {_show(given)}: expected numbers whose products are within the "
                    f"range of float64 ({error})"
                ) from error

        return call  # type: ignore[return-value]

    return decorate
