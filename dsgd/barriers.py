"""Where what makes arrays and what uses them are not fused, on CPUs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from dsgd.base import PyTree


@jax.custom_jvp
@jax.custom_batching.custom_vmap
def stored(tree: PyTree) -> PyTree:
    """The same arrays, of numbers, out of memory: there they are computed once, where XLA would by itself compute them for each use.

    A loop's operands are there before it begins, even if it never turns, as this one: no number of bits is negative, which XLA does not
    know. It drops optimization barriers before it fuses.
    """
    if not any(leaf.size for leaf in jax.tree.leaves(tree)):
        return tree
    return lax.platform_dependent(tree, cpu=_through_a_loop, default=lambda tree: tree)


@stored.def_vmap
def _(runs: int, mapped: list[PyTree], tree: PyTree) -> tuple[PyTree, PyTree]:
    """One loop for all, whose condition is one number."""
    del runs
    return stored(tree), mapped[0]


@stored.defjvp
def _(primals, tangents):
    return stored(*primals), tangents[0]


def _through_a_loop(tree: PyTree) -> PyTree:
    def turns(carry):
        first = next(leaf for leaf in jax.tree.leaves(carry) if leaf.size).ravel()[0].real.astype(jnp.float32)
        return lax.population_count(lax.bitcast_convert_type(first, jnp.int32)) < 0

    # XLA's loops of small rounds must carry more than one array (jaxlib 0.10.2 compiles wrong code for one).
    return lax.while_loop(turns, lambda carry: (jax.tree.map(jnp.negative, carry[0]), carry[1] + 1), (tree, 0))[0]
