"""Data of workers with very different numbers of samples: one pool of rows per device, in which
each worker has a range of rows.

Arrays `[N, longest, ...]` would need as many rows for every worker as the largest worker has. The
leaves of a pool are also `[N, S, ...]`, so that they are sharded like all data, but the S rows at
index n are not those of worker n: the n S rows of a device are those of its n workers, one worker
after the other. The device with the most rows determines S; the rest of each pool is padding, which
on that device is fewer than n rows. The layout therefore depends on the number of devices: problems
have the layout for one device, and runs convert it (`lay_out`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import workers
from dsgd.base import PyTree
from dsgd.machines.arrays import from_host, take


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["inputs", "targets", "offset", "size"],
    meta_fields=["make", "longest", "piece", "devices"],
)
@dataclass(frozen=True)
class Pooled:
    """Pooled samples: of all workers, of a device's block, or of one worker in its device's pool.

    Args:
        inputs, targets: pytrees, leaves `[N, S, ...]`; in a flat pool (`flatten`), the rows,
            `[n S, ...]`.
        offset: first row of each worker in its device's pool, int32 `[N]`; for one worker, a
            scalar.
        size: number of rows of each worker, int32 `[N]`, at least 1; for one worker, a scalar.
        make: (inputs, targets, weights) -> a batch.
        longest: number of rows of the worker with the most rows.
        piece: number of rows of a worker whose exact gradient is computed at a time.
        devices: number of devices that the layout is for.
    """

    inputs: PyTree
    targets: PyTree
    offset: Any
    size: Any
    make: Callable
    longest: int
    piece: int = 1
    devices: int = 1

    # Fields with one number for each worker, and whether the rows are arrays of the program.
    by_worker: ClassVar[tuple[str, ...]] = ("offset", "size")
    has_rows: ClassVar[bool] = True

    def samples(self, n: int) -> tuple[PyTree, PyTree]:
        """Returns the (inputs, targets) of worker n on the host, leaves `[m, ...]`."""
        begin, size = int(self.offset[n]), int(self.size[n])

        def rows(leaf: jax.Array | np.ndarray) -> np.ndarray:
            host = np.asarray(leaf)
            return host.reshape(-1, *host.shape[2:])[begin : begin + size]

        return jax.tree.map(rows, (self.inputs, self.targets))

    def batch(self, rows: jax.Array, weights: jax.Array) -> PyTree:
        """Returns a batch of the given rows of a flat pool."""
        inputs, targets = jax.tree.map(lambda leaf: leaf[rows], (self.inputs, self.targets))
        return self.make(inputs, targets, weights)


def pool(inputs: PyTree, targets: PyTree, parts: list[np.ndarray], make: Callable) -> Pooled:
    """Returns the pool in the layout for one device.

    Args:
        inputs, targets: numpy arrays `[M, ...]`.
        parts: indices of each worker's samples, in the worker's order; at least one per worker.
        make: as in `Pooled`.
    """
    sizes = np.array(list(map(len, parts)), np.int32)
    N, order = len(parts), np.concatenate(parts)
    order = np.pad(order, (0, -len(order) % N), mode="edge").reshape(N, -1)
    inputs, targets = jax.tree.map(lambda leaf: take(leaf, order), (inputs, targets))
    return Pooled(
        inputs, targets, from_host(_begins(sizes)), from_host(sizes), make, int(sizes.max())
    )


def _begins(sizes: np.ndarray) -> np.ndarray:
    return (np.cumsum(sizes) - sizes).astype(np.int32)


def lay_out(data: PyTree, devices: int) -> PyTree:
    """Converts pools from the layout for one device to that for `devices`; returns other data
    unchanged.

    Raises:
        ValueError: if the data have the layout for another number of devices.
    """
    if not isinstance(data, Pooled) or data.devices == devices:
        return data
    if not data.has_rows:
        return replace(data, devices=devices)
    if data.devices != 1:
        raise ValueError(
            f"data laid out for {data.devices} devices, on {devices}; expected the data of the "
            "problem, laid out for one"
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


def flatten(data: Pooled) -> Pooled:
    """Returns the pool with leaves `[n S, ...]`."""
    inputs, targets = jax.tree.map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (data.inputs, data.targets)
    )
    return replace(data, inputs=inputs, targets=targets)


def block_data(data: PyTree) -> PyTree:
    """Returns the data of a device's block, of which a pool is made flat.

    Raises:
        ValueError: if the layout is for another number of devices.
    """
    if not isinstance(data, Pooled):
        return data
    if data.devices != (devices := 1 if workers.cohort() else workers.devices()):
        raise ValueError(
            f"data laid out for {data.devices} devices, on {devices}; expected "
            f"dsgd.engine.pooled.lay_out(problem.data, {devices})"
        )
    return flatten(data)


def row_data(data: PyTree, at: jax.Array | None) -> PyTree:
    """Returns the data of the given rows of a block's workers, int32 `[g]`; None: of all workers. A
    flat pool keeps all of its rows.
    """
    if at is None:
        return data
    if isinstance(data, Pooled):
        return replace(data, **{name: getattr(data, name)[at] for name in data.by_worker})
    return jax.tree.map(lambda leaf: leaf[at], data)


def axes(data: PyTree) -> Any:
    """Returns the worker axes for `jax.vmap` over a block's data. The rows of a flat pool have no
    worker axis.
    """
    if not isinstance(data, Pooled):
        return 0
    inputs, targets = jax.tree.map(lambda leaf: None, (data.inputs, data.targets))
    return replace(data, inputs=inputs, targets=targets, **dict.fromkeys(data.by_worker, 0))


def owners(data: Pooled) -> tuple[jax.Array, jax.Array]:
    """Returns, for each row of a flat pool, the index of its worker in the block and whether it is
    a sample (not padding), `[n S]` each.
    """
    rows = jnp.arange(jax.tree.leaves(data.inputs)[0].shape[0])
    owner = jnp.searchsorted(data.offset, rows, side="right", method="scan_unrolled") - 1
    return owner, rows - data.offset[owner] < data.size[owner]


def pieces(data: Pooled) -> jax.Array:
    """Returns the number of samples in each piece of each worker's rows, int32 `[n, pieces]`."""
    count = -(-data.longest // data.piece)
    return jnp.clip(
        data.size[:, None] - data.piece * jnp.arange(count, dtype=jnp.int32)[None], 0, data.piece
    )


def piece_of(data: Pooled, m: jax.Array, samples: jax.Array) -> PyTree:
    """Returns a batch of one worker's m-th piece, in which only the first `samples` rows count."""
    places = jnp.arange(data.piece, dtype=jnp.int32)
    rows = data.offset + m * data.piece + jnp.minimum(places, samples - 1)
    return data.batch(rows, (places < samples).astype(jnp.result_type(float)))


def worker_data(data: PyTree, n: int) -> PyTree:
    """Returns the data of worker n, from a problem's data on this process, on the host; from a
    pool, a batch of all of its samples.
    """
    if not isinstance(data, Pooled):
        return jax.tree.map(lambda leaf: np.asarray(leaf[n]), data)
    return data.make(*data.samples(n), np.ones(int(data.size[n]), jnp.result_type(float)))
