"""Finds the collectives of an update that its record does not contain, in its trace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax.extend.core import jaxprs_in_params

from dsgd.communication import MESSAGE, UPDATE
from dsgd.workers import AXIS

_NAMES = {"psum_invariant": "psum", "reduce_scatter": "psum_scatter"}
"""Names in `jax.lax` of primitives that are called differently."""
_SILENT = {"axis_index", "preduced", "pvary", "reduced_vary_cast_p", "vary_unreduced_cast_p"}
"""Primitives that refer to the worker axis but send nothing."""
_OURS = Path(__file__).parents[1]


def find_unrecorded(program: Any) -> list[str]:
    """Returns the collectives of an update that are not part of a recorded call, each with its
    source line.

    Args:
        program: the jaxpr of a round.
    """
    return sorted(set(_find(program.jaxpr, in_update=False)))


def _find(jaxpr: Any, in_update: bool, around: tuple[Any, ...] = ()) -> Iterator[str]:
    """Yields the unrecorded collectives of a jaxpr, each with its source line.

    Args:
        jaxpr: the jaxpr.
        in_update: whether it is part of an update.
        around: sources of the enclosing equations, from the innermost outwards.
    """
    for equation in jaxpr.eqns:
        scopes = str(equation.source_info.name_stack)
        if MESSAGE in scopes:
            continue
        inside = in_update or UPDATE in scopes
        sources = (equation.source_info, *around)
        if inside and _sends(equation):
            name, line = equation.primitive.name, next(filter(None, map(place, sources)), "")
            yield f"lax.{_NAMES.get(name, name)} {line}".rstrip()
        for inner in jaxprs_in_params(equation.params):
            yield from _find(inner, inside, sources)


def _sends(equation: Any) -> bool:
    axes = equation.params.get("axes", equation.params.get("axis_name", ()))
    over_workers = axes == AXIS or (isinstance(axes, tuple) and AXIS in axes)
    return over_workers and equation.primitive.name not in _SILENT


def place(source: Any) -> str:
    """Returns the source line of a call: the innermost one outside of JAX and of this package.

    It is "" if there is none, as in functions that `jax.jit` traces.
    """
    frames = source.traceback.frames if source.traceback else []
    for frame in frames:
        path = Path(frame.file_name)
        if frame.file_name.startswith("<@"):  # a wrapper that a type checker generated
            continue
        if _OURS not in path.parents and Path(jax.__file__).parent not in path.parents:
            return f"({path.name}:{frame.line_num})"
    return ""
