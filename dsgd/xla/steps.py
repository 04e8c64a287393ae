"""Steps of large models in the memory of their gradients.

XLA on CPUs allocates memory for each computed array, except for arrays that a loop carries. Here
the step is a loop with one iteration, so that the new models overwrite the gradients and the
optimizer's state is updated in place. Without this file, the results are the same up to rounding,
but need more memory.

Gain (`tests/algorithms/test_memory.py`: 1,024 models of 1 M parameters, SGD): in addition to the
state, a round of ring DSGD needs 1.00 times the memory of the models, and 1.87 times without this
file (JAX 0.10.2). With momentum, both need 1.00 times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dsgd.base import PyTree
from dsgd.xla.forms import choose

LARGE = 1 << 24  # from this many elements on, memory matters more than the cost of a loop


def apply_in_place(step: Callable[[Any, Any], Any], given: PyTree, overwritten: PyTree) -> PyTree:
    """Returns `step(given, overwritten)`; on CPUs, large results overwrite the memory of
    `overwritten`.

    Args:
        step: returns arrays of the structure, shapes and types of `overwritten`.
        given, overwritten: pytrees of arrays.
    """
    if sum(leaf.size for leaf in jax.tree.leaves(given)) < LARGE:
        return step(given, overwritten)

    def loop(given, overwritten):
        # The barrier hides from XLA that the loop has one iteration.
        first = lax.optimization_barrier(jnp.int32(0))
        return lax.while_loop(
            lambda carry: carry[0] < 1,
            lambda carry: (carry[0] + 1, step(given, carry[1])),
            (first, overwritten),
        )[1]

    return choose(step, loop, given, overwritten)
