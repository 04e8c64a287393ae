"""Gossip: weighted sums over neighbours, at the cost of the neighbours' rows.

Two steps. `fetch` brings the rows that a device needs to it; on one device there is nothing to
bring. `pull` sums what they differ by from one's own, with their weights: row by row where
neighbours are few, else as a matrix product. Between the two, a method with compression
decompresses what came.

Why differences. In float32 a row of thirds sums to 1 + 3e-8, not to 1: products with W would make
models grow by as much in every round, and methods that add up what gossip has changed (exact
diffusion, EXTRA) drift away with it. Differences of models that agree are 0, and their errors are
as small as the disagreement.

In a round with an `attendance`, weights of links that are down, or that lead to somebody who is
away, are 0, whose messages have no part in anything.
"""

from __future__ import annotations

from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dsgd import xla
from dsgd.base import PyTree
from dsgd.graphs.neighbours import neighbours as lists_of
from dsgd.graphs.topology import Topology
from dsgd.workers import axis
from dsgd.workers.attendance import attendance
from dsgd.workers.routes import Permute, Routes, different, routes_of


def mix(
    tree: PyTree, topology: Topology, step: jax.Array | None = None, *, keep_sums: bool = False
) -> PyTree:
    r"""One gossip round, $x_i \leftarrow \sum_j W_{ij} x_j$ (5.2): leaves `[n, ...]` to `[n, ...]`.

    Computed as $r_i x_i + \sum_{j \ne i} W_{ij} (x_j - x_i)$ with $r_i = \sum_j W_{ij}$, which is 1
    if W is doubly stochastic: models that agree stay as they are, bit for bit. Only the uniform W
    (the complete graph) is a mean over all, up to its rounding.

    Where messages are lost, or workers away, rows still sum to 1 if W is doubly stochastic: models
    that agree stay as they are, and of a symmetric W so does the mean. Otherwise, and with
    `keep_sums`, columns sum to 1: a sender keeps what does not arrive.

    Args:
        tree: floating-point leaves of a block.
        topology: W.
        step: the present round, of a schedule (`Round.step`); the same for all runs that are mapped
            over.
        keep_sums: for push-sum, which divides by what arrives of 1.

    Raises:
        ValueError: leaves of another number of workers, or not floating point (weights would be
            rounded to 0); a schedule without a step.
    """
    _check(tree, topology)
    tree = xla.materialize(tree)  # a row is used at each of its neighbours
    some_lost = attendance() is not None
    if topology.uniform and not some_lost:
        return jax.tree.map(
            lambda mean, leaf: jnp.broadcast_to(mean, leaf.shape), axis.mean(tree), tree
        )
    if topology.doubly_stochastic and not (some_lost and keep_sums):
        return _pulled(tree, fetch(tree, topology, step), topology, step, onto=True)
    kept = (
        _kept(topology, step)
        if some_lost
        else of_round(np.stack([W.sum(axis=1) for W in topology.matrices]), topology, step)
    )
    wide = axis.widened(tree)
    moved = _pulled(wide, axis.widened(fetch(tree, topology, step)), topology, step, onto=False)
    mixed = jax.tree.map(
        lambda x, more: kept.astype(x.dtype).reshape(-1, *[1] * (x.ndim - 1)) * x + more,
        wide,
        moved,
    )
    return axis.narrowed(mixed, tree)


def pull(
    tree: PyTree, topology: Topology, step: jax.Array | None = None, *, table: PyTree | None = None
) -> PyTree:
    r"""What a gossip round would add to models, $\sum_j W_{ij} (x_j - x_i)$: leaves `[n, ...]` to
    `[n, ...]`.

    For a doubly stochastic W it is $X (W^T - I)$. Its mean over workers is 0 up to the rounding of
    what it adds, not of the models, so that a sum of such terms does not drift.

    Args:
        tree, topology, step: as of `mix`.
        table: what `fetch` makes of the tree, if it is there already; None: it is fetched.

    Raises:
        ValueError: as `mix`.
    """
    _check(tree, topology)
    tree, table = xla.materialize((tree, table))
    if topology.uniform and table is None and attendance() is None:
        rough = jax.tree.map(lambda mean, leaf: _common(mean)[None] - leaf, axis.mean(tree), tree)
        # the mean was rounded, like the models
        return jax.tree.map(lambda leaf, off: leaf - off[None], rough, axis.mean(rough))
    return _pulled(
        tree, fetch(tree, topology, step) if table is None else table, topology, step, onto=False
    )


def fetch(tree: PyTree, topology: Topology, step: jax.Array | None = None) -> PyTree:
    """The table of rows that the block's workers need, their own among them: leaves `[n, ...]` of
    any type to `[m, ...]`.

    Over D devices, the rows cross in as many collective-permutes as a device has neighbours (or in
    one all-gather, where that is no more): on a ring two of one row each; where every device has
    one worker, a worker sends its row to each of its neighbours, no more.
    """
    if axis.devices() == 1:
        return tree
    routes = routes_of(topology, axis.devices())
    if routes.permutes is None:
        return axis.gather(tree)
    rounds, branch = different(routes.permutes)
    bring = [partial(_bring, permutes=round, length=routes.length) for round in rounds]
    return (
        bring[0](tree)
        if len(bring) == 1
        else lax.switch(jnp.asarray(branch)[_turn(topology, step)], bring, tree)
    )


def neighbours(
    tree: PyTree, topology: Topology, step: jax.Array | None = None
) -> tuple[PyTree, jax.Array]:
    """The rows of those that a worker receives from, one by one, and W's weights of them.

    Args:
        tree, topology, step: as of `mix`, with leaves of any type.

    Returns:
        Leaves `[n, K, ...]`, K the most that a worker receives; weights `[n, K]`: 0 where there is
        no such message, or it does not arrive.
    """
    routes, at = routes_of(topology, axis.devices(), rows=True), _here(topology, step)
    kind = jnp.result_type(
        *(leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)),
        jnp.float16,
    )
    places, weights = jnp.asarray(routes.places)[at], jnp.asarray(routes.weights, kind)[at]
    arrives = _arrives(routes, at, topology)
    weights = weights if arrives is None else jnp.where(arrives, weights, 0)
    return jax.tree.map(lambda table: table[places], fetch(tree, topology, step)), weights


def table_rows(topology: Topology) -> int:
    """m, the rows of the table that `fetch` brings."""
    return routes_of(topology, axis.devices()).length


def _bring(tree: PyTree, permutes: list[Permute], length: int) -> PyTree:
    def bring(leaf):
        n = leaf.shape[0]
        rows = [leaf]
        for pairs, workers in permutes:
            local = workers - n * np.arange(len(workers))[:, None]
            sent = (
                leaf if n == 1 else leaf[jnp.asarray(local, jnp.int32)[lax.axis_index(axis.AXIS)]]
            )
            rows.append(lax.ppermute(sent, axis.AXIS, pairs))
        rows.append(
            jnp.zeros((length - sum(len(part) for part in rows), *leaf.shape[1:]), leaf.dtype)
        )
        return jnp.concatenate(rows)

    return jax.tree.map(bring, tree)


def of_round(numbers: np.ndarray, topology: Topology, step: jax.Array | None = None) -> jax.Array:
    """The block's own of what a schedule has for each round and worker: `[period, N]` to `[n]`."""
    return axis.own(jnp.asarray(numbers)[_turn(topology, step)], topology.n)


def sum_of_others(
    table: jax.Array, topology: Topology, step: jax.Array | None = None, *, lost: bool = False
) -> jax.Array:
    """The sum over the others that one receives from, of counts that `fetch` brought: uint32
    `[m, k]` to `[n, k]`.

    Args:
        table, topology, step: as of `pull`.
        lost: in a round with an `attendance`, over those whose messages were sent and do not
            arrive; else over those whose messages do.
    """
    routes, at = routes_of(topology, axis.devices()), _here(topology, step)
    links = jnp.asarray(routes.weights != 0, jnp.uint32)[at]
    if there := attendance():
        own, others = axis.ids(topology.n)[:, None], _others(routes, at)
        arrives = there.arrives(own, others)
        links = jnp.where(
            there.present[own] & there.present[others] & ~arrives if lost else arrives,
            links,
            jnp.uint32(0),
        )
    if routes.places is None:
        return links @ table
    return jnp.sum(
        links[:, :, None] * table[jnp.asarray(routes.places)[at]], axis=1, dtype=jnp.uint32
    )


def receivers(topology: Topology, step: jax.Array | None = None) -> jax.Array:
    """To how many others each of the block's workers sends in a round with an `attendance`, uint32
    `[n]`: to those that are there.
    """
    there = attendance()
    assert there is not None
    lists = of_round(lists_of(topology, 0).workers, topology, step)
    together = (lists >= 0) & there.present[lists] & axis.own(there.present, topology.n)[:, None]
    return jnp.sum(together, axis=1, dtype=jnp.uint32)


def _others(routes: Routes, at: tuple) -> jax.Array:
    """Who is at the other end of each of the routes' weights: `[n, K]` where there are lists of
    those, else `[1, m]`.
    """
    whose = jnp.asarray(routes.whose)[at]
    return whose[None, :] if routes.places is None else whose[jnp.asarray(routes.places)[at]]


def _arrives(routes: Routes, at: tuple, topology: Topology) -> jax.Array | None:
    """Which of the routes' weights are of messages that arrive in this round, of their shape; None:
    all.
    """
    there = attendance()
    return there and there.arrives(axis.ids(topology.n)[:, None], _others(routes, at))


def _kept(topology: Topology, step: jax.Array | None) -> jax.Array:
    """The sums of rows of W, where what does not arrive stays with its sender, `[n]`: 1 less what
    leaves, and what comes.
    """
    there, turn = attendance(), _turn(topology, step)
    assert there is not None
    to = lists_of(topology, 0)
    own, lists = axis.ids(topology.n)[:, None], of_round(to.workers, topology, step)
    leaves = jnp.where(
        there.arrives(own, lists), axis.own(jnp.asarray(to.weights)[turn], topology.n), 0
    )
    routes, at = routes_of(topology, axis.devices()), _here(topology, step)
    comes = jnp.where(there.arrives(own, _others(routes, at)), jnp.asarray(routes.weights)[at], 0)
    return 1 - jnp.sum(leaves, axis=1) + jnp.sum(comes, axis=1)


def _common(mean: jax.Array) -> jax.Array:
    """The mean without its last bit: near it, and one number wherever it is used.

    A compiler may contract the mean's division with the difference that follows in one place and
    not in another: each would then differ from a mean of its own, by the same rounding in every
    round, which methods that add up changes drift away with.
    """
    kind = jnp.finfo(mean.dtype)
    return lax.reduce_precision(mean, kind.nexp, kind.nmant - 1)


def _pulled(
    tree: PyTree, table: PyTree, topology: Topology, step: jax.Array | None, onto: bool
) -> PyTree:
    """What gossip adds, or with `onto` what comes of adding it."""
    routes, at = routes_of(topology, axis.devices()), _here(topology, step)
    return jax.tree.map(
        partial(summed, routes, at, onto=onto, arrives=_arrives(routes, at, topology)), tree, table
    )


def summed(
    routes: Routes,
    at: tuple[int | jax.Array, ...],
    own: jax.Array,
    table: jax.Array,
    *,
    onto: bool,
    arrives: jax.Array | None = None,
) -> jax.Array:
    """What gossip adds to a leaf `[n, ...]`, or with `onto` what comes of adding it, from a table
    `[m, ...]`, as the routes have it.

    Leaves of half precision are summed in float32, and rounded once.

    Args:
        at: this round and this device in the routes' arrays.
        arrives: which of the weights count; None: all.
    """
    kind = own.dtype
    own, table = axis.widened((own, table))
    weights = jnp.asarray(routes.weights, own.dtype)[at]
    if arrives is not None:
        weights = jnp.where(arrives, weights, 0)
    if routes.places is None:
        return _by_product(own, table, weights, onto).astype(kind)
    return _by_rows(own, table, jnp.asarray(routes.places)[at], weights, onto).astype(kind)


def _check(tree: PyTree, topology: Topology) -> None:
    for leaf in jax.tree.leaves(tree):
        rows = leaf.shape[0] * axis.devices() if leaf.ndim else 0
        if rows != topology.n or not jnp.issubdtype(leaf.dtype, jnp.floating):
            given = f"a leaf of {rows} workers, {leaf.dtype}"
            raise ValueError(
                f"gossip over {topology.name}: {given}; need floating-point leaves of "
                f"{topology.n} workers"
            )


def _here(topology: Topology, step: jax.Array | None) -> tuple[int | jax.Array, int | jax.Array]:
    """Where this round and this device are in the arrays of a plan."""
    return _turn(topology, step), 0 if axis.devices() == 1 else lax.axis_index(axis.AXIS)


def _turn(topology: Topology, step: jax.Array | None):
    if topology.period == 1:
        return 0
    if step is None:
        raise ValueError(
            f"gossip over {topology.name}, a schedule of {topology.period} rounds: need the step, "
            "round.step in an update"
        )
    return lax.rem(jnp.asarray(step, jnp.int32), np.int32(topology.period))


def _by_product(own: jax.Array, table: jax.Array, weights: jax.Array, onto: bool) -> jax.Array:
    """All rows of the table, as they differ from the block's first: a product of differences, too,
    is 0 where models agree.
    """
    first = own[:1].reshape(1, -1)
    rows, mine = (x.reshape(x.shape[0], -1) - first for x in (table, own))
    pulled = (
        jnp.matmul(weights, rows, precision=lax.Precision.HIGHEST)
        - jnp.sum(weights, axis=1, keepdims=True) * mine
    )
    return pulled.reshape(own.shape) + (own if onto else 0)


def _by_rows(
    own: jax.Array, table: jax.Array, places: jax.Array, weights: jax.Array, onto: bool
) -> jax.Array:
    """A few rows each."""
    rows, mine = (x.reshape(x.shape[0], -1) for x in (table, own))
    terms = [
        weights[:, k, None] * (rows.at[places[:, k]].get(mode="promise_in_bounds") - mine)
        for k in range(places.shape[1])
    ]
    moved = reduce(jnp.add, terms, jnp.zeros_like(mine))
    return (mine + moved if onto else moved).reshape(own.shape)
