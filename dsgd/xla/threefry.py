"""JAX's random bits in code without loops.

`jax.random` hashes counters with Threefry. On CPUs JAX lowers its 20 rounds to a loop of five
iterations, each of which reads and writes memory. In programs that are lowered here, the rounds are
unrolled: one pass over the counters, which XLA fuses with their uses. The bits are the same, and
other programs of the process are not affected. Without this file, programs compile a sixth faster.

Gain (`python -m experiments.benchmark workarounds`, CPU seconds): 256 draws of seven words are 4.2
times as fast with JAX 0.10.2, 3.7 times with 0.11.2; a round of mini-batch SGD with noise on 16 x
100 2.3 times.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.extend.random import threefry2x32_p
from jax.interpreters import mlir

from dsgd.xla import forms
from dsgd.xla.barriers import materialize

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY = np.uint32(0x1BD11BDA)


def lower(traced: Any, platform: str) -> Any:
    """Lowers a traced function of `jax.jit` for devices of a platform.

    JAX has no public way to lower a single program with other lowering rules: the argument and its
    type are private. If a version of JAX lacks them, the program is lowered in the normal way, with
    the same random bits.

    Args:
        traced: from `jax.jit(...).trace(...)`.
        platform: platform of the devices, such as "cpu".
    """
    # Without optimizations, the loop compiles faster.
    unoptimized = jax.config.read("jax_disable_most_optimizations")
    if not forms.ENABLED or platform != "cpu" or unoptimized:
        return traced.lower()
    try:
        rule = mlir.lower_fun(_with_stored_keys, multiple_results=True)
        return traced.lower(
            _private_parameters=mlir.LoweringParameters(
                override_lowering_rules=((threefry2x32_p, rule),)
            )
        )
    except (AttributeError, TypeError):
        return traced.lower()


def threefry2x32(
    key0: jax.Array, key1: jax.Array, x0: jax.Array, x1: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the two words that Threefry computes from the counters and the keys, uint32 of shapes
    that broadcast.

    Args:
        key0, key1: the two words of the keys.
        x0, x1: the two words of the counters.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011: Threefry-2x32 with
    20 rounds.
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


def _with_stored_keys(
    key0: jax.Array, key1: jax.Array, x0: jax.Array, x1: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """As `threefry2x32`, with keys that are stored. If keys derived from keys were fused, each with
    the next, LLVM would not finish compiling.
    """
    key0, key1 = materialize((key0, key1))
    return threefry2x32(key0, key1, x0, x1)
