"""The worker axis: its mesh, the workers' ids and keys, and collectives.

N workers live on D devices in blocks of n = N / D. The functions below are called inside
`shard_map` over the mesh axis `"workers"`, on pytrees whose leaves are blocks `[n, ...]`, and mean
the same for every D: a collective over workers is a sum within the block, then one over devices. On
one device nothing is sent: the collective over devices is left out, not compiled to a no-op.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from dsgd import checks, xla
from dsgd.base import Gradients, PyTree
from dsgd.workers.attendance import attendance
from dsgd.workers.weights import weights

AXIS = "workers"
"""The name of the mesh axis over which workers are spread."""


@checks.arguments
def mesh(devices: int | Sequence[Any] | None = None) -> Mesh:
    """A one-dimensional mesh of devices, whose axis is `"workers"`; of several processes, in their
    order.

    Args:
        devices: the devices; or how many, the first of those that JAX sees; None for all. In
            several processes it is as many of each; 1 is a device of this process, on which it runs
            by itself.

    Raises:
        ValueError: no device, more than there are, or a number that the processes do not divide.
    """
    available = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    if isinstance(devices, int | np.integer):
        if not 1 <= devices <= len(available):
            raise ValueError(
                f"mesh of {devices} devices: need between 1 and the {len(available)} that JAX sees"
            )
        each, more = divmod(int(devices), jax.process_count())
        if devices == 1:
            each, more, available = 1, 0, jax.local_devices()
        if more:
            raise ValueError(
                f"mesh of {devices} devices in {jax.process_count()} processes: need as many of "
                "each, or one device"
            )
        owners = [device.process_index for device in available]
        devices = [
            device for i, device in enumerate(available) if i - owners.index(owners[i]) < each
        ]
    chosen = available if devices is None else list(devices)
    if not chosen:
        raise ValueError("mesh of no devices: need at least one")
    for device in chosen:
        if not isinstance(device, jax.Device) or chosen.count(device) > 1:
            given = f"{checks.shown(device)}{' more than once' if isinstance(device, jax.Device) else ''}"
            raise ValueError(f"mesh of {given}: need different devices, jax.devices()[:2], say")
    return Mesh(np.asarray(chosen), (AXIS,))


def automatic(given: Mesh) -> Mesh:
    """The mesh of the same devices whose axis has JAX's automatic type: collectives say themselves
    how arrays lie.

    Args:
        given: a mesh of any axis type; `jax.make_mesh` makes explicit ones.

    Raises:
        ValueError: its only axis is not `"workers"`, or it has no devices.
    """
    if given.axis_names != (AXIS,):
        remedy = f"dsgd.workers.mesh({given.size})" if given.size else "dsgd.workers.mesh()"
        raise ValueError(
            f"mesh: axes {given.axis_names} of shape {given.devices.shape}, but expected one axis "
            f"{AXIS!r}; pass {remedy}"
        )
    return Mesh(given.devices, (AXIS,))


def devices() -> int:
    """D, a Python int."""
    return lax.axis_size(AXIS)


def ids(workers: int) -> jax.Array:
    """The ids of the block's workers, int32 `[n]`.

    Args:
        workers: N.
    """
    first, block = _block(workers)
    return first + jnp.arange(block, dtype=jnp.int32)


def _block(workers: int) -> tuple[Any, int]:
    """The first id of this device's block, and n."""
    block = workers // devices()
    return (0 if devices() == 1 else lax.axis_index(AXIS) * block), block


def keys(key: jax.Array, workers: int) -> jax.Array:
    """One key for each of the block's workers, `fold_in(key, id)`: it does not depend on D.
    `[n]`.
    """
    return jax.vmap(partial(jax.random.fold_in, key))(ids(workers))


def own(tree: PyTree, workers: int) -> PyTree:
    """The block's rows `[n, ...]` of leaves `[N, ...]` that every device holds."""
    if devices() == 1:
        return tree
    first, block = _block(workers)
    return jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, first, block), tree)


def stack(tree: PyTree, workers: int) -> PyTree:
    """The same tree for each of `workers` workers: leaves `[...]` become `[workers, ...]`."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (workers, *jnp.shape(leaf))), tree)


def sum(tree: PyTree) -> PyTree:
    """The sum over all workers: leaves `[n, ...]` become `[...]` of the same type (flags are
    counted), the same on every device.

    In a round with an `attendance` it is over those that are there and whose part arrives. Half
    precision is summed in float32, also across devices, and rounded once; a sum above its range is
    infinite: sum `widened` rows if it is to be divided.
    """
    counted = _of_counted(tree)
    totals = _across(lax.psum, jax.tree.map(sum_rows, widened(counted)))
    return jax.tree.map(
        lambda total, leaf: total.astype(total.dtype if leaf.dtype == bool else leaf.dtype),
        totals,
        counted,
    )


def weighted_sum(tree: PyTree) -> PyTree:
    """As `sum`; where workers have `weights`, each row times its worker's."""
    if by := weights():
        tree = _times(own(jnp.asarray(by, jnp.result_type(float)), len(by)), tree)
    return sum(tree)


def mean(tree: PyTree) -> PyTree:
    r"""The mean over all workers: leaves `[n, ...]` become `[...]`, the same on every device.

    In a round with an `attendance` it is over those that are there and whose part arrives; of
    nobody it is 0 (see `if_any`). Where workers have `weights`, it is $\sum_n w_n x_n / \sum_n w_n$
    over the same workers.
    """
    there = attendance()
    if by := weights():
        return _weighted_mean(tree, by)
    if there is None:
        return narrowed(_across(lax.pmean, jax.tree.map(_wide_mean, tree)), tree)
    number = jnp.maximum(1, jnp.sum(there.counted))
    totals = _across(lax.psum, jax.tree.map(_total, _of_counted(tree)))
    return jax.tree.map(
        lambda total, leaf: (total / number.astype(total.dtype)).astype(leaf.dtype), totals, tree
    )


def _weighted_mean(tree: PyTree, by: tuple[float, ...]) -> PyTree:
    there, N = attendance(), len(by)
    numbers = jnp.asarray(by, jnp.result_type(float))
    numbers = numbers if there is None else jnp.where(there.counted, numbers, 0)
    total = jnp.sum(numbers)
    parts = _times(own(numbers / jnp.where(total > 0, total, 1), N), tree)
    totals = _across(lax.psum, jax.tree.map(_total, parts))
    return jax.tree.map(lambda total, leaf: total.astype(leaf.dtype), totals, tree)


def _times(factors: jax.Array, tree: PyTree) -> PyTree:
    """Rows times their factors `[n]`, in float32 at least; 0 where that is 0, whatever the row
    is.
    """

    def times(leaf):
        wide = leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
        each = jnp.expand_dims(factors, tuple(range(1, leaf.ndim))).astype(wide.dtype)
        return jnp.where(each == 0, 0, each * wide)

    return jax.tree.map(times, tree)


def where_present(tree: PyTree, otherwise: PyTree) -> PyTree:
    """The rows of those that take part in the round, and the others' of another tree, leaves
    `[n, ...]`.
    """
    there = attendance()
    return tree if there is None else where_rows(there.present, tree, otherwise)


def where_counted(tree: PyTree, otherwise: PyTree) -> PyTree:
    """The rows of those whose part of sums and means over all arrives in this round, and the
    others' of another tree, leaves `[n, ...]`.

    Whoever sends it knows: nobody has told that it arrived.
    """
    there = attendance()
    return tree if there is None else where_rows(there.counted, tree, otherwise)


def if_any(tree: PyTree, otherwise: PyTree) -> PyTree:
    """The tree, or another one if no part of sums and means over all arrives in this round; with
    `weights`, none of a weight above 0.
    """
    there = attendance()
    if there is None:
        return tree
    counted = there.counted & (np.asarray(by) > 0) if (by := weights()) else there.counted
    return jax.tree.map(partial(jnp.where, jnp.any(counted)), tree, otherwise)


def where_rows(chosen: jax.Array, tree: PyTree, otherwise: PyTree) -> PyTree:
    """The rows of the chosen workers, bool `[N]`, and the others' of another tree, leaves
    `[n, ...]`.
    """
    mine = own(chosen, chosen.shape[0])
    return jax.tree.map(
        lambda leaf, other: jnp.where(
            jnp.expand_dims(mine, tuple(range(1, leaf.ndim))), leaf, other
        ),
        tree,
        otherwise,
    )


def _of_counted(tree: PyTree) -> PyTree:
    return where_counted(tree, jax.tree.map(jnp.zeros_like, tree)) if attendance() else tree


def sum_rows(leaf: jax.Array) -> jax.Array:
    """The sum over the leading axis, `[n, ...]` to `[...]` of the same type (flags are counted), at
    the speed of memory.
    """
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.sum(leaf, axis=0, dtype=jnp.int32 if leaf.dtype == bool else leaf.dtype)
    return _total(leaf).astype(leaf.dtype)


def mean_rows(leaf: jax.Array) -> jax.Array:
    """The mean over the leading axis, `[n, ...]` to `[...]` of the same type, at the speed of
    memory.
    """
    return _wide_mean(leaf).astype(leaf.dtype)


def _wide_mean(leaf: jax.Array) -> jax.Array:
    """As `mean_rows`, in float32 at least."""
    return _total(leaf) / leaf.shape[0]


def _total(leaf: jax.Array) -> jax.Array:
    """The sum over the leading axis, in float32 at least: of half precision, it is for the caller
    to round, once.
    """
    return xla.sum_rows(leaf)


class _Moments(NamedTuple):
    """Of a leaf's rows `[n, ...]`, in float32 at least: the first, and sums over all of what they
    are apart from it, and of its square.
    """

    leaf: jax.Array
    first: jax.Array
    total: jax.Array
    squares: jax.Array


def _moments(leaf: jax.Array) -> _Moments:
    total, squares = xla.moments(leaf)
    return _Moments(leaf, leaf[0].astype(total.dtype), total, squares)


def mean_over_devices(tree: PyTree) -> PyTree:
    """The mean over devices of what each computed from its own block: leaves `[...]`, the same on
    every device.
    """
    return narrowed(_across(lax.pmean, widened(tree)), tree)


def widened(tree: PyTree) -> PyTree:
    """The tree with leaves of half precision as float32, in which sums over workers are computed.

    Args:
        tree: leaves of any shape; those of other types stay as they are.
    """

    def widen(leaf):
        floating = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)) if floating else leaf

    return jax.tree.map(widen, tree)


def narrowed(tree: PyTree, like: PyTree) -> PyTree:
    """The tree with leaves rounded to the types of another tree.

    Args:
        tree: leaves of any shape.
        like: a tree of the same structure; only its types count.
    """
    return jax.tree.map(lambda leaf, to: leaf.astype(jnp.result_type(to)), tree, like)


def mean_sqdist(tree: PyTree, center: PyTree) -> jax.Array:
    r"""The consensus distance $\frac1N \sum_n |x_n - \bar x|^2$, the same on every device.

    $$ \sum_n |x_n - c|^2 = \sum_n |x_n - x_0|^2 - 2 \langle c - x_0, \sum_n (x_n - x_0) \rangle + N
    |c - x_0|^2 $$

    Args:
        tree: leaves `[n, ...]`; $x_0$ is the block's first row.
        center: c, leaves `[...]`.
    """
    return _sqdist([_moments(leaf) for leaf in jax.tree.leaves(tree)], jax.tree.leaves(center))


def mean_and_sqdist(tree: PyTree) -> tuple[PyTree, jax.Array]:
    """The mean over all workers, as of `mean`, and the rows' `mean_sqdist` from it, in one pass
    over them.

    Args:
        tree: leaves `[n, ...]`, which are stored in memory.
    """
    leaves, structure = jax.tree.flatten(tree)
    moments = [_moments(leaf) for leaf in leaves]
    if weights() or attendance():
        center = jax.tree.leaves(mean(tree))
    else:
        means = [
            each.first + each.total / leaf.shape[0]
            for each, leaf in zip(moments, leaves, strict=True)
        ]
        center = narrowed(_across(lax.pmean, means), leaves)
    return structure.unflatten(center), _sqdist(moments, center)


def _sqdist(moments: list[_Moments], center: list[jax.Array]) -> jax.Array:
    def of(moments, middle):
        away, n = middle.astype(moments.first.dtype) - moments.first, moments.leaf.shape[0]
        # What is left is at least away^2, as x_0 is one of them: little cancels.
        each = moments.squares - 2 * away * moments.total + n * away**2
        return xla.sum_elements(each.ravel()) / n

    return mean_over_devices(reduce(jnp.add, map(of, moments, center)))


def sqnorms(gradients: Gradients) -> tuple[jax.Array, jax.Array]:
    r"""Squared norms of the local gradients, $|g_n|^2$ `[N]`, and of the global one,
    $|\frac1N \sum_n g_n|^2$, the same on every device.

    Args:
        gradients: leaves `[n, ...]`. On several devices they are all-reduced once more.
    """
    return gather(sqnorm_rows(gradients)), sqnorm_rows(stack(mean(gradients), 1))[0]


def sqnorm_rows(tree: PyTree) -> jax.Array:
    """The squared norm of each row of all leaves, `[n, ...]` to `[n]`, in float32 at least."""

    return jax.vmap(xla.sqnorm)(tree)


def find(chosen: jax.Array, workers: int) -> tuple[jax.Array, jax.Array]:
    """Which of the chosen workers live on this device, and at which row of the block: bool `[k]`,
    int32 `[k]`.

    The row of a worker that lives elsewhere is some row of this block: its result is for `select`
    to drop.
    """
    first, block = _block(workers)
    local = chosen - first
    return (local >= 0) & (local < block), local % block


def select(here: jax.Array, tree: PyTree) -> PyTree:
    """The rows `[k, ...]` from whichever device has them (`here`, from `find`), on every device."""

    def send(leaf):
        kept = jnp.where(
            jnp.expand_dims(here, tuple(range(1, leaf.ndim))), leaf, jnp.zeros((), leaf.dtype)
        )
        return lax.psum(kept.astype(jnp.int32) if leaf.dtype == bool else kept, AXIS).astype(
            leaf.dtype
        )

    return tree if devices() == 1 else jax.tree.map(send, tree)


def gather(tree: PyTree) -> PyTree:
    """Everybody's rows on every device: leaves `[n, ...]` become `[N, ...]`."""
    return _across(partial(lax.all_gather, tiled=True), tree)


def all_to_all(tree: PyTree) -> PyTree:
    """Worker i's message for worker j becomes worker j's message from worker i: leaves
    `[n, N, ...]` to `[n, N, ...]`.
    """
    if devices() == 1:
        return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), tree)

    # [n, N, ...] -> all_to_all gives [N, n, ...]: rows by sender, columns by own worker
    def exchange(leaf):
        received = lax.all_to_all(leaf, AXIS, split_axis=1, concat_axis=0, tiled=True)
        return jnp.swapaxes(received, 0, 1)

    return jax.tree.map(exchange, tree)


def shift(tree: PyTree, by: int) -> PyTree:
    """Worker i receives the row of worker i - by (modulo N): leaves `[n, ...]` to `[n, ...]`.

    Only rows that change device are sent: |by| of them for each device where |by| <= n.
    """
    return jax.tree.map(partial(_shift_leaf, by=by), tree)


def permuted(tree: PyTree, origin: np.ndarray) -> PyTree:
    """Worker i receives the row of worker `origin[i]`: leaves `[n, ...]` to `[n, ...]`.

    If each device has one worker, a row is sent once; otherwise all rows are gathered.

    Args:
        tree: leaves `[n, ...]`.
        origin: int `[N]`, a permutation.
    """
    N = len(origin)
    if devices() == N > 1:
        pairs = [
            (int(sender), receiver) for receiver, sender in enumerate(origin) if sender != receiver
        ]
        own_place = jnp.asarray(origin == np.arange(N))[lax.axis_index(AXIS)]
        return jax.tree.map(
            lambda leaf: jnp.where(own_place, leaf, lax.ppermute(leaf, AXIS, pairs)), tree
        )
    places = own(jnp.asarray(origin), N)
    return jax.tree.map(lambda leaf: leaf[places], gather(tree))


def _shift_leaf(x: jax.Array, by: int) -> jax.Array:
    block = x.shape[0]
    if devices() == 1:
        return jnp.roll(x, by, axis=0)
    # Row r of device j comes from worker j n + r - by = (j - hops) n + (r - offset), one device
    # further back for r < offset.
    hops, offset = divmod(by % (block * devices()), block)
    head = _from_device(x[block - offset :], hops + 1)
    tail = _from_device(x[: block - offset], hops)
    return jnp.concatenate([head, tail])


def _from_device(rows: jax.Array, hops: int) -> jax.Array:
    """The rows of the device `hops` places back on the axis."""
    size = devices()
    if rows.shape[0] == 0 or hops % size == 0:
        return rows
    return lax.ppermute(rows, AXIS, [(j, (j + hops) % size) for j in range(size)])


def _across(collective, tree: PyTree) -> PyTree:
    return tree if devices() == 1 else jax.tree.map(lambda leaf: collective(leaf, AXIS), tree)
