"""Steps of large models in the memory of their gradients.

XLA on CPUs gives each computed array its own memory, except for the arrays that a loop carries.
Here the step is a loop that turns once, so that the new models take the memory of the gradients and
the optimizer's state stays where it is. Without this file the results are the same up to a
rounding, in more memory.

Gain (`tests/algorithms/test_memory.py`: 1,024 models of 1 M parameters, SGD): a round of ring DSGD
needs 1.00 times the memory of the models in addition to the state, without it 1.87 times (JAX
0.10.2). With momentum both need 1.00 times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dsgd.base import PyTree
from dsgd.xla.forms import choose

LARGE = 1 << 24  # elements, from which on memory counts, and a loop around a step does not


def in_place(step: Callable[[Any, Any], Any], given: PyTree, overwritten: PyTree) -> PyTree:
    """`step(given, overwritten)`; on CPUs large results take the memory of `overwritten`.

    Args:
        step: returns arrays of the structure, shapes and types of `overwritten`.
        given, overwritten: arrays.
    """
    if sum(leaf.size for leaf in jax.tree.leaves(given)) < LARGE:
        return step(given, overwritten)

    def in_a_loop(given, overwritten):
        # so that XLA does not know that the loop turns once
        first = lax.optimization_barrier(jnp.int32(0))
        return lax.while_loop(
            lambda carry: carry[0] < 1,
            lambda carry: (carry[0] + 1, step(given, carry[1])),
            (first, overwritten),
        )[1]

    return choose(step, in_a_loop, given, overwritten)
