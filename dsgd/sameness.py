"""Equality of objects, for caches. Users' objects need not be hashable or comparable."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

_END = 32  # elements; a problem has a number for each of its workers, of which there may be many


def same(one: Any, other: Any) -> bool:
    """Whether two objects are equal.

    If comparing them fails, or does not return a bool (as for arrays), it is whether they are the
    same object.
    """
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Mapping):
        return len(one) == len(other) and all(
            key in other and same(one[key], other[key]) for key in one
        )
    if isinstance(one, functools.partial):
        return same((one.func, one.args, one.keywords), (other.func, other.args, other.keywords))
    try:
        equal = one == other
        return bool(equal) if isinstance(equal, bool) else False
    except Exception:  # an object's own comparison may raise anything
        return False


def hash_value(value: Any) -> int:
    """Returns a hash that is equal for objects that are the `same`. For unhashable objects it is
    the hash of the type; of long sequences, only both ends are read.
    """
    if isinstance(value, tuple | list):
        ends = value if len(value) <= 2 * _END else (*value[:_END], *value[-_END:])
        return hash((type(value), len(value), *map(hash_value, ends)))
    if isinstance(value, Mapping):
        return hash((type(value), len(value)))
    if isinstance(value, functools.partial):
        return hash_value((value.func, value.args))
    try:
        return hash(value)
    except Exception:
        return hash(type(value))


class Key:
    """A wrapper that makes any object a dictionary key. Two keys are equal if their objects are the
    `same`.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value: Any = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and same(self.value, other.value)

    def __hash__(self) -> int:
        return hash_value(self.value)


class Compared:
    """Base class of frozen dataclasses (with eq=False) whose fields are compared by `same`.

    JAX also caches traces by the equality of functions.
    """

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and same(_fields(self), _fields(other))

    def __hash__(self) -> int:
        return hash((type(self), hash_value(_fields(self))))


def _fields(value: Any) -> tuple[Any, ...]:
    return tuple(getattr(value, field.name) for field in dataclasses.fields(value))
