"""Choice of a compressor for each layer within a budget of bits: the same for all layers (Kimad),
or a separate one for each (Kimad+).

    # errors and sizes are [layers, choices]; returns the choice of each layer, int32 [layers]
    allocation.allocate(errors, sizes, budget=1e6)

Bits are exact uint32 numbers, so rounding never takes a message over its budget. All arguments
except the resolution may be traced. Traced values cannot be validated: values out of range are
clipped, and if not even the smallest choices fit, the smallest choices are returned.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from numpy.typing import ArrayLike

from dsgd import checks
from dsgd.compressors.sizes import wide

MOST = np.iinfo(np.uint32).max  # largest total number of bits
FINEST = 2**16 - 1  # largest number of units of a budget; its square is below 2^32

Table = Annotated[ArrayLike | jax.Array, "numbers [layers, choices]"]
Bits = Annotated[ArrayLike | jax.Array | float, "a number of bits, at least 0"]


@checks.arguments
def allocate(errors: Table, sizes: Table, budget: Bits, resolution: int = 1000) -> jax.Array:
    r"""Returns the choice of each layer that minimizes the total error such that the total size is
    within the budget (Kimad+).

    $$ \min_{j_1, \dots, j_l} \sum_i \varepsilon_{i j_i} \quad \text{subject to} \quad \sum_i b_{i
    j_i} \le c \quad \text{(3)} $$

    by dynamic programming over R units of the budget, with sizes rounded up to whole units:

    $$ F_i(b) = \min_j F_{i-1}(b - w_{ij}) + \varepsilon_{ij}, \qquad F_0 = 0, \qquad w_{ij} =
    \lceil b_{ij} R / c \rceil $$

    The total error is at most the minimum for the budget $c (1 - l / R)$, and never above that of
    `uniform`. If the choices with the least error of every layer fit, the result has this
    error. All of this holds up to rounding, in the errors' own precision, of the differences
    between the errors and their layer's least error.

    Args:
        errors: $\varepsilon$, error of each layer with each choice, `[layers, choices]`, at least
            0. Infinite errors (and NaN, if traced) count as equal, and as larger than all others.
        sizes: b, integer numbers of bits, `[layers, choices]`, in any order. The sum over layers of
            the largest size must be less than 2^32.
        budget: c, bits; rounded down to an integer; infinity: no limit.
        resolution: R, 1 to 65,535.

    Returns:
        The choice of each layer, int32 `[layers]`. If budget or sizes are traced, and the budget is
        too small for the smallest choice of every layer, the smallest choices, which exceed the
        budget.

    Raises:
        ValueError: if errors and sizes are not both `[layers, choices]` with at least one of each,
            errors are negative or NaN, sizes are negative, not integers or too large, the budget is
            negative, NaN or less than the smallest choices need, or the resolution is not in 1 to
            65,535.

    Source: Xin et al., "Kimad: Adaptive gradient compression with bandwidth awareness", section 3.2
    and algorithm 4. Departure: the paper also rounds the errors, and its algorithm overwrites the
    first layer.
    """
    R = checks.positive_int("allocate: resolution", resolution)
    if R > FINEST:
        raise ValueError(
            f"allocate: resolution = {R:,}; expected at most {FINEST:,}, because its square is "
            "computed in 32 bits"
        )
    given = _validate("allocate", errors, sizes, budget)
    if _is_concrete(given.sizes, given.budget):
        _require_room(
            "allocate",
            given.budget,
            given.sizes.min(axis=1).sum(dtype=np.uint32),
            "the smallest choice of every layer",
        )
    return _best(_regrets(given.errors), given.sizes, given.budget, R)


@checks.arguments
def uniform(errors: Table, sizes: Table, budget: Bits) -> jax.Array:
    r"""Returns the same choice for all layers: the one with the least total error within the budget
    (Kimad); among equal ones, the smallest.

    $$ \min_j \sum_i \varepsilon_{ij} \quad \text{subject to} \quad \sum_i b_{ij} \le c $$

    Args:
        errors: $\varepsilon$, see `allocate`.
        sizes: b, see `allocate`.
        budget: c, see `allocate`.

    Returns:
        This choice for every layer, int32 `[layers]`. If budget or sizes are traced, and the budget
        is too small for every choice, the smallest choice, which exceeds the budget.

    Raises:
        ValueError: see `allocate`; also if the budget is less than the smallest choice needs.

    Source: Xin et al., "Kimad: Adaptive gradient compression with bandwidth awareness", section
    3.1.
    """
    given = _validate("uniform", errors, sizes, budget)
    if _is_concrete(given.sizes, given.budget):
        _require_room(
            "uniform",
            given.budget,
            given.sizes.sum(axis=0, dtype=np.uint32).min(),
            "the smallest choice for all layers",
        )
    return _best_single(_regrets(given.errors), jnp.asarray(given.sizes), jnp.asarray(given.budget))


def count_units(sizes: jax.Array, budget: jax.Array, R: int) -> jax.Array:
    r"""Returns sizes in units of 1/R of the budget, rounded up, int32; R + 1 for sizes above the
    budget.

    Computes $\lceil s R / c \rceil$ exactly, without integers of more than 32 bits. For integers,
    $w \ge s R / c$ is equivalent to $s \le \lfloor w c / R \rfloor$, so the function finds the
    least such w. With c = q R + r the right side is $w q + \lfloor w r / R \rfloor$: both terms are
    at most c, and $w r < R^2 < 2^{32}$. The search starts from s R / c in float32, which has five
    roundings, each with a relative error of at most 2^-22; the total error is less than 0.1 for R <
    2^16. Therefore its integer part minus 1 is at most w and at least w - 3.

    Args:
        sizes: s, uint32.
        budget: c, uint32 scalar.
        R: at most `FINEST`.
    """
    q, r = budget // np.uint32(R), budget % np.uint32(R)
    within = jnp.minimum(sizes, budget).astype(jnp.float32) / jnp.maximum(budget, 1).astype(
        jnp.float32
    )
    units = jnp.maximum(jnp.floor(within * R) - 1, 0).astype(jnp.uint32)
    for _ in range(3):
        units += (units * q + units * r // np.uint32(R) < sizes).astype(jnp.uint32)
    return jnp.where(sizes <= budget, units, np.uint32(R + 1)).astype(jnp.int32)


# `inline` makes it part of the caller's program; called on its own it is one program.
@partial(jax.jit, static_argnames="R", inline=True)
def _best(errors: jax.Array, sizes: jax.Array, budget: jax.Array, R: int) -> jax.Array:
    """Returns the best candidate. All candidates are compared with the budget in exact integers,
    and with each other by sums in the same order. If none fits, the first (smallest) is returned.
    """
    smallest = _least(sizes, errors)
    others = (
        _best_single(errors, sizes, budget),
        _least(errors, sizes),
        _knapsack(errors, count_units(sizes, budget, R), R),
    )
    choices = jnp.stack([smallest, *others])
    chosen_errors, chosen_sizes = (
        jnp.take_along_axis(table[None], choices[:, :, None], axis=2)[:, :, 0]
        for table in (errors, sizes)
    )
    fits = jnp.sum(chosen_sizes, axis=1, dtype=jnp.uint32) <= budget
    return choices[jnp.argmin(jnp.where(fits, jnp.sum(chosen_errors, axis=1), jnp.inf))]


def _knapsack(errors: jax.Array, units: jax.Array, R: int) -> jax.Array:
    """Returns the choices with the least error whose units add up to at most R, int32 `[layers]`;
    arbitrary ones if there are none.

    F is computed layer by layer, with each choice as a contiguous slice of the previous F, because
    XLA's gathers are slow on CPUs. The backward pass finds the choice that attained the minimum, at
    one entry per layer.
    """
    nothing = jnp.full(R + 1, jnp.inf, errors.dtype)

    def layer(F, of_choices):
        padded = jnp.concatenate([nothing, F])  # negative budgets are infeasible

        def choice(best, one):
            error, w = one
            return jnp.minimum(
                best, lax.dynamic_slice_in_dim(padded, R + 1 - w, R + 1) + error
            ), None

        # unroll=2 is a sixth faster than 1; 16 is not faster than 2
        return lax.scan(choice, nothing, of_choices, unroll=2)[0], F

    def back(b, of_layer):
        F, errors, units = of_layer
        left = b - units
        best = jnp.argmin(jnp.where(left >= 0, F[jnp.maximum(left, 0)], jnp.inf) + errors).astype(
            jnp.int32
        )
        return jnp.maximum(left[best], 0), best

    _, before = lax.scan(layer, jnp.zeros(R + 1, errors.dtype), (errors, units))
    return lax.scan(back, jnp.int32(R), (before, errors, units), reverse=True)[1]


def _best_single(errors: jax.Array, sizes: jax.Array, budget: jax.Array) -> jax.Array:
    """Returns the best single choice, int32 `[layers]`; the smallest if none fits."""
    together = jnp.sum(sizes, axis=0, dtype=jnp.uint32)
    best = _least(jnp.where(together <= budget, jnp.sum(errors, axis=0), jnp.inf), together)
    return jnp.full(sizes.shape[0], best)


def _least(first: jax.Array, second: jax.Array) -> jax.Array:
    """Returns the index along the last axis at which `first` is least, and among equal ones
    `second`, int32.
    """
    best = first == jnp.min(first, axis=-1, keepdims=True)
    rest = jnp.where(best, second, jnp.max(second, axis=-1, keepdims=True))
    return jnp.argmax(best & (rest == jnp.min(rest, axis=-1, keepdims=True)), axis=-1).astype(
        jnp.int32
    )


def _regrets(errors: Any) -> jax.Array:
    """Returns the difference between each choice's error and the least error of its layer, so that
    a large common part does not round away the differences between choices.

    The sums of the result are finite, because the knapsack uses infinity for budgets that are too
    small.
    """
    errors = wide(errors)
    most = np.asarray(jnp.finfo(errors.dtype).max / (2 * errors.shape[0]), errors.dtype)
    finite = jnp.where(errors < most, jnp.maximum(errors, 0), most)  # also replaces NaN
    return finite - jnp.min(finite, axis=1, keepdims=True)


class _Given(NamedTuple):
    """The validated arguments, with sizes and budget as uint32; NumPy arrays unless they are
    traced.
    """

    errors: Any
    sizes: Any
    budget: Any


def _is_concrete(*values: Any) -> bool:
    return not any(isinstance(value, Tracer) for value in values)


def _validate(name: str, errors: Any, sizes: Any, budget: Any) -> _Given:
    errors, sizes = (
        values if isinstance(values, Tracer) else np.asarray(values) for values in (errors, sizes)
    )
    for what, table in (("errors", errors), ("sizes", sizes)):
        if table.ndim != 2 or 0 in table.shape:
            raise ValueError(
                f"{name}: {what} = {checks.kind(table)}; expected numbers [layers, choices], "
                "with at least one of each"
            )
    if errors.shape != sizes.shape:
        raise ValueError(
            f"{name}: errors {list(errors.shape)} for sizes {list(sizes.shape)}; expected the same "
            "shape [layers, choices]"
        )
    if _is_concrete(errors) and not (errors >= 0).all():
        raise ValueError(
            f"{name}: errors contain {errors[~(errors >= 0)][0]}; expected numbers >= 0"
        )
    return _Given(errors, _validated_sizes(name, sizes), _validated_budget(name, budget))


def _validated_sizes(name: str, sizes: Any) -> Any:
    if isinstance(sizes, Tracer):
        if not jnp.issubdtype(sizes.dtype, jnp.integer):
            raise ValueError(
                f"{name}: sizes = {sizes.dtype}{list(sizes.shape)}; expected integers when traced"
            )
        return _cut(sizes)
    whole = np.isfinite(sizes) & (sizes >= 0) & (sizes == np.floor(sizes))
    if not whole.all():
        raise ValueError(
            f"{name}: sizes contain {sizes[~whole][0]}; expected integer numbers of bits >= 0"
        )
    largest = sum(map(int, sizes.max(axis=1)))
    if largest > MOST:
        raise ValueError(
            f"{name}: the largest sizes of all layers add up to {largest:,} bits; expected less "
            "than 2^32, because bits are uint32"
        )
    return sizes.astype(np.uint32)


def _validated_budget(name: str, budget: Any) -> Any:
    if np.ndim(budget):
        raise ValueError(f"{name}: budget = {checks.kind(budget)}; expected one number of bits")
    if not isinstance(budget, Tracer):
        value = budget.item() if hasattr(budget, "item") else budget
        if not value >= 0:
            raise ValueError(f"{name}: budget = {value}; expected a number of bits >= 0")
        return np.uint32(MOST if value >= MOST else math.floor(value))
    if jnp.issubdtype(budget.dtype, jnp.integer):
        return _cut(budget)
    value = wide(budget)
    whole = jnp.where((value >= 0) & (value < 2.0**32), value, 0).astype(jnp.uint32)
    return jnp.where(value >= 2.0**32, np.uint32(MOST), whole)


def _cut(integers: jax.Array) -> jax.Array:
    """Returns traced integers of any type, clipped to uint32."""
    most = np.asarray(min(MOST, jnp.iinfo(integers.dtype).max), integers.dtype)
    return jnp.clip(integers, 0, most).astype(jnp.uint32)


def _require_room(name: str, budget: np.uint32, least: np.uint32, what: str) -> None:
    if budget < least:
        raise ValueError(
            f"{name}: budget = {budget:,} bits; expected at least {least:,}, the size of {what} "
            f"({least - budget:,} bits are missing)"
        )
