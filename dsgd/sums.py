"""Sums at the speed of memory on CPUs, where XLA's reductions take up to 30 times as long (`experiments.benchmark mixing` and `rounds`).

Over rows they are additions of up to eight rows at a time, which XLA fuses with what makes the rows: these never go through memory. Over
elements they are products with ones.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from dsgd.barriers import stored

_MANY = 4096  # elements of all runs, from which on sums go another way than XLA's
_AT_ONCE = 8  # that are added up in one expression: XLA does not fuse what is used at 16 places
_LONG = 64  # elements of an axis, from which on a loop over it is vector code


def _of_each_run(plain: Callable[[jax.Array], jax.Array], on_cpus: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """A linear function of `[runs, ...]` in two forms, of which the first has a transpose, too."""

    @jax.custom_jvp
    @jax.custom_batching.custom_vmap
    def total(x: jax.Array) -> jax.Array:
        return plain(x) if x.size < _MANY else lax.platform_dependent(x, cpu=on_cpus, default=plain)

    @total.def_vmap
    def _(runs: int, mapped: list[bool], x: jax.Array) -> tuple[jax.Array, bool]:
        """Mapped once more: only more runs."""
        del mapped  # it is: there is no other argument
        together = total(x.reshape(-1, *x.shape[2:]))
        return together.reshape(*x.shape[:2], *together.shape[1:]), True

    @total.defjvp
    def _(x, changes):
        return total(*x), plain(*changes)

    return total


def _wide(x: jax.Array) -> jnp.dtype:
    return jnp.promote_types(x.dtype, jnp.float32)


def _added_up(rows: jax.Array) -> jax.Array:
    """By eights of rows, each time through memory, but for what makes the first."""
    row = rows.shape[2:]
    if len(row) > 1 and row[-1] == 1:  # messages of one element, most of which may be padding, which XLA adds without making it
        return _plain_over_rows(rows)
    several = rows.astype(_wide(rows))
    if len(row) > 1 and row[-1] < _LONG:  # as one axis, whose indices would keep what makes them from vector code
        several = stored(several).reshape(*rows.shape[:2], -1)
    while several.shape[1] > 1:
        several = _eights(several, axis=1)
        if several.shape[1] > 1:
            several = stored(several)
    return several.reshape(rows.shape[0], *row)


def _eights(x: jax.Array, axis: int) -> jax.Array:
    """As long an axis as there are eights in its length n, rounded up, with the same sum: consecutive blocks of that length, added up."""
    n = x.shape[axis]
    m = -(-n // _AT_ONCE)
    blocks = [lax.slice_in_dim(x, first, first + m, axis=axis) for first in range(0, n - m + 1, m)]
    if left := n % m:  # the last m, of which other blocks have the first
        new = jnp.arange(m) >= m - left
        blocks.append(jnp.where(new.reshape(m, *[1] * (x.ndim - 1 - axis)), lax.slice_in_dim(x, n - m, n, axis=axis), 0))
    while len(blocks) > 1:
        odd = blocks[len(blocks) // 2 * 2 :]
        blocks = [*map(jnp.add, blocks[::2], blocks[1::2]), *odd]
    return blocks[0]


def _plain_over_rows(rows: jax.Array) -> jax.Array:
    return jnp.sum(rows, axis=1, dtype=_wide(rows))


over_rows: Callable[[jax.Array], jax.Array] = _of_each_run(_plain_over_rows, _added_up)
"""The sums of each run's rows, `[runs, n, ...]` to `[runs, ...]`, in float32 at least."""


def _plain_of_all(rows: jax.Array) -> jax.Array:
    return jnp.sum(rows, axis=range(1, rows.ndim), dtype=_wide(rows))


of_all: Callable[[jax.Array], jax.Array] = _of_each_run(_plain_of_all, lambda rows: _plain_of_all(stored(_added_up(rows))))
"""The sums of all elements of each run's rows, `[runs, n, ...]` to `[runs]`, in float32 at least."""


def _product_of_elements(x: jax.Array) -> jax.Array:
    few = _eights(x, axis=x.ndim - 1) if x.shape[-1] >= _AT_ONCE * _LONG else x
    return jnp.matmul(few, jnp.ones(few.shape[-1], x.dtype), precision=lax.Precision.HIGHEST)


_of_elements = _of_each_run(lambda x: jnp.sum(x, axis=-1), _product_of_elements)


def of_elements(x: jax.Array) -> jax.Array:
    """The sum of a vector's elements, `[d]`, of float32 or float64. Mapped over, it knows how many there are."""
    return _of_elements(x[None])[0]
