"""Random bits of JAX in straight code.

`jax.random` hashes counters with Threefry. On CPUs JAX lowers its 20 rounds to a loop of five
turns, each of which goes through memory. In programs that are lowered here they are straight code,
one pass over the counters, which XLA fuses with what uses them. The bits are the same, and other
programs of the process are as they were. Without this file programs compile a sixth faster.

Gain (`python -m experiments.benchmark workarounds`, CPU seconds): 256 draws of seven words 4.2
times as fast with JAX 0.10.2, 3.7 with 0.11.2; a round of mini-batch SGD with noise on 16 x 100 2.3
times.
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
    """A traced function of `jax.jit`, lowered for devices of that platform.

    JAX has no public way to lower one program with other rules: the argument and the type that it
    takes are private. If a version of JAX lacks them, the program is lowered as JAX does it, to the
    same bits.
    """
    in_haste = jax.config.read("jax_disable_most_optimizations")  # a loop compiles faster
    if not forms.ENABLED or platform != "cpu" or in_haste:
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
    """Two words of the counters under the keys, uint32 of shapes that broadcast.

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
    """The same. Keys are not fused with their uses: of keys made of keys, each fused with the next,
    LLVM would not finish compiling.
    """
    key0, key1 = materialize((key0, key1))
    return threefry2x32(key0, key1, x0, x1)
