"""Noise on uncompressed messages: independent Gaussian noise on each of their floating-point
numbers. The noise of a cluster (`clusters.MessageNoise`) determines its variance.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dsgd import workers
from dsgd.base import PyTree
from dsgd.graphs.topology import Topology


def on_messages(noise: Any, key: jax.Array, tree: PyTree, N: int) -> PyTree:
    """Returns messages with noise, drawn once for each of them: leaves `[n, ...]`.

    Args:
        noise: noise of the cluster.
        key: random key, the same on every device.
        tree: leaves `[n, ...]`, the messages; integers have no noise.
        N: number of workers.
    """
    return _add(key, tree, noise.variances(tree), N)


def on_sums(
    noise: Any,
    key: jax.Array,
    sums: PyTree,
    tree: PyTree,
    topology: Topology,
    turn: jax.Array,
    *,
    weighted: bool,
) -> PyTree:
    r"""Returns sums over neighbours, $\sum_m W_{nm} x_m$, as if each message $x_m$ had noise of its
    own at each receiver.

    Each draw would be used in one sum only. Their sum $\sum_m W_{nm} \xi_{nm}$, with variance
    $\sum_m W_{nm}^2 s_m^2$, is therefore drawn at once.

    Args:
        noise, key: as in `on_messages`.
        sums: leaves `[n, ...]`, without noise.
        tree: the messages, leaves `[n, ...]`.
        topology, turn: W, and the number of the exchange.
        weighted: whether the sums have the weights of W; if not, all weights are 1.
    """
    variances = workers.neighbour_variances(
        noise.variances(tree), topology, turn, weighted=weighted
    )
    return _add(key, sums, variances, topology.n)


def _add(key: jax.Array, tree: PyTree, variances: jax.Array, N: int) -> PyTree:
    """Adds noise with the given variances, `[n]`, to the floating-point leaves, `[n, ...]`."""
    keys, deviations = workers.keys(key, N), jnp.sqrt(variances)

    def add(i, leaf):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        of_leaf = jax.vmap(lambda key: jax.random.fold_in(key, i))(keys)
        draw = partial(jax.random.normal, shape=leaf.shape[1:], dtype=deviations.dtype)
        noise = workers.align(deviations, leaf) * jax.vmap(draw)(of_leaf)
        return workers.narrow(workers.widen(leaf) + noise, leaf)

    leaves, treedef = jax.tree.flatten(tree)
    return treedef.unflatten([add(i, leaf) for i, leaf in enumerate(leaves)])
