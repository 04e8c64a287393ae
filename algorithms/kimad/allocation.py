"""Which compressor each layer has, within a budget. (Provisional.)"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def one_for_all(errors, sizes, budget) -> jax.Array:
    totals = jnp.asarray(sizes.sum(axis=0), jnp.uint32)
    found = jnp.where(totals <= budget, jnp.sum(errors, axis=0), jnp.inf)
    best = jnp.argmin(jnp.where(found == jnp.min(found), totals.astype(jnp.float32), jnp.inf))
    alone = jnp.argmin(jnp.asarray(sizes, jnp.uint32), axis=1)
    return jnp.where(jnp.any(totals <= budget), best, alone).astype(jnp.int32)


def allocate(errors, sizes, budget, resolution=1000) -> jax.Array:
    return one_for_all(errors, sizes, budget)
