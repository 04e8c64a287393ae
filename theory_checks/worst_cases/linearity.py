"""Derives from a jaxpr which of its outputs are affine functions of given inputs.

Each value of the program is *constant*, if it does not depend on the inputs; *affine*; or the
description of the first operation that is not affine. Loops are followed to the fixed point of
their carry. Operations that do not affect an output, such as those of diagnostics, do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Jaxpr, Literal, jaxprs_in_params

from dsgd.contract import collectives

Kind = bool | str
"""False: constant; True: affine; otherwise the operation that is not affine."""

_CALLS = {
    *("jit", "pjit", "shard_map", "checkpoint", "closed_call", "core_call"),
    *("custom_jvp_call", "custom_vjp_call", "custom_vmap_call"),
}
_LINEAR = {
    *("add", "add_any", "sub", "neg", "copy", "name", "optimization_barrier", "device_put"),
    *("reduce_sum", "cumsum", "concatenate", "stack", "unstack", "tile", "pad", "split", "slice"),
    *("rev", "reshape", "broadcast_in_dim", "squeeze", "expand_dims", "transpose"),
    *("psum", "psum_invariant", "all_gather", "all_gather_invariant", "all_to_all", "ppermute"),
    *("reduce_scatter", "pvary", "pbroadcast", "sharding_constraint"),
}
_BILINEAR = {"mul", "dot_general", "conv_general_dilated"}
_GIVEN = {
    "div": (1,),
    "select_n": (0,),
    "gather": (1,),
    "dynamic_slice": slice(1, None),
    "dynamic_update_slice": slice(2, None),
    "scatter": (1,),
    "scatter-add": (1,),
    "scatter-sub": (1,),
}
"""Operations that are linear if these operands are constant."""


def outputs(jaxpr: Jaxpr, inputs: Sequence[Kind], place: str = "") -> list[Kind]:
    """Returns the kinds of a program's outputs.

    Args:
        jaxpr: the program; its constants are constant.
        inputs: kinds of its inputs.
        place: source line of the call of the program.
    """
    known = dict(zip(jaxpr.invars, inputs, strict=True))

    def kinds(atoms):
        return [False if isinstance(a, Literal) else known.get(a, False) for a in atoms]

    for equation in jaxpr.eqns:
        given = kinds(equation.invars)
        known.update(zip(equation.outvars, _results(equation, given, place), strict=True))
    return kinds(jaxpr.outvars)


def _results(equation: Any, given: list[Kind], around: str) -> list[Kind]:
    """Returns the kinds of an operation's results."""
    name, params = equation.primitive.name, equation.params
    place = collectives.place(equation.source_info) or around
    count, kind = len(equation.outvars), _join(given)
    if kind is False:
        return [False] * count
    if name in _CALLS:
        (inner,) = jaxprs_in_params(params)
        return outputs(inner, given, place)
    if name == "scan":
        return _scan_results(params, given, place)
    if name == "while":
        return _while_results(params, given, place)
    if name == "cond":
        index, *operands = given
        # All platforms compute the same; the default form is the simplest.
        chosen = [
            branch
            for branch, platforms in zip(
                params["branches"],
                params.get("branches_platforms") or [None] * len(params["branches"]),
                strict=True,
            )
            if platforms is None
        ]
        branches = [outputs(branch.jaxpr, operands, place) for branch in chosen]
        results = [_join(each) for each in zip(*branches, strict=True)]
        return results if index is False else [_describe(index, name, place)] * count
    if kind is True and not _is_linear(equation, given):
        kind = _describe(kind, name, place)
    return [kind] * count


def _scan_results(params: dict[str, Any], given: list[Kind], place: str) -> list[Kind]:
    first, last = params["num_consts"], params["num_consts"] + params["num_carry"]

    def body(carry):
        return outputs(params["jaxpr"].jaxpr, [*given[:first], *carry, *given[last:]], place)

    carry = _fixed_point(body, given[first:last])
    return [*carry, *body(carry)[last - first :]]


def _while_results(params: dict[str, Any], given: list[Kind], place: str) -> list[Kind]:
    of_condition = params["cond_nconsts"]
    first = of_condition + params["body_nconsts"]
    constants = given[of_condition:first]
    carry = _fixed_point(
        lambda carry: outputs(params["body_jaxpr"].jaxpr, [*constants, *carry], place),
        given[first:],
    )
    (goes_on,) = outputs(params["cond_jaxpr"].jaxpr, [*given[:of_condition], *carry], place)
    return carry if goes_on is False else [_describe(goes_on, "while", place)] * len(carry)


def _fixed_point(body: Any, carry: list[Kind]) -> list[Kind]:
    while True:
        following = [_join(pair) for pair in zip(carry, body(carry), strict=False)]
        if following == carry:
            return carry
        carry = following


def _is_linear(equation: Any, given: list[Kind]) -> bool:
    """Whether an operation is linear in those of its operands that are not constant."""
    name = equation.primitive.name
    if name in _LINEAR:
        return True
    if name in _BILINEAR:
        return sum(map(bool, given)) == 1
    if name == "convert_element_type":
        new, old = (each.aval.dtype for each in (equation.outvars[0], equation.invars[0]))
        # A type with fewer digits rounds.
        exact = jnp.issubdtype(new, jnp.floating) and jnp.finfo(new).eps <= jnp.finfo(old).eps
        return bool(exact)
    if name == "integer_pow":
        return equation.params["y"] == 1
    if name == "reduce_precision":
        digits = jnp.finfo(equation.invars[0].aval.dtype).nmant
        return equation.params["mantissa_bits"] >= digits - 1  # rounded as sums are
    constant = _GIVEN.get(name)
    if constant is None:
        return False
    chosen = given[constant] if isinstance(constant, slice) else [given[i] for i in constant]
    return not any(chosen)


def _describe(kind: Kind, name: str, place: str) -> str:
    return kind if isinstance(kind, str) else f"{name} {place}".rstrip()


def _join(kinds: Sequence[Kind]) -> Kind:
    """Returns the kind of a value that depends on all of these."""
    return next((kind for kind in kinds if isinstance(kind, str)), any(kinds))
