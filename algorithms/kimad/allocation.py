r"""Which compressor each layer gets, of a budget of bits: one for all layers (Kimad), or the best
for each (Kimad+).

    allocation.allocate(errors, sizes, budget=1e6)    # errors and sizes [layers, choices]: which
    choice each layer takes, int32 [layers]

Bits are uint32 and exact: no rounding takes a message over its budget. All arguments but the
resolution may be traced; of traced values nothing can be refused: those out of range are cut to it,
and where not even the smallest choices fit, those are the answer.
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

MOST = np.iinfo(np.uint32).max  # bits in all
FINEST = 2**16 - 1  # units of a budget: their square is below 2^32

Table = Annotated[ArrayLike | jax.Array, "numbers [layers, choices]"]
Bits = Annotated[ArrayLike | jax.Array | float, "a number of bits, at least 0"]


@checks.arguments
def allocate(errors: Table, sizes: Table, budget: Bits, resolution: int = 1000) -> jax.Array:
    r"""The choice of each layer whose errors together are small, and whose sizes together are
    within the budget (Kimad+).

    $$ \min_{j_1, \dots, j_l} \sum_i \varepsilon_{i j_i} \quad \text{subject to} \quad \sum_i b_{i
    j_i} \le c \quad \text{(3)} $$

    by dynamic programming over R units of the budget, sizes rounded up to whole ones:

    $$ F_i(b) = \min_j F_{i-1}(b - w_{ij}) + \varepsilon_{ij}, \qquad F_0 = 0, \qquad w_{ij} =
    \lceil b_{ij} R / c \rceil $$

    The error is at most the least there is for the budget $c (1 - l / R)$, and never above that of
    `one_for_all`; where the least error of every layer fits, it is that. All but for rounding, of
    what errors are above their layers' least, in their own precision.

    Args:
        errors: $\varepsilon$, of each layer with each choice, `[layers, choices]`, at least 0.
            Infinite ones (traced, NaN, too) count as equal, and as larger than all others.
        sizes: b, whole bits, `[layers, choices]`, in any order; the largest of all layers add up to
            less than 2^32.
        budget: c, bits; what is not whole is rounded down, and infinity is room for all.
        resolution: R, up to 65,535.

    Returns:
        Which choice each layer takes, int32 `[layers]`. Where budget or sizes are traced, and the
        budget is too small for the smallest
        choice of every layer: those, which are above it.

    Raises:
        ValueError: errors or sizes that are not `[layers, choices]`, of different shapes or without
            a layer or choice; errors that are negative or NaN; sizes that are not whole, negative,
            or too many; a budget that is negative, NaN, or less than the smallest choices need; a
            resolution outside 1 to 65,535.

    Source: Xin et al., "Kimad: Adaptive gradient compression with bandwidth awareness", section 3.2
    and algorithm 4. There errors are
        rounded, too, and the first layer is overwritten.
    """
    R = checks.positive_int("allocate: resolution", resolution)
    if R > FINEST:
        raise ValueError(
            f"allocate: resolution = {R:,}: need at most {FINEST:,}, whose square is counted in "
            "32 bits"
        )
    given = _validated("allocate", errors, sizes, budget)
    if _known(given.sizes, given.budget):
        _need_room(
            "allocate",
            given.budget,
            given.sizes.min(axis=1).sum(dtype=np.uint32),
            "the smallest choice of every layer",
        )
    return _best(_regrets(given.errors), given.sizes, given.budget, R)


@checks.arguments
def one_for_all(errors: Table, sizes: Table, budget: Bits) -> jax.Array:
    r"""The same choice for all layers, that of the least error within the budget (Kimad); of equal
    ones, the smaller.

    $$ \min_j \sum_i \varepsilon_{ij} \quad \text{subject to} \quad \sum_i b_{ij} \le c $$

    Args:
        errors: $\varepsilon$, as of `allocate`.
        sizes: b, as of `allocate`.
        budget: c, as of `allocate`.

    Returns:
        That choice for every layer, int32 `[layers]`. Where budget or sizes are traced, and the
        budget is too small for every choice: the smallest, which is above it.

    Raises:
        ValueError: as of `allocate`; a budget that is less than the smallest choice needs.

    Source: Xin et al., "Kimad: Adaptive gradient compression with bandwidth awareness", section
    3.1.
    """
    given = _validated("one_for_all", errors, sizes, budget)
    if _known(given.sizes, given.budget):
        _need_room(
            "one_for_all",
            given.budget,
            given.sizes.sum(axis=0, dtype=np.uint32).min(),
            "the smallest choice for all layers",
        )
    return _best_single(_regrets(given.errors), jnp.asarray(given.sizes), jnp.asarray(given.budget))


def in_units(sizes: jax.Array, budget: jax.Array, R: int) -> jax.Array:
    r"""Sizes in units of the budget's R-th part, rounded up: int32, R + 1 of those that are above
    the budget.

    Exactly $\lceil s R / c \rceil$, without numbers of more than 32 bits. For whole numbers
    $w \ge s R / c$ says the same as $s \le \lfloor w c / R \rfloor$, so the least such w is wanted.
    With c = q R + r the right side is $w q + \lfloor w r / R \rfloor$: both terms are at most c,
    and $w r < R^2 < 2^{32}$. Where it is found from: s R / c in float32 takes five roundings, each
    off by at most 2^-22 of it, so by less than 0.1 in all for R < 2^16. So the whole part of it,
    less one, is at most w and at least w - 3.

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


@partial(jax.jit, static_argnames="R", inline=True)  # one program where it is called outside of any
def _best(errors: jax.Array, sizes: jax.Array, budget: jax.Array, R: int) -> jax.Array:
    """All candidates are held to the budget in exact numbers, and compared by sums in one order.
    Where none fits the first is taken.
    """
    smallest = _least(sizes, errors)
    others = (
        _best_single(errors, sizes, budget),
        _least(errors, sizes),
        _knapsack(errors, in_units(sizes, budget, R), R),
    )
    choices = jnp.stack([smallest, *others])
    chosen_errors, chosen_sizes = (
        jnp.take_along_axis(table[None], choices[:, :, None], axis=2)[:, :, 0]
        for table in (errors, sizes)
    )
    fits = jnp.sum(chosen_sizes, axis=1, dtype=jnp.uint32) <= budget
    return choices[jnp.argmin(jnp.where(fits, jnp.sum(chosen_errors, axis=1), jnp.inf))]


def _knapsack(errors: jax.Array, units: jax.Array, R: int) -> jax.Array:
    """The choices of the least error whose units together are at most R, int32 `[layers]`; where
    there are none, any.

    F is made layer by layer, each choice a contiguous slice of the last one, since XLA's gathers
    are slow on CPUs; which choice was the least is looked up on the way back, at one place a layer.
    """
    nothing = jnp.full(R + 1, jnp.inf, errors.dtype)

    def layer(F, of_choices):
        padded = jnp.concatenate([nothing, F])  # what is below 0 has no room

        def choice(best, one):
            error, w = one
            return jnp.minimum(
                best, lax.dynamic_slice_in_dim(padded, R + 1 - w, R + 1) + error
            ), None

        # a sixth faster than 1, and 16 are not faster
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
    """int32 `[layers]`; where none fits the smallest."""
    together = jnp.sum(sizes, axis=0, dtype=jnp.uint32)
    best = _least(jnp.where(together <= budget, jnp.sum(errors, axis=0), jnp.inf), together)
    return jnp.full(sizes.shape[0], best)


def _least(first: jax.Array, second: jax.Array) -> jax.Array:
    """Where along the last axis the first is least, and of equal ones the second: int32."""
    best = first == jnp.min(first, axis=-1, keepdims=True)
    rest = jnp.where(best, second, jnp.max(second, axis=-1, keepdims=True))
    return jnp.argmax(best & (rest == jnp.min(rest, axis=-1, keepdims=True)), axis=-1).astype(
        jnp.int32
    )


def _regrets(errors: Any) -> jax.Array:
    """How much more each choice's error is than the least of its layer: what choices differ by is
    not rounded away beside what they share.

    Sums are finite: infinity in the knapsack is what has no room.
    """
    errors = wide(errors)
    most = np.asarray(jnp.finfo(errors.dtype).max / (2 * errors.shape[0]), errors.dtype)
    finite = jnp.where(errors < most, jnp.maximum(errors, 0), most)  # NaN, too
    return finite - jnp.min(finite, axis=1, keepdims=True)


class _Given(NamedTuple):
    """The arguments, sizes and budget as uint32: numpy's where they are known."""

    errors: Any
    sizes: Any
    budget: Any


def _known(*values: Any) -> bool:
    return not any(isinstance(value, Tracer) for value in values)


def _validated(name: str, errors: Any, sizes: Any, budget: Any) -> _Given:
    errors, sizes = (
        values if isinstance(values, Tracer) else np.asarray(values) for values in (errors, sizes)
    )
    for what, table in (("errors", errors), ("sizes", sizes)):
        if table.ndim != 2 or 0 in table.shape:
            raise ValueError(
                f"{name}: {what} = {checks.typed(table)}: need numbers [layers, choices], at "
                "least one of each"
            )
    if errors.shape != sizes.shape:
        raise ValueError(
            f"{name}: errors {list(errors.shape)} for sizes {list(sizes.shape)}: need the same "
            "[layers, choices]"
        )
    if _known(errors) and not (errors >= 0).all():
        raise ValueError(
            f"{name}: errors with the entry {errors[~(errors >= 0)][0]}: need numbers, at least 0"
        )
    return _Given(errors, _validated_sizes(name, sizes), _validated_budget(name, budget))


def _validated_sizes(name: str, sizes: Any) -> Any:
    if isinstance(sizes, Tracer):
        if not jnp.issubdtype(sizes.dtype, jnp.integer):
            raise ValueError(
                f"{name}: sizes = {sizes.dtype}{list(sizes.shape)}: need integers where they are "
                "traced"
            )
        return _cut(sizes)
    whole = np.isfinite(sizes) & (sizes >= 0) & (sizes == np.floor(sizes))
    if not whole.all():
        raise ValueError(
            f"{name}: sizes with the entry {sizes[~whole][0]}: need whole bits, at least 0"
        )
    largest = sum(map(int, sizes.max(axis=1)))
    if largest > MOST:
        raise ValueError(
            f"{name}: the largest sizes of all layers are {largest:,} bits: need fewer than 2^32, "
            "which are counted in uint32"
        )
    return sizes.astype(np.uint32)


def _validated_budget(name: str, budget: Any) -> Any:
    if np.ndim(budget):
        raise ValueError(f"{name}: budget = {checks.typed(budget)}: need one number of bits")
    if not isinstance(budget, Tracer):
        value = budget.item() if hasattr(budget, "item") else budget
        if not value >= 0:
            raise ValueError(f"{name}: budget = {value}: need a number of bits, at least 0")
        return np.uint32(MOST if value >= MOST else math.floor(value))
    if jnp.issubdtype(budget.dtype, jnp.integer):
        return _cut(budget)
    value = wide(budget)
    whole = jnp.where((value >= 0) & (value < 2.0**32), value, 0).astype(jnp.uint32)
    return jnp.where(value >= 2.0**32, np.uint32(MOST), whole)


def _cut(integers: jax.Array) -> jax.Array:
    """Traced integers of any type, as uint32."""
    most = np.asarray(min(MOST, jnp.iinfo(integers.dtype).max), integers.dtype)
    return jnp.clip(integers, 0, most).astype(jnp.uint32)


def _need_room(name: str, budget: np.uint32, least: np.uint32, what: str) -> None:
    if budget < least:
        raise ValueError(
            f"{name}: budget = {budget:,} bits: need at least {least:,}, for {what}; "
            f"{least - budget:,} are missing"
        )
