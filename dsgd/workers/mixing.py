"""Gossip: weighted sums over neighbours, at the cost of the neighbours' rows.

There are two steps. `gather_neighbours` brings the rows that a device needs to it; on one device
there is nothing to bring. `laplacian` sums their weighted differences from a worker's own row: row
by row if there are few neighbours, else as a matrix product. Between the two steps, methods with
compression decompress the rows.

Differences are used for accuracy. In float32 a row of thirds sums to 1 + 3e-8, not to 1: products
with W would make models grow by this factor in every round, and methods that accumulate the changes
by gossip (exact diffusion, EXTRA) would drift. Differences of models that agree are 0, and their
errors are as small as the disagreement.

If participation is set, the weights of links that are down, or that lead to workers that do not
participate, are 0.
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
from dsgd.workers.participation import participation
from dsgd.workers.routes import Permute, Routes, different, edge_routes_of, routes_of


def mix(
    tree: PyTree, topology: Topology, step: jax.Array | None = None, *, keep_sums: bool = False
) -> PyTree:
    r"""Returns the models after one gossip round, $x_i \leftarrow \sum_j W_{ij} x_j$ (5.2): leaves
    `[n, ...]` to `[n, ...]`.

    The sum is computed as $r_i x_i + \sum_{j \ne i} W_{ij} (x_j - x_i)$ with
    $r_i = \sum_j W_{ij}$, which is 1 if the rows sum to 1: models that agree do not change, bit for
    bit. Only the uniform W (the complete graph) is a mean over all workers, up to its rounding.

    If messages are lost, or workers do not participate, rows that sum to 1 still do: models that
    agree do not change, and, if W is symmetric, neither does the mean. For other W, and with
    `keep_sums`, columns sum to 1: a sender keeps what does not arrive.

    Args:
        tree: floating-point leaves of a block.
        topology: W.
        step: the present round (`Round.step`), for a schedule; the same for all runs of a `vmap`.
        keep_sums: for methods that need the sum over workers; W has columns that sum to 1.

    Raises:
        ValueError: if leaves are for another number of workers, or not floating point (weights
            would be rounded to 0); or if a schedule has no step.
    """
    _check(tree, topology)
    tree = xla.materialize(tree)  # a row is used once for each of its neighbours
    some_lost = participation() is not None
    if topology.uniform and not some_lost:
        return jax.tree.map(
            lambda mean, leaf: jnp.broadcast_to(mean, leaf.shape), axis.mean(tree), tree
        )
    if topology.row_stochastic and not (some_lost and keep_sums):
        return _pull(tree, gather_neighbours(tree, topology, step), topology, step, onto=True)
    own_weights = (
        _own_weights(topology, step)
        if some_lost
        else round_rows(np.stack([W.sum(axis=1) for W in topology.matrices]), topology, step)
    )
    wide = axis.widen(tree)
    moved = _pull(
        wide, axis.widen(gather_neighbours(tree, topology, step)), topology, step, onto=False
    )
    mixed = jax.tree.map(
        lambda x, change: axis.align(own_weights.astype(x.dtype), x) * x + change,
        wide,
        moved,
    )
    return axis.narrow(mixed, tree)


def laplacian(
    tree: PyTree,
    topology: Topology,
    step: jax.Array | None = None,
    *,
    table: PyTree | None = None,
    weighted: bool = True,
) -> PyTree:
    r"""Returns the change of models by a gossip round, $\sum_j W_{ij} (x_j - x_i)$: leaves
    `[n, ...]` to `[n, ...]`.

    For a doubly stochastic W it is $X (W^T - I)$. Its mean over workers is 0 up to the rounding of
    the change, not of the models, so that a sum of such terms does not drift.

    Args:
        tree, topology, step: as in `mix`.
        table: the result of `gather_neighbours` for the tree, if it has been fetched; None: it is
            fetched.
        weighted: whether neighbours have the weights of W; if not, each has the weight 1.

    Raises:
        ValueError: as `mix`.
    """
    _check(tree, topology)
    tree, table = xla.materialize((tree, table))
    if topology.uniform and table is None and participation() is None:
        rough = jax.tree.map(lambda mean, leaf: _common(mean)[None] - leaf, axis.mean(tree), tree)
        # The computed mean has a rounding error, as the models have; the second mean removes it.
        times = 1 if weighted else topology.n
        return jax.tree.map(lambda leaf, off: times * (leaf - off[None]), rough, axis.mean(rough))
    return _pull(
        tree,
        gather_neighbours(tree, topology, step) if table is None else table,
        topology,
        step,
        onto=False,
        weighted=weighted,
    )


def gather_neighbours(tree: PyTree, topology: Topology, step: jax.Array | None = None) -> PyTree:
    """Returns the table of rows that the block's workers need, including their own: leaves
    `[n, ...]` of any type to `[m, ...]`.

    Over D devices, the rows are sent in as many collective-permutes as a device has neighbours, or
    in one all-gather if that sends no more rows. On a ring these are two permutes of one row each.
    If every device has one worker, a worker sends its row to each of its neighbours only.
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
    tree: PyTree,
    topology: Topology,
    step: jax.Array | None = None,
    *,
    table: PyTree | None = None,
) -> PyTree:
    """Returns the rows that a worker receives, one by one: leaves `[n, K, ...]`, where K is the
    largest number of rows that a worker receives.

    Args:
        tree, topology, step: as in `mix`, with leaves of any type.
        table: as in `laplacian`.
    """
    routes = routes_of(topology, axis.devices(), rows=True)
    places = jnp.asarray(routes.places)[_here(topology, step)]
    table = gather_neighbours(tree, topology, step) if table is None else table
    return jax.tree.map(lambda rows: rows[places], table)


def neighbour_weights(tree: PyTree, topology: Topology, step: jax.Array | None = None) -> jax.Array:
    """Returns the weights in W of the rows that `neighbours` returns, `[n, K]`, of the tree's type.
    They are 0 for missing neighbours and for messages that do not arrive.
    """
    routes, at = routes_of(topology, axis.devices(), rows=True), _here(topology, step)
    kind = jnp.result_type(
        *(leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)),
        jnp.float16,
    )
    weights, arrives = jnp.asarray(routes.weights, kind)[at], _arrives(routes, at, topology)
    return weights if arrives is None else jnp.where(arrives, weights, 0)


def to_each_neighbour(tree: PyTree, otherwise: PyTree, topology: Topology) -> PyTree:
    """Sends a different row to each neighbour. The k-th row of a worker is sent to its k-th
    neighbour; the k-th row that it receives is that of its k-th neighbour, in the order of
    `neighbours`.

    Over D devices each row is sent once, in as many collective-permutes as a device has neighbours.

    Args:
        tree: leaves `[n, K, ...]` of any type, where K is the largest number of neighbours.
        otherwise: what a worker has in place of rows that do not arrive and of neighbours that do
            not exist, leaves `[n, K, ...]`.
        topology: an undirected graph, the same in all rounds.
    """
    routes, participants = edge_routes_of(topology, axis.devices()), participation()
    places = jnp.asarray(routes.places)[_here(topology, None)[1]]
    receivers = round_rows(lists_of(topology, 0).workers, topology)
    arrives = receivers >= 0
    if participants is not None:
        arrives &= participants.arrives(axis.ids(topology.n)[:, None], receivers)

    def rows(leaf):
        return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])

    table = jax.tree.map(rows, tree)
    if axis.devices() > 1:
        table = _bring(table, routes.permutes, routes.length)
    return jax.tree.map(
        lambda table, other: jnp.where(
            axis.align(arrives, other),
            table[places].reshape(other.shape),
            other,
        ),
        table,
        otherwise,
    )


def table_size(topology: Topology) -> int:
    """Returns m, the number of rows of the table that `gather_neighbours` returns."""
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


def round_rows(numbers: np.ndarray, topology: Topology, step: jax.Array | None = None) -> jax.Array:
    """Returns the block's part of the round's numbers from a table with all rounds of a schedule
    and all workers: `[period, N]` to `[n]`.
    """
    return axis.local_block(jnp.asarray(numbers)[_turn(topology, step)], topology.n)


def neighbour_sum(
    table: jax.Array, topology: Topology, step: jax.Array | None = None, *, lost: bool = False
) -> jax.Array:
    """Returns sums of counts over the other workers from which each worker receives: uint32
    `[m, k]` to `[n, k]`.

    Args:
        table: counts, as `gather_neighbours` returned them.
        topology, step: as in `laplacian`.
        lost: whether the sum is over messages that were sent and do not arrive, instead of over
            messages that arrive; for rounds with participation set.
    """
    routes, at = routes_of(topology, axis.devices()), _here(topology, step)
    links = jnp.asarray(routes.weights != 0, jnp.uint32)[at]
    if participants := participation():
        ids, others = axis.ids(topology.n)[:, None], _others(routes, at)
        arrives = participants.arrives(ids, others)
        links = jnp.where(
            participants.present[ids] & participants.present[others] & ~arrives
            if lost
            else arrives,
            links,
            jnp.uint32(0),
        )
    if routes.places is None:
        return links @ table
    return jnp.sum(
        links[:, :, None] * table[jnp.asarray(routes.places)[at]], axis=1, dtype=jnp.uint32
    )


def neighbour_variances(
    variances: jax.Array,
    topology: Topology,
    step: jax.Array | None = None,
    *,
    weighted: bool = True,
) -> jax.Array:
    r"""Returns the variances of sums over neighbours of independent terms,
    $\sum_{j \ne i} W_{ij}^2 s_j^2$ over the messages that arrive, `[n]`.

    Args:
        variances: $s_j^2$ of the block's workers, floating point `[n]`.
        topology, step, weighted: as in `laplacian`.
    """
    routes, at = routes_of(topology, axis.devices()), _here(topology, step)
    squares = routes._replace(weights=routes.weights**2 if weighted else routes.weights != 0)
    return add_neighbours(
        squares,
        at,
        jnp.zeros_like(variances),
        gather_neighbours(variances, topology, step),
        onto=False,
        arrives=_arrives(routes, at, topology),
    )


def out_degree(topology: Topology, step: jax.Array | None = None) -> jax.Array:
    """Returns to how many other workers each of the block's workers sends, uint32 `[n]`, in a round
    with participation set: to the neighbours that participate.
    """
    participants = participation()
    assert participants is not None
    lists = round_rows(lists_of(topology, 0).workers, topology, step)
    sends_to = (
        (lists >= 0)
        & participants.present[lists]
        & axis.local_block(participants.present, topology.n)[:, None]
    )
    return jnp.sum(sends_to, axis=1, dtype=jnp.uint32)


def _others(routes: Routes, at: tuple) -> jax.Array:
    """Returns the worker at the other end of each of the routes' weights: `[n, K]` if the routes
    have lists, else `[1, m]`.
    """
    whose = jnp.asarray(routes.whose)[at]
    return whose[None, :] if routes.places is None else whose[jnp.asarray(routes.places)[at]]


def _arrives(routes: Routes, at: tuple, topology: Topology) -> jax.Array | None:
    """Returns which of the routes' weights belong to messages that arrive in this round, of the
    weights' shape; None: all.
    """
    participants = participation()
    return participants and participants.arrives(axis.ids(topology.n)[:, None], _others(routes, at))


def _own_weights(topology: Topology, step: jax.Array | None) -> jax.Array:
    """Returns the row sums of W when each sender keeps what does not arrive, `[n]`: 1, minus what
    leaves, plus what arrives.
    """
    participants, turn = participation(), _turn(topology, step)
    assert participants is not None
    to = lists_of(topology, 0)
    ids, lists = axis.ids(topology.n)[:, None], round_rows(to.workers, topology, step)
    leaves = jnp.where(
        participants.arrives(ids, lists),
        axis.local_block(jnp.asarray(to.weights)[turn], topology.n),
        0,
    )
    routes, at = routes_of(topology, axis.devices()), _here(topology, step)
    comes = jnp.where(
        participants.arrives(ids, _others(routes, at)), jnp.asarray(routes.weights)[at], 0
    )
    return 1 - jnp.sum(leaves, axis=1) + jnp.sum(comes, axis=1)


def _common(mean: jax.Array) -> jax.Array:
    """Returns the mean without its last bit: close to the mean, and the same number wherever it is
    used.

    A compiler may fuse the division of the mean with a subsequent difference in one place and not
    in another. The results would differ by the same rounding error in every round, and methods that
    accumulate changes would drift.
    """
    kind = jnp.finfo(mean.dtype)
    return lax.reduce_precision(mean, kind.nexp, kind.nmant - 1)


def _pull(
    tree: PyTree,
    table: PyTree,
    topology: Topology,
    step: jax.Array | None,
    onto: bool,
    weighted: bool = True,
) -> PyTree:
    """Returns the change by a gossip round, or, with `onto`, the changed models."""
    routes, at = routes_of(topology, axis.devices()), _here(topology, step)
    if not weighted:
        routes = routes._replace(weights=routes.weights != 0)
    return jax.tree.map(
        partial(add_neighbours, routes, at, onto=onto, arrives=_arrives(routes, at, topology)),
        tree,
        table,
    )


def add_neighbours(
    routes: Routes,
    at: tuple[int | jax.Array, ...],
    block: jax.Array,
    table: jax.Array,
    *,
    onto: bool,
    arrives: jax.Array | None = None,
) -> jax.Array:
    """Returns the change of a leaf `[n, ...]` by a gossip round, or, with `onto`, the changed leaf,
    from a table `[m, ...]` and routes.

    Half-precision leaves are summed in float32 and rounded once.

    Args:
        routes: the routes of the topology.
        at: indices of this round and this device in the routes' arrays.
        block: the leaf.
        table: rows from `gather_neighbours`.
        onto: whether the change is added to the leaf.
        arrives: which of the weights count; None: all.
    """
    kind = block.dtype
    block, table = axis.widen((block, table))
    weights = jnp.asarray(routes.weights, block.dtype)[at]
    if arrives is not None:
        weights = jnp.where(arrives, weights, 0)
    if routes.places is None:
        return _multiply(block, table, weights, onto).astype(kind)
    return _add_rows(block, table, jnp.asarray(routes.places)[at], weights, onto).astype(kind)


def _check(tree: PyTree, topology: Topology) -> None:
    for leaf in jax.tree.leaves(tree):
        rows = leaf.shape[0] * axis.devices() if leaf.ndim else 0
        if rows != topology.n or not jnp.issubdtype(leaf.dtype, jnp.floating):
            given = f"a leaf of {rows} workers, {leaf.dtype}"
            raise ValueError(
                f"gossip on {topology.name}: {given}; expected floating-point leaves of "
                f"{topology.n} workers"
            )


def _here(topology: Topology, step: jax.Array | None) -> tuple[int | jax.Array, int | jax.Array]:
    """Returns the indices of this round and this device in a plan's arrays."""
    return _turn(topology, step), 0 if axis.devices() == 1 else lax.axis_index(axis.AXIS)


def _turn(topology: Topology, step: jax.Array | None):
    if topology.period == 1:
        return 0
    if step is None:
        raise ValueError(
            f"gossip on {topology.name}, a schedule of {topology.period} rounds: step = None; "
            "expected the step of the round, round.step in an update"
        )
    return lax.rem(jnp.asarray(step, jnp.int32), np.int32(topology.period))


def _multiply(block: jax.Array, table: jax.Array, weights: jax.Array, onto: bool) -> jax.Array:
    """Sums all rows of the table by a matrix product, as differences from the block's first row, so
    that the product is 0 if models agree.
    """
    first = block[:1].reshape(1, -1)
    rows, flat = (x.reshape(x.shape[0], -1) - first for x in (table, block))
    pulled = (
        jnp.matmul(weights, rows, precision=lax.Precision.HIGHEST)
        - jnp.sum(weights, axis=1, keepdims=True) * flat
    )
    return pulled.reshape(block.shape) + (block if onto else 0)


def _add_rows(
    block: jax.Array, table: jax.Array, places: jax.Array, weights: jax.Array, onto: bool
) -> jax.Array:
    """Sums a few rows of the table for each worker, term by term."""
    rows, flat = (x.reshape(x.shape[0], -1) for x in (table, block))
    terms = [
        weights[:, k, None] * (rows.at[places[:, k]].get(mode="promise_in_bounds") - flat)
        for k in range(places.shape[1])
    ]
    moved = reduce(jnp.add, terms, jnp.zeros_like(flat))
    return (flat + moved if onto else moved).reshape(block.shape)
