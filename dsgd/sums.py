"""Sums as products with ones on CPUs, where XLA's reductions take up to 30 times as long (`experiments.benchmark mixing` and `rounds`)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

# Sums are products from so many elements of all runs on; over rows, where these have at least so many elements, and are at most so many.
_MANY, _LONG, _TALL = 4096, 64, 2048


@jax.custom_jvp
@jax.custom_batching.custom_vmap
def over_rows(rows: jax.Array) -> jax.Array:
    """The sums of each run's rows, `[runs, n, elements]` to `[runs, elements]`, in float32 at least: all runs in one product, which is
    faster than one that is mapped over them."""
    if rows.size < _MANY or rows.shape[2] < _LONG or rows.shape[1] > _TALL:
        return _over_rows(rows)
    return lax.platform_dependent(rows, cpu=_product_over_rows, default=_over_rows)


@over_rows.def_vmap
def _(runs: int, mapped: list[bool], rows: jax.Array) -> tuple[jax.Array, bool]:
    """Mapped once more: only more runs."""
    del mapped  # it is: there is no other argument
    together = over_rows(rows.reshape(-1, *rows.shape[2:]))
    return together.reshape(*rows.shape[:2], -1), True


@over_rows.defjvp
def _(rows, changes):
    """Linear: this form has a transpose, too."""
    return over_rows(*rows), _over_rows(*changes)


def _over_rows(rows: jax.Array) -> jax.Array:
    return jnp.sum(rows, axis=1, dtype=jnp.promote_types(rows.dtype, jnp.float32))


def _product_over_rows(rows: jax.Array) -> jax.Array:
    ones = jnp.ones((rows.shape[0], 1, rows.shape[1]), rows.dtype)
    wide = jnp.promote_types(rows.dtype, jnp.float32)
    return jnp.matmul(ones, rows, precision=lax.Precision.HIGHEST, preferred_element_type=wide)[:, 0]


@jax.custom_jvp
@jax.custom_batching.custom_vmap
def of_elements(x: jax.Array) -> jax.Array:
    """The sums over the last axis, `[..., d]` to `[...]`, of float32 or float64. Mapped over, it knows how many there are."""
    if x.size < _MANY:
        return _of_elements(x)
    return lax.platform_dependent(x, cpu=_product_of_elements, default=_of_elements)


@of_elements.def_vmap
def _(runs: int, mapped: list[bool], x: jax.Array) -> tuple[jax.Array, bool]:
    del mapped
    return of_elements(x), True


@of_elements.defjvp
def _(x, changes):
    return of_elements(*x), _of_elements(*changes)


def _of_elements(x: jax.Array) -> jax.Array:
    return jnp.sum(x, axis=-1)


def _product_of_elements(x: jax.Array) -> jax.Array:
    return jnp.matmul(x, jnp.ones(x.shape[-1], x.dtype), precision=lax.Precision.HIGHEST)
