"""How annotations are checked under pytest: by beartype, where an int is a float, as in PEP 484.

jaxtyping's hook wraps every function, with what costs a tenth of all tests: methods are closures,
made anew for every trace. What has no annotation is left as it is here, and what names no shapes
has beartype's wrapper alone.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
_with_shapes = jaxtyping.jaxtyped


def _jaxtyped(made: Any = None, *, typechecker: Callable) -> Any:
    if made is None:
        return functools.partial(_jaxtyped, typechecker=typechecker)
    if not inspect.isfunction(made) or _names_shapes(made):
        return _with_shapes(made, typechecker=typechecker)
    return check(made) if made.__annotations__ else made


def _names_shapes(function: Callable) -> bool:
    """Whether an annotation does, or cannot be read, which jaxtyping forgives."""
    try:
        get_type_hints(function)
    except NameError:  # of what only type checkers import
        return True
    return any("[Array, " in str(annotation) for annotation in function.__annotations__.values())


jaxtyping.jaxtyped = _jaxtyped  # of what is imported from now on
