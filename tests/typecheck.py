"""Checks of annotations under pytest: by beartype, for which an int is a float, as in PEP 484.

jaxtyping's hook wraps every function, which costs a tenth of the time of all tests, because methods
are closures that are built for every trace. Here functions without annotations are not wrapped, and
functions without shapes have only beartype's wrapper.
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


def _wrap(made: Any = None, *, typechecker: Callable) -> Any:
    if made is None:
        return functools.partial(_wrap, typechecker=typechecker)
    if not inspect.isfunction(made) or _names_shapes(made):
        return _with_shapes(made, typechecker=typechecker)
    return check(made) if made.__annotations__ else made


def _names_shapes(function: Callable) -> bool:
    """Returns whether an annotation names shapes, or cannot be read, which jaxtyping accepts."""
    try:
        get_type_hints(function)
    except NameError:  # names that only type checkers import
        return True
    return any("[Array, " in str(annotation) for annotation in function.__annotations__.values())


jaxtyping.jaxtyped = _wrap  # affects later imports
