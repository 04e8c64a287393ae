"""`materialize`: arrays that are stored before they are used.

XLA on CPUs fuses the computation of an array with each of its uses, so that the array is computed
again for each use; optimization barriers are removed before fusion. Without this file, a gossip
round computes each model again for each of its neighbours, and the codes of a compressed message
are drawn once for the message and once for its decoded vector.

Gain (`python -m experiments.benchmark workarounds`, CPU seconds): ring gossip on 16 x 100,000 is
2.0 times as fast with JAX 0.10.2. Codes are as fast without it, but a message and its decoded
vector must come from the same codes, which two fusions may round differently.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from dsgd.base import PyTree
from dsgd.xla.forms import choose


@jax.custom_jvp
@jax.custom_batching.custom_vmap
def materialize(tree: PyTree) -> PyTree:
    """Returns the same arrays. On CPUs, XLA stores them before they are used, instead of computing
    them again for each use.

    Args:
        tree: a pytree of numeric arrays of any shapes; a tree without elements is returned
            unchanged.
    """
    if not any(leaf.size for leaf in jax.tree.leaves(tree)):
        return tree
    return choose(lambda tree: tree, _pass_through_loop, tree)


@materialize.def_vmap
def _(runs: int, mapped: list[PyTree], tree: PyTree) -> tuple[PyTree, PyTree]:
    """Uses one loop for all runs, so that its condition stays a scalar."""
    del runs
    return materialize(tree), mapped[0]


@materialize.defjvp
def _(primals, tangents):
    return materialize(*primals), tangents[0]


def _pass_through_loop(tree: PyTree) -> PyTree:
    """Passes the arrays through a loop without iterations. XLA stores the operands of a loop before
    the loop starts. The condition, a negative number of bits, is never true, but XLA cannot infer
    that.
    """

    def condition(carry):
        first = (
            next(leaf for leaf in jax.tree.leaves(carry) if leaf.size)
            .ravel()[0]
            .real.astype(jnp.float32)
        )
        return lax.population_count(lax.bitcast_convert_type(first, jnp.int32)) < 0

    # A counter is carried in addition to the arrays, since some passes of XLA fail on loops that
    # carry a single array (openxla/xla#39830).
    return lax.while_loop(
        condition, lambda carry: (jax.tree.map(jnp.negative, carry[0]), carry[1] + 1), (tree, 0)
    )[0]
