"""Arrays that are stored before they are used.

XLA on CPUs fuses what makes an array with each of its uses, so that it computes the array again at
each of them; it drops optimization barriers before it fuses. Without this file a gossip round
computes each model again for each of its neighbours, and codes of a compressed message are drawn
once for the message and once for its decoded vector.

Gain (`python -m experiments.benchmark workarounds`, CPU seconds): ring gossip on 16 x 100,000 2.1
times as fast with JAX 0.10.2, 1.9 with 0.11.2; qsgd(4) on 16 x 10,000 1.4 and 1.5 times.
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
    """The same arrays, which XLA stores before they are used on CPUs, instead of computing them
    again for each use.

    Args:
        tree: arrays of numbers, of any shapes; of nothing it is the same tree.
    """
    if not any(leaf.size for leaf in jax.tree.leaves(tree)):
        return tree
    return choose(lambda tree: tree, _through_a_loop, tree)


@materialize.def_vmap
def _(runs: int, mapped: list[PyTree], tree: PyTree) -> tuple[PyTree, PyTree]:
    """One loop for all runs, whose condition is one number."""
    del runs
    return materialize(tree), mapped[0]


@materialize.defjvp
def _(primals, tangents):
    return materialize(*primals), tangents[0]


def _through_a_loop(tree: PyTree) -> PyTree:
    """A loop's operands are stored before it begins, even if it never turns, as this one: no number
    of bits is negative, which XLA does not know."""

    def turns(carry):
        first = (
            next(leaf for leaf in jax.tree.leaves(carry) if leaf.size)
            .ravel()[0]
            .real.astype(jnp.float32)
        )
        return lax.population_count(lax.bitcast_convert_type(first, jnp.int32)) < 0

    # The count is carried with the arrays, since XLA has passes that fail on loops that carry one
    # array (openxla/xla#39830).
    return lax.while_loop(
        turns, lambda carry: (jax.tree.map(jnp.negative, carry[0]), carry[1] + 1), (tree, 0)
    )[0]
