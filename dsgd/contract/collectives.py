"""Collectives of an update that its record does not have, found in its trace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax.extend.core import jaxprs_in_params

from dsgd.communication import MESSAGE, UPDATE
from dsgd.workers import AXIS

_NAMES = {
    "all_gather": "lax.all_gather",
    "all_to_all": "lax.all_to_all",
    "pmax": "lax.pmax",
    "pmin": "lax.pmin",
    "ppermute": "lax.ppermute",
    "psum": "lax.psum",
    "psum_invariant": "lax.psum",
    "ragged_all_to_all": "lax.ragged_all_to_all",
    "reduce_scatter": "lax.psum_scatter",
}
_OURS = Path(__file__).parents[1]


def unrecorded(program: Any) -> list[str]:
    """What an update calls, in words with the place, that sends and is no call of the round.

    Args:
        program: the jaxpr of a round.
    """
    return sorted(set(_found(program.jaxpr, in_update=False)))


def _found(jaxpr: Any, in_update: bool) -> Iterator[str]:
    for equation in jaxpr.eqns:
        scopes = str(equation.source_info.name_stack)
        if MESSAGE in scopes:
            continue
        inside = in_update or UPDATE in scopes
        name = _NAMES.get(equation.primitive.name)
        if inside and name and AXIS in str(equation.params.get("axes", equation.params.get("axis_name"))):
            yield f"{name} {_place(equation.source_info)}".rstrip()
        for inner in jaxprs_in_params(equation.params):
            yield from _found(inner, inside)


def _place(source: Any) -> str:
    """Where it is called: the innermost line that is neither JAX's nor ours."""
    frames = source.traceback.frames if source.traceback else []
    for frame in frames:
        path = Path(frame.file_name)
        if _OURS not in path.parents and Path(jax.__file__).parent not in path.parents:
            return f"({path.name}:{frame.line_num})"
    return ""
