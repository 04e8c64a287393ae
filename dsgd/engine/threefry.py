"""JAX's random bits on CPUs at the speed of arithmetic.

`jax.random` hashes counters with Threefry. On CPUs JAX writes its 20 rounds as a loop of five turns, each of which goes through memory; in
programs that are lowered here they are straight code, one pass over the counters, fused with what uses them: many short draws take a fifth
of the time or less, and such programs a sixth longer to compile. The bits are the same, and other programs of the process are as they were.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.extend.random import threefry2x32_p
from jax.interpreters import mlir

from dsgd.barriers import stored

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY = np.uint32(0x1BD11BDA)


def lower(traced: Any, platform: str) -> Any:
    """A traced function of `jax.jit`, lowered for devices of that platform."""
    if platform != "cpu" or jax.config.read("jax_disable_most_optimizations"):  # who compiles in haste is faster with the loop
        return traced.lower()
    return traced.lower(_private_parameters=mlir.LoweringParameters(override_lowering_rules=((threefry2x32_p, _RULE),)))


def threefry2x32(key0: jax.Array, key1: jax.Array, x0: jax.Array, x1: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two words of the counters under the keys, uint32 of shapes that broadcast.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011: Threefry-2x32 with 20 rounds.
    """
    keys = key0, key1, key0 ^ key1 ^ _PARITY
    x0, x1 = x0 + key0, x1 + key1
    for i in range(5):
        for by in map(np.uint32, _ROTATIONS[i % 2]):
            x0 = x0 + x1
            x1 = x0 ^ (x1 << by | x1 >> np.uint32(32 - by))
        x0 = x0 + keys[(i + 1) % 3]
        x1 = x1 + keys[(i + 2) % 3] + np.uint32(i + 1)
    return x0, x1


def _of_known_keys(key0: jax.Array, key1: jax.Array, x0: jax.Array, x1: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The same, but the keys are not fused with their uses: keys of keys, each fused with the next, can be code that LLVM does not come to
    an end with."""
    key0, key1 = stored((key0, key1))
    return threefry2x32(key0, key1, x0, x1)


_RULE = mlir.lower_fun(_of_known_keys, multiple_results=True)
