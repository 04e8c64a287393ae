"""Gossip: weighted sums over neighbours, at the cost of the neighbours' rows.

Two steps. `fetch` brings the rows that a device needs to it; on one device there is nothing to bring. `combine` sums them with their
weights: row by row where neighbours are few, else as a matrix product. Between the two, a method with compression decompresses what came.
"""

from __future__ import annotations

from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata

from dsgd.base import PyTree
from dsgd.topology import Topology
from dsgd.workers import axis
from dsgd.workers.routes import Permute, plan


def mix(tree: PyTree, topology: Topology, step: jax.Array | None = None) -> PyTree:
    r"""One gossip round, $x_i \leftarrow \sum_j W_{ij} x_j$ (5.2): leaves `[n, ...]` to `[n, ...]`.

    The uniform W (the complete graph) is a mean over all; otherwise it is `combine` of `fetch`.

    Args:
        tree: floating-point leaves of a block.
        topology: W.
        step: the present round, of a schedule (`Round.step`); the same for all runs that are mapped over.

    Raises:
        ValueError: leaves of another number of workers, or not floating point (weights would be rounded to 0); a schedule without a step.
    """
    for leaf in jax.tree.leaves(tree):
        if leaf.shape[0] * axis.devices() != topology.n or not jnp.issubdtype(leaf.dtype, jnp.floating):
            given = f"a leaf of {leaf.shape[0] * axis.devices()} workers, {leaf.dtype}"
            raise ValueError(f"mix over {topology.name}: {given}; need floating-point leaves of {topology.n} workers")
    if topology.uniform:
        return jax.tree.map(lambda mean, leaf: jnp.broadcast_to(mean, leaf.shape), axis.mean(tree), tree)
    return combine(fetch(tree, topology, step), topology, step)


def fetch(tree: PyTree, topology: Topology, step: jax.Array | None = None) -> PyTree:
    """The table of rows that the block's workers need, their own among them: leaves `[n, ...]` of any type to `[m, ...]`.

    Over D devices, the rows cross in as many collective-permutes as a device has neighbours (or in one all-gather, where that is no
    more): on a ring two of one row each; where every device has one worker, a worker sends its row to each of its neighbours, no more.
    """
    if axis.devices() == 1:
        return tree
    routes = plan(topology, axis.devices())
    if routes.permutes is None:
        return axis.gather(tree)
    different = {str(round): round for round in routes.permutes}  # rounds between equal pairs are one branch
    branch = np.asarray([list(different).index(str(round)) for round in routes.permutes], np.int32)
    bring = [partial(_bring, permutes=round, length=routes.length) for round in different.values()]
    return bring[0](tree) if len(bring) == 1 else lax.switch(jnp.asarray(branch)[_turn(topology, step)], bring, tree)


def _bring(tree: PyTree, permutes: list[Permute], length: int) -> PyTree:
    def bring(leaf):
        n = leaf.shape[0]
        rows = [leaf]
        for pairs, workers in permutes:
            local = workers - n * np.arange(len(workers))[:, None]
            sent = leaf if n == 1 else leaf[jnp.asarray(local, jnp.int32)[lax.axis_index(axis.AXIS)]]
            rows.append(lax.ppermute(sent, axis.AXIS, pairs))
        rows.append(jnp.zeros((length - sum(len(part) for part in rows), *leaf.shape[1:]), leaf.dtype))
        return jnp.concatenate(rows)

    return jax.tree.map(bring, tree)


def combine(table: PyTree, topology: Topology, step: jax.Array | None = None) -> PyTree:
    r"""The workers' $\sum_j W_{ij} x_j$ of what `fetch` brought: leaves `[m, ...]` to `[n, ...]`."""
    routes, at = plan(topology, axis.devices()), _here(topology, step)
    weights, places = routes.weights, routes.places
    if places is None:
        return jax.tree.map(lambda leaf: _product(leaf, jnp.asarray(weights, leaf.dtype)[at]), table)
    rows = jnp.asarray(places)[at]
    return jax.tree.map(lambda leaf: _sum_of_rows(leaf, rows, jnp.asarray(weights, leaf.dtype)[at]), table)


def sum_of_others(table: jax.Array, topology: Topology, step: jax.Array | None = None) -> jax.Array:
    """The sum over the others that one receives from, of counts that `fetch` brought: uint32 `[m, k]` to `[n, k]`."""
    routes, at = plan(topology, axis.devices()), _here(topology, step)
    others = jnp.asarray(routes.others)[at]
    return _product(table, others) if routes.places is None else _few_rows(table, jnp.asarray(routes.places)[at], others)


def _here(topology: Topology, step: jax.Array | None):
    """Where this round and this device are in the arrays of a plan."""
    return _turn(topology, step), 0 if axis.devices() == 1 else lax.axis_index(axis.AXIS)


def _turn(topology: Topology, step: jax.Array | None):
    if topology.period == 1:
        return 0
    if step is None:
        raise ValueError(f"mix over {topology.name}, a schedule of {topology.period} rounds: need the step, round.step in an update")
    return lax.rem(step, np.int32(topology.period))


def _product(table: jax.Array, weights: jax.Array) -> jax.Array:
    flat = table.reshape(table.shape[0], -1)
    mixed = jnp.matmul(weights, flat, precision=lax.Precision.HIGHEST)
    return mixed.reshape(weights.shape[0], *table.shape[1:])


def _sum_of_rows(table: jax.Array, index: jax.Array, weights: jax.Array) -> jax.Array:
    """Sums of a few rows. On CPUs, XLA would fuse what computes the table (a local step) into every read of it, and compute it once for
    each neighbour: a call that it may not inline has its argument in memory."""

    def called(*arguments):
        with set_xla_metadata(inlineable="false"):
            return jax.jit(_few_rows)(*arguments)

    return lax.platform_dependent(table, index, weights, cpu=called, default=_few_rows)


def _few_rows(table: jax.Array, index: jax.Array, weights: jax.Array) -> jax.Array:
    flat = table.reshape(table.shape[0], -1)
    terms = [weights[:, k, None] * flat.at[index[:, k]].get(mode="promise_in_bounds") for k in range(index.shape[1])]
    return reduce(jnp.add, terms).reshape(index.shape[0], *table.shape[1:])
