"""Samples of workers that have very different numbers of them: one pool of rows for each device, in
which each worker has a range.

Arrays `[N, longest, ...]` would have as many rows for every worker as the largest one needs. The
leaves of a pool are `[N, S, ...]`, too, so that they are sharded as all data are, but the S rows at
index n are not those of worker n: the n S rows of a device are those of its n workers, one worker
after the other. The device with the most rows sets S; the rest of each pool is padding, on that
device fewer than n rows. So the layout depends on the number of devices; problems have that for
one, and runs make their own (`laid_out`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import workers
from dsgd.base import PyTree
from dsgd.machines.arrays import from_host


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["inputs", "targets", "offset", "size"],
    meta_fields=["make", "longest", "piece", "devices"],
)
@dataclass(frozen=True)
class Pooled:
    """The samples of all workers, of a device's block, or of one worker in its device's pool.

    Args:
        inputs, targets: pytrees, leaves `[N, S, ...]`; in a `flat` block the pool's rows,
            `[n S, ...]`.
        offset: int32 `[N]`, each worker's first row in its device's pool; of one worker a scalar.
        size: int32 `[N]`, its number of rows, at least 1; of one worker a scalar.
        make: (inputs, targets, weights) -> a batch.
        longest: rows of the worker with the most.
        piece: rows of a worker whose exact gradient is computed at a time.
        devices: for which it is laid out.
    """

    inputs: PyTree
    targets: PyTree
    offset: Any
    size: Any
    make: Callable
    longest: int
    piece: int = 1
    devices: int = 1

    def batch(self, rows: jax.Array, weights: jax.Array) -> PyTree:
        """These rows of a flat pool."""
        inputs, targets = jax.tree.map(lambda leaf: leaf[rows], (self.inputs, self.targets))
        return self.make(inputs, targets, weights)


def pool(inputs: PyTree, targets: PyTree, parts: list[np.ndarray], make: Callable) -> Pooled:
    """The layout for one device.

    Args:
        inputs, targets: numpy arrays `[M, ...]`.
        parts: which samples each worker has, in its order; at least one.
        make: as of `Pooled`.
    """
    sizes = np.array(list(map(len, parts)), np.int32)
    N, order = len(parts), np.concatenate(parts)
    order = np.pad(order, (0, -len(order) % N), mode="edge")

    def rows(leaf: np.ndarray) -> jax.Array:
        return from_host(leaf[order].reshape(N, -1, *leaf.shape[1:]))

    inputs, targets = jax.tree.map(rows, (inputs, targets))
    return Pooled(
        inputs, targets, from_host(_begins(sizes)), from_host(sizes), make, int(sizes.max())
    )


def _begins(sizes: np.ndarray) -> np.ndarray:
    return (np.cumsum(sizes) - sizes).astype(np.int32)


def laid_out(data: PyTree, devices: int) -> PyTree:
    """Pools, of the layout for one device, for so many; all other data are as they are."""
    if not isinstance(data, Pooled) or data.devices == devices:
        return data
    if data.devices != 1:
        raise ValueError(
            f"data laid out for {data.devices} devices, on {devices}: expected those of the problem"
        )
    sizes = np.asarray(data.size).reshape(devices, -1)
    begins, totals = _begins(sizes.sum(axis=1)), sizes.sum(axis=1)
    n = sizes.shape[1]
    S = -(-int(totals.max()) // n)
    index = np.minimum(begins[:, None] + np.arange(n * S), begins[:, None] + totals[:, None] - 1)

    def rows(leaf: jax.Array | np.ndarray) -> np.ndarray:
        host = np.asarray(leaf)
        flat = host.reshape(-1, *host.shape[2:])
        return flat[index].reshape(devices * n, S, *flat.shape[1:])

    inputs, targets = jax.tree.map(rows, (data.inputs, data.targets))
    offset = np.concatenate([_begins(of_device) for of_device in sizes])
    return replace(data, inputs=inputs, targets=targets, offset=offset, devices=devices)


def flat(data: Pooled) -> Pooled:
    """The same pool with leaves `[n S, ...]`."""
    inputs, targets = jax.tree.map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (data.inputs, data.targets)
    )
    return replace(data, inputs=inputs, targets=targets)


def of_block(data: PyTree) -> PyTree:
    """A device's pool, flat; all other data are as they are.

    Raises:
        ValueError: the layout is for another number of devices.
    """
    if not isinstance(data, Pooled):
        return data
    if data.devices != (here := workers.devices()):
        raise ValueError(
            f"data laid out for {data.devices} devices, on {here}; pass "
            f"dsgd.engine.pooled.laid_out(problem.data, {here})"
        )
    return flat(data)


def of_rows(data: PyTree, at: jax.Array | None) -> PyTree:
    """Of these rows of a block's workers, int32 `[g]`, the data; None: of all. A flat pool stays
    whole.
    """
    if at is None:
        return data
    if isinstance(data, Pooled):
        return replace(data, offset=data.offset[at], size=data.size[at])
    return jax.tree.map(lambda leaf: leaf[at], data)


def axes(data: PyTree) -> Any:
    """Of the workers, for `jax.vmap` over a block's data: a flat pool is the same for all."""
    if not isinstance(data, Pooled):
        return 0
    inputs, targets = jax.tree.map(lambda leaf: None, (data.inputs, data.targets))
    return replace(data, inputs=inputs, targets=targets, offset=0, size=0)


def owners(data: Pooled) -> tuple[jax.Array, jax.Array]:
    """Of each row of a flat pool the index of its worker in the block, and whether it is a sample
    and no padding, `[n S]`.
    """
    rows = jnp.arange(jax.tree.leaves(data.inputs)[0].shape[0])
    owner = jnp.searchsorted(data.offset, rows, side="right", method="scan_unrolled") - 1
    return owner, rows - data.offset[owner] < data.size[owner]


def pieces(data: Pooled) -> jax.Array:
    """How many samples each piece of a worker's rows has, int32 `[n, pieces]`, of a block."""
    count = -(-data.longest // data.piece)
    return jnp.clip(
        data.size[:, None] - data.piece * jnp.arange(count, dtype=jnp.int32)[None], 0, data.piece
    )


def piece_of(data: Pooled, m: jax.Array, samples: jax.Array) -> PyTree:
    """A batch of one worker's m-th piece, in which only the first `samples` rows count."""
    places = jnp.arange(data.piece, dtype=jnp.int32)
    rows = data.offset + m * data.piece + jnp.minimum(places, samples - 1)
    return data.batch(rows, (places < samples).astype(jnp.result_type(float)))


def of_worker(data: PyTree, n: int) -> PyTree:
    """What worker n has, of a problem's data on this process; of a pool as a batch of all its
    samples, on the host.
    """
    if not isinstance(data, Pooled):
        return jax.tree.map(lambda leaf: np.asarray(leaf[n]), data)
    begin, size = int(data.offset[n]), int(data.size[n])

    def rows(leaf: jax.Array | np.ndarray) -> np.ndarray:
        host = np.asarray(leaf)
        return host.reshape(-1, *host.shape[2:])[begin : begin + size]

    return data.make(
        *jax.tree.map(rows, (data.inputs, data.targets)), np.ones(size, jnp.result_type(float))
    )
