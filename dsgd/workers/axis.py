"""The worker axis: its mesh, the workers' ids and keys, and collectives.

N workers are placed on D devices in blocks of n = N / D. The functions below are called inside
`shard_map` over the mesh axis `"workers"`, on pytrees whose leaves are blocks `[n, ...]`. Their
results do not depend on D: a collective over workers is a sum within the block, then a collective
over devices. On one device the collective over devices is left out.
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

from dsgd import checks, modes, xla
from dsgd.base import Gradients, PyTree
from dsgd.workers.cohort import cohort, is_alone
from dsgd.workers.participation import participation
from dsgd.workers.weights import weights

AXIS = "workers"
"""The name of the mesh axis over which workers are spread."""


@checks.arguments
def mesh(devices: int | Sequence[Any] | None = None) -> Mesh:
    """Returns a one-dimensional mesh of devices, whose axis is `"workers"`. The devices of several
    processes are in the order of the processes.

    Args:
        devices: a list of devices; or their number, to which all processes contribute equally (the
            first devices that JAX sees); None: all devices. If it is 1, the mesh has one device of
            this process, which then runs without the other processes.

    Raises:
        ValueError: if there are no devices, fewer than requested, or a number that cannot be
            divided among the processes; or if a device is repeated.
    """
    available = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    if isinstance(devices, int | np.integer):
        if not 1 <= devices <= len(available):
            raise ValueError(
                f"mesh: devices = {devices}; expected between 1 and the {len(available)} that JAX "
                "sees"
            )
        per_process, remainder = divmod(int(devices), jax.process_count())
        if devices == 1:
            per_process, remainder, available = 1, 0, jax.local_devices()
        if remainder:
            raise ValueError(
                f"mesh: devices = {devices} in {jax.process_count()} processes; expected a "
                "multiple of the number of processes, or 1"
            )
        owners = [device.process_index for device in available]
        devices = [
            device
            for i, device in enumerate(available)
            if i - owners.index(owners[i]) < per_process
        ]
    chosen = available if devices is None else list(devices)
    if not chosen:
        raise ValueError("mesh: devices = []; expected at least one device")
    for device in chosen:
        if not isinstance(device, jax.Device) or chosen.count(device) > 1:
            again = " more than once" if isinstance(device, jax.Device) else ""
            raise ValueError(
                f"mesh: devices contains {checks.show(device)}{again}; expected different "
                "devices, such as jax.devices()[:2]"
            )
    return Mesh(np.asarray(chosen), (AXIS,))


def automatic(given: Mesh) -> Mesh:
    """Returns the mesh of the same devices whose axis has JAX's automatic type, so that collectives
    determine how arrays are laid out.

    Args:
        given: a mesh of any axis type (`jax.make_mesh` makes explicit axes).

    Raises:
        ValueError: if its only axis is not `"workers"`, or it has no devices.
    """
    if given.axis_names != (AXIS,):
        remedy = f"dsgd.workers.mesh({given.size})" if given.size else "dsgd.workers.mesh()"
        raise ValueError(
            f"mesh: axes {given.axis_names} of shape {given.devices.shape}; expected one axis "
            f"{AXIS!r}; pass {remedy}"
        )
    return Mesh(given.devices, (AXIS,))


def devices() -> int:
    """Returns D, the number of devices, a Python int."""
    return 1 if is_alone() else lax.axis_size(AXIS)


def is_first_device() -> jax.Array:
    """Whether this is the first device, a bool scalar."""
    return jnp.asarray(True) if devices() == 1 else lax.axis_index(AXIS) == 0


def block_size(workers: int) -> int:
    """Returns n, the number of the block's workers: N / D, or the cohort's share.

    Args:
        workers: N.
    """
    return (len(among.ids) if (among := cohort()) else workers) // devices()


def ids(workers: int) -> jax.Array:
    """Returns the ids of the block's workers, int32 `[n]`.

    Args:
        workers: N.
    """
    first, block = _block(workers)
    if among := cohort():
        return lax.dynamic_slice_in_dim(among.ids, first, block)
    return first + jnp.arange(block, dtype=jnp.int32)


def _block(workers: int) -> tuple[Any, int]:
    """Returns the first position of this device's block among the workers with rows, and n."""
    block = block_size(workers)
    return (0 if devices() == 1 else lax.axis_index(AXIS) * block), block


def keys(key: jax.Array, workers: int) -> jax.Array:
    """Returns one key for each of the block's workers, `fold_in(key, id)`, `[n]`; keys do not
    depend on D.
    """
    return jax.vmap(partial(jax.random.fold_in, key))(ids(workers))


def local_block(tree: PyTree, workers: int) -> PyTree:
    """Returns the block's rows `[n, ...]` of leaves `[N, ...]`, which are the same on every
    device.
    """
    if cohort():
        at = ids(workers)
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[at], tree)
    if devices() == 1:
        return tree
    first, block = _block(workers)
    return jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, first, block), tree)


def replicate(tree: PyTree, workers: int) -> PyTree:
    """Repeats a tree for each of `workers` workers: leaves `[...]` become `[workers, ...]`."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (workers, *jnp.shape(leaf))), tree)


def sum(tree: PyTree) -> PyTree:
    """Returns the sum over all workers, the same on every device: leaves `[n, ...]` become `[...]`
    of the same type. Bools are counted.

    If participation is set, the sum is over the workers that participate and whose contributions
    arrive. Half-precision leaves are summed in float32, also across devices, and rounded once; a
    sum beyond the range is infinite, so sum `widen` rows if the result is to be divided.
    """
    counted = _zero_undelivered(tree)
    totals = _across(lax.psum, jax.tree.map(sum_rows, widen(counted)))
    return jax.tree.map(
        lambda total, leaf: total.astype(total.dtype if leaf.dtype == bool else leaf.dtype),
        totals,
        counted,
    )


def weighted_sum(tree: PyTree) -> PyTree:
    """Returns the sum over all workers; if `weights` are set, each row is multiplied by the
    worker's weight.
    """
    if by := weights():
        tree = _times(local_block(jnp.asarray(by, jnp.result_type(float)), len(by)), tree)
    return sum(tree)


def mean(tree: PyTree) -> PyTree:
    r"""Returns the mean over all workers, the same on every device: leaves `[n, ...]` become
    `[...]`, of the same type if it is a floating type, else of JAX's default type.

    If participation is set, the mean is over the workers that participate and whose contributions
    arrive; it is 0 if there are none (see `if_nonempty`). If `weights` are set, it is
    $\sum_n w_n x_n / \sum_n w_n$ over the same workers.
    """
    participants, tree = participation(), _to_real(tree)
    if by := weights():
        return _weighted_mean(tree, by)
    if participants is None:
        return narrow(_across(lax.pmean, jax.tree.map(_wide_mean, tree)), tree)
    number = jnp.maximum(1, jnp.sum(participants.counted))
    totals = _across(lax.psum, jax.tree.map(_total, _zero_undelivered(tree)))
    return jax.tree.map(
        lambda total, leaf: (total / number.astype(total.dtype)).astype(leaf.dtype), totals, tree
    )


def block_means(tree: PyTree, size: int) -> PyTree:
    r"""Replaces every row by the mean over its block of consecutive workers, of which the first one
    has the workers 0 to `size - 1`: leaves `[n, ...]` to `[n, ...]`. If `weights` are set, the
    means are $\sum_n w_n x_n / \sum_n w_n$ over the block. All workers must participate.

    Devices that hold a part of a block each exchange sums among themselves; devices that hold whole
    blocks exchange nothing.

    Args:
        tree: floating-point leaves `[n, ...]`.
        size: number of workers in a block, which divides the number of all workers.
    """
    by, parts, number = weights(), widen(tree), size
    if by:
        each = np.asarray(by).reshape(-1, size)
        shares = (each / each.sum(axis=1, keepdims=True)).ravel()
        shares = jnp.asarray(shares, jnp.result_type(float))
        parts, number = _times(local_block(shares, len(by)), tree), 1

    def means(part, leaf):
        rows, shape = part.shape[0], leaf.shape[1:]
        if rows < size and size % rows == 0:
            together = np.arange(devices()).reshape(-1, size // rows).tolist()
            totals = lax.psum(_total(part)[None], AXIS, axis_index_groups=together)
            return jnp.repeat(totals / number, rows, axis=0).astype(leaf.dtype)
        whole = rows % size == 0
        every = part if whole else gather(part)
        totals = jnp.sum(every.reshape(-1, size, *shape), axis=1)
        found = jnp.repeat(totals / number, size, axis=0).astype(leaf.dtype)
        return found if whole else local_block(found, found.shape[0])

    return jax.tree.map(means, parts, tree)


def _weighted_mean(tree: PyTree, by: tuple[float, ...]) -> PyTree:
    participants, N = participation(), len(by)
    numbers = jnp.asarray(by, jnp.result_type(float))
    numbers = numbers if participants is None else jnp.where(participants.counted, numbers, 0)
    total = jnp.sum(numbers)
    parts = _times(local_block(numbers / jnp.where(total > 0, total, 1), N), tree)
    totals = _across(lax.psum, jax.tree.map(_total, parts))
    return jax.tree.map(lambda total, leaf: total.astype(leaf.dtype), totals, tree)


def _times(factors: jax.Array, tree: PyTree) -> PyTree:
    """Multiplies rows by factors `[n]`, in at least float32. If a factor is 0 the result is 0, even
    if the row is not finite.
    """

    def times(leaf):
        wide = leaf.astype(modes.wide_type(leaf.dtype))
        each = align(factors, leaf).astype(wide.dtype)
        return jnp.where(each == 0, 0, each * wide)

    return jax.tree.map(times, tree)


def where_present(tree: PyTree, otherwise: PyTree) -> PyTree:
    """Returns the rows of `tree` for workers that participate in the round, and the rows of
    `otherwise` for the others, leaves `[n, ...]`.
    """
    participants = participation()
    return tree if participants is None else where_rows(participants.present, tree, otherwise)


def where_delivered(tree: PyTree, otherwise: PyTree) -> PyTree:
    """Returns the rows of `tree` for workers whose contributions to sums and means arrive in this
    round, and the rows of `otherwise` for the others, leaves `[n, ...]`.

    The simulation assumes that the sender knows this; no acknowledgement is counted as a message.
    """
    participants = participation()
    return tree if participants is None else where_rows(participants.counted, tree, otherwise)


def if_nonempty(tree: PyTree, otherwise: PyTree) -> PyTree:
    """Returns `tree`, or `otherwise` if no contribution to sums and means arrives in this round;
    with `weights`, if none with a positive weight arrives.
    """
    participants = participation()
    if participants is None:
        return tree
    arrived = (
        participants.counted & (np.asarray(by) > 0) if (by := weights()) else participants.counted
    )
    return jax.tree.map(partial(jnp.where, jnp.any(arrived)), tree, otherwise)


def share_delivered() -> jax.Array | float:
    """Returns the share of the N workers' contributions to sums and means that arrive in this
    round.
    """
    participants = participation()
    # JAX's mean of booleans is float32 in every mode.
    return 1.0 if participants is None else mean_rows(participants.counted)


def where_rows(chosen: jax.Array, tree: PyTree, otherwise: PyTree) -> PyTree:
    """Returns the rows of `tree` for the chosen workers, bool `[N]`, and the rows of `otherwise`
    for the others, leaves `[n, ...]`.
    """
    local = local_block(chosen, chosen.shape[0])
    return jax.tree.map(
        lambda leaf, other: jnp.where(align(local, leaf), leaf, other),
        tree,
        otherwise,
    )


def align(numbers: jax.Array, leaf: jax.Array) -> jax.Array:
    """Adds axes at the end of numbers, such as `[n]`, so that they broadcast with a leaf
    `[n, ...]`.
    """
    return jnp.expand_dims(numbers, tuple(range(numbers.ndim, leaf.ndim)))


def _zero_undelivered(tree: PyTree) -> PyTree:
    return where_delivered(tree, jax.tree.map(jnp.zeros_like, tree)) if participation() else tree


def sum_rows(leaf: jax.Array) -> jax.Array:
    """Returns the sum over the leading axis, `[n, ...]` to `[...]` of the same type, at the speed
    of memory. Bools are counted.
    """
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.sum(leaf, axis=0, dtype=jnp.int32 if leaf.dtype == bool else leaf.dtype)
    return _total(leaf).astype(leaf.dtype)


def mean_rows(leaf: jax.Array) -> jax.Array:
    """Returns the mean over the leading axis, `[n, ...]` to `[...]`, at the speed of memory; its
    type is that of `mean`.
    """
    leaf = _to_real(leaf)
    return _wide_mean(leaf).astype(leaf.dtype)


def _to_real(tree: PyTree) -> PyTree:
    """Returns the tree with booleans and integers as floating-point numbers."""

    def convert(leaf):
        floating = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        return leaf if floating else leaf.astype(modes.wide_type(leaf.dtype))

    return jax.tree.map(convert, tree)


def _wide_mean(leaf: jax.Array) -> jax.Array:
    """Returns the mean over the leading axis, `[n, ...]` to `[...]`, in at least float32."""
    return _total(leaf) / leaf.shape[0]


def _total(leaf: jax.Array) -> jax.Array:
    """Returns the sum over the leading axis, in at least float32; the caller rounds it to half
    precision.
    """
    return xla.sum_rows(leaf)


class _Moments(NamedTuple):
    """Moments of a leaf's rows `[n, ...]`, in at least float32: the first row, and the sums over
    all rows of the difference from the first row and of its square.
    """

    leaf: jax.Array
    first: jax.Array
    total: jax.Array
    squares: jax.Array


def _moments(leaf: jax.Array) -> _Moments:
    total, squares = xla.moments(leaf)
    return _Moments(leaf, leaf[0].astype(total.dtype), total, squares)


def mean_over_devices(tree: PyTree) -> PyTree:
    """Returns the mean over devices of values that each device computed from its block, the same on
    every device: leaves `[...]`.
    """
    return narrow(_across(lax.pmean, widen(tree)), tree)


def sum_over_devices(tree: PyTree) -> PyTree:
    """Returns the sum over devices of values that each device computed from its block, the same on
    every device: leaves `[...]`.
    """
    return narrow(_across(lax.psum, widen(tree)), tree)


def widen(tree: PyTree) -> PyTree:
    """Returns the tree with half-precision leaves as float32, in which sums over workers are
    computed.

    Args:
        tree: leaves of any shape; leaves of other types are not changed.
    """

    def widen(leaf):
        floating = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)) if floating else leaf

    return jax.tree.map(widen, tree)


def narrow(tree: PyTree, like: PyTree) -> PyTree:
    """Returns the tree with leaves rounded to the types of another tree.

    Args:
        tree: leaves of any shape.
        like: a tree of the same structure, of which only the types are used.
    """
    return jax.tree.map(lambda leaf, to: leaf.astype(jnp.result_type(to)), tree, like)


def mean_sqdist(tree: PyTree, center: PyTree) -> jax.Array:
    r"""Returns the consensus distance $\frac1N \sum_n |x_n - \bar x|^2$, the same on every device.

    It is computed from the sums

    $$ \sum_n |x_n - c|^2 = \sum_n |x_n - x_0|^2 - 2 \langle c - x_0, \sum_n (x_n - x_0) \rangle + n
    |c - x_0|^2 $$

    over the n workers of each block, where $x_0$ is the block's first row.

    Args:
        tree: leaves `[n, ...]`.
        center: c, leaves `[...]`.
    """
    return _sqdist([_moments(leaf) for leaf in jax.tree.leaves(tree)], jax.tree.leaves(center))


def mean_and_sqdist(tree: PyTree) -> tuple[PyTree, jax.Array]:
    """Returns the mean over all workers, as `mean`, and the rows' mean squared distance from it, as
    `mean_sqdist`, in one pass over the rows.

    Args:
        tree: leaves `[n, ...]` that are stored in memory.
    """
    leaves, structure = jax.tree.flatten(_to_real(tree))
    moments = [_moments(leaf) for leaf in leaves]
    if weights() or participation():
        center = jax.tree.leaves(mean(tree))
    else:
        means = [
            each.first + each.total / leaf.shape[0]
            for each, leaf in zip(moments, leaves, strict=True)
        ]
        center = narrow(_across(lax.pmean, means), leaves)
    return structure.unflatten(center), _sqdist(moments, center)


def _sqdist(moments: list[_Moments], center: list[jax.Array]) -> jax.Array:
    def leaf_sqdist(moments, c):
        delta, n = c.astype(moments.first.dtype) - moments.first, moments.leaf.shape[0]
        # The result is at least delta^2, since x_0 is one of the rows, so little cancels.
        squares = moments.squares - 2 * delta * moments.total + n * delta**2
        return xla.sum_elements(squares.ravel()) / n

    return mean_over_devices(reduce(jnp.add, map(leaf_sqdist, moments, center)))


def sqnorms(gradients: Gradients) -> tuple[jax.Array, jax.Array]:
    r"""Returns the squared norms of the local gradients, $|g_n|^2$ `[N]`, and of the global one,
    $|\frac1N \sum_n g_n|^2$, both the same on every device.

    Args:
        gradients: leaves `[n, ...]`. On several devices the gradients are all-reduced for this.
    """
    return gather(sqnorm_rows(gradients)), sqnorm_rows(replicate(mean(gradients), 1))[0]


def sqnorm_rows(tree: PyTree) -> jax.Array:
    """Returns the squared norm of each row over all leaves, `[n, ...]` to `[n]`, in at least
    float32.
    """
    return jax.vmap(xla.sqnorm)(tree)


def locate(chosen: jax.Array, workers: int) -> tuple[jax.Array, jax.Array]:
    """Returns which of the given workers, int `[k]`, are on this device, bool `[k]`, and their rows
    in the block, int32 `[k]`.

    For a worker on another device the row is an arbitrary row of this block, whose result `collect`
    drops.
    """
    first, block = _block(workers)
    local = chosen - first
    return (local >= 0) & (local < block), local % block


def collect(here: jax.Array, tree: PyTree) -> PyTree:
    """Returns on every device the rows `[k, ...]` of the devices that have them (`here`, from
    `locate`).
    """

    def send(leaf):
        kept = jnp.where(align(here, leaf), leaf, jnp.zeros((), leaf.dtype))
        return lax.psum(kept.astype(jnp.int32) if leaf.dtype == bool else kept, AXIS).astype(
            leaf.dtype
        )

    return tree if devices() == 1 else jax.tree.map(send, tree)


def first_row(leaf: jax.Array) -> jax.Array:
    """Returns the first row of the first device on every device, `[n, ...]` to `[...]`."""
    return collect(is_first_device(), leaf[0])


def all_gather(tree: PyTree) -> PyTree:
    """Returns the rows of all devices on every device, one block after the other."""
    return _across(partial(lax.all_gather, tiled=True), tree)


def gather(tree: PyTree) -> PyTree:
    """Returns the rows of all workers on every device: leaves `[n, ...]` become `[N, ...]`. Workers
    that are not in the cohort have rows of zeros.
    """
    rows = all_gather(tree)
    if not (among := cohort()):
        return rows

    def spread(leaf: jax.Array) -> jax.Array:
        everyone = jnp.zeros((among.workers, *leaf.shape[1:]), leaf.dtype)
        return everyone.at[among.ids].set(leaf, unique_indices=True)

    return jax.tree.map(spread, rows)


def all_to_all(tree: PyTree) -> PyTree:
    """Exchanges messages between all pairs of workers: worker j receives from worker i what i has
    in row j. Leaves `[n, N, ...]` to `[n, N, ...]`.
    """
    if devices() == 1:
        return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), tree)

    # lax.all_to_all returns [N, n, ...]: rows by sender, columns by the block's workers.
    def exchange(leaf):
        received = lax.all_to_all(leaf, AXIS, split_axis=1, concat_axis=0, tiled=True)
        return jnp.swapaxes(received, 0, 1)

    return jax.tree.map(exchange, tree)


def ring_shift(tree: PyTree, by: int) -> PyTree:
    """Sends the row of worker i - by (modulo N) to worker i: leaves `[n, ...]` to `[n, ...]`.

    Only rows that change device are sent: |by| of them per device if |by| <= n.
    """
    return jax.tree.map(partial(_shift_leaf, by=by), tree)


def _shift_leaf(x: jax.Array, by: int) -> jax.Array:
    block = x.shape[0]
    if devices() == 1:
        return jnp.roll(x, by, axis=0)
    # Row r of device j is from worker j n + r - by = (j - hops) n + (r - offset), which is on the
    # previous device if r < offset.
    hops, offset = divmod(by % (block * devices()), block)
    head = _from_device(x[block - offset :], hops + 1)
    tail = _from_device(x[: block - offset], hops)
    return jnp.concatenate([head, tail])


def _from_device(rows: jax.Array, hops: int) -> jax.Array:
    """Returns the rows of the device `hops` positions before this one on the axis."""
    size = devices()
    if rows.shape[0] == 0 or hops % size == 0:
        return rows
    return lax.ppermute(rows, AXIS, [(j, (j + hops) % size) for j in range(size)])


def _across(collective, tree: PyTree) -> PyTree:
    return tree if devices() == 1 else jax.tree.map(lambda leaf: collective(leaf, AXIS), tree)
