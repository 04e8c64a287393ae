"""Random numbers, one for each element of a vector."""

from __future__ import annotations

from collections.abc import Callable

import jax

LANES = 16


def draw(sampler: Callable, key: jax.Array, d: int) -> jax.Array:
    """`sampler(key, (d,))`, with the same numbers.

    For a long vector of odd length XLA's loop is ten times slower on CPUs: there a few more are drawn, up to a whole number of lanes.

    Args:
        sampler: `jax.random.uniform` or `jax.random.bits`, whose numbers do not depend on how many there are.
        key: one.
        d: how many.
    """
    return sampler(key, (d if d < 64 * LANES else -(-d // LANES) * LANES,))[:d]
