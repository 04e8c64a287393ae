"""Arrays over the devices of several processes. Each process places only its own part, and does not
need the parts of the others.
"""

from __future__ import annotations

import hashlib
import json
import math
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, Sharding
from jax.sharding import PartitionSpec as P

from dsgd import workers
from dsgd.base import PyTree
from dsgd.machines import agreement, forks

_ALIGNMENT = 64  # bytes; JAX uses the memory of numpy arrays with this alignment on CPUs
_PIECE = 1 << 26  # bytes that process 0 broadcasts at a time
# Digests of all workers' rows by the id of the array, if its creator could compute every row.
_digests: dict[int, list[str]] = {}


def from_host(values: Any, dtype: Any = None) -> jax.Array:
    """Copies values to JAX's default device, with the given type.

    (`jnp.asarray` would compile a program for each shape.)
    """
    forks.require_threads()
    with jax.ensure_compile_time_eval():  # a concrete value, even if JAX traces the call
        return jax.device_put(_copy(values, dtype))


def take(values: np.ndarray, rows: np.ndarray) -> jax.Array:
    """Copies rows of a numpy array to JAX's default device. On CPUs this is the only copy.

    Args:
        values: `[M, ...]`, in a type that JAX does not convert.
        rows: integers from 0 to M - 1, of any shape.

    Returns:
        The rows, `[*rows.shape, ...]`.
    """
    forks.require_threads()
    shape = (*rows.shape, *values.shape[1:])
    size = math.prod(shape) * values.dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    copied = memory[begin : begin + size].view(values.dtype).reshape(shape)
    np.take(values, rows, axis=0, out=copied, mode="clip")  # "raise" would copy to a buffer first
    with jax.ensure_compile_time_eval():
        return jax.device_put(copied)


def put(tree: PyTree, sharding: Sharding) -> PyTree:
    """Copies a tree to the devices.

    Every process must have the whole array, or its own part of an array that is distributed over
    the same processes.
    """
    if sharding.is_fully_addressable:

        def place(leaf: Any) -> jax.Array:
            if not isinstance(leaf, jax.Array):
                leaf = _copy(leaf)
            elif len(leaf.devices()) > 1:
                leaf = leaf.copy()  # `device_put` to one of its devices does not copy
            return jax.device_put(leaf, sharding, may_alias=False)

        return jax.tree.map(place, tree)
    return jax.tree.map(lambda leaf: _put(leaf, sharding), tree)


def place(tree: PyTree, sharding: Sharding) -> PyTree:
    """Places a tree on the devices, like `put`, but without a copy if possible.

    Arrays that already have the sharding are returned as they are, and the memory of numpy arrays
    may be used directly, so it must not change meanwhile.

    Raises:
        ValueError: if other processes hold a part of the data, but the sharding has only devices of
            this process.
    """
    if sharding.is_fully_addressable:
        if any(map(_is_distributed, jax.tree.leaves(tree))):
            raise ValueError(
                "other processes hold a part of the data, but the mesh has only devices of this "
                "process; expected a mesh over all processes"
            )
        return jax.device_put(tree, sharding)

    def is_placed(leaf: Any) -> bool:
        return isinstance(leaf, jax.Array) and leaf.sharding.is_equivalent_to(sharding, leaf.ndim)

    return jax.tree.map(lambda leaf: leaf if is_placed(leaf) else _put(leaf, sharding), tree)


def array_of_rows(rows: Callable[[slice], np.ndarray], N: int, all_rows: bool = True) -> jax.Array:
    """Creates an array `[N, ...]` of which each process stores only the rows of its own workers.

    Args:
        rows: slice of workers -> their rows.
        N: number of workers.
        all_rows: whether each process can compute all rows. It then computes them one by one for
            the fingerprint of the data; otherwise only its own rows are requested.

    Raises:
        ValueError: if the number of processes does not divide N.
    """
    if agreement.is_single_process():
        return from_host(rows(slice(N)))
    sharding = NamedSharding(own_mesh(N), P(workers.AXIS))
    first = own_workers(N)[0]
    kind = rows(slice(first, first + 1))
    array = jax.make_array_from_callback(
        (N, *kind.shape[1:]),
        sharding,
        lambda index: rows((index or (slice(N),))[0]),
        dtype=kind.dtype,
    )
    if all_rows:
        _digests[id(array)] = [row_digest(rows(slice(n, n + 1))[0]) for n in range(N)]
        weakref.finalize(array, _digests.pop, id(array), None)
    return array


def own_workers(N: int) -> range:
    """Returns the workers whose data this process holds.

    Raises:
        ValueError: if the number of processes does not divide N.
    """
    processes = agreement.process_count()
    if N % processes:
        raise ValueError(
            f"{N} workers in {processes} processes; expected a number of processes that divides {N}"
        )
    return range(N)[agreement.process_index() * (N // processes) :][: N // processes]


def default_float(values: np.ndarray) -> Any:
    """Converts real numbers of all workers, which every process computes for itself, to JAX's
    default float type.

    With several processes the result stays on the host.
    """
    kind = jnp.result_type(float)
    return from_host(values, kind) if agreement.is_single_process() else _copy(values, kind)


def own_mesh(N: int) -> Mesh:
    """Returns a mesh with as many devices of each process as divide its share of the N workers.

    Raises:
        ValueError: if the number of processes does not divide N.
    """
    own = len(own_workers(N))
    return workers.mesh(
        agreement.process_count()
        * max(d for d in range(1, jax.local_device_count() + 1) if own % d == 0)
    )


def own(leaf: Any) -> np.ndarray:
    """Returns this process's part of an array `[N, ...]` on the host.

    It is the rows of its workers, or the whole array if it is not distributed over processes.
    """
    return _local_part(leaf)[1] if _is_distributed(leaf) else np.asarray(leaf)


def row(leaf: Any, n: int) -> np.ndarray:
    """Returns the row of worker n, a worker of this process, of an array `[N, ...]`."""
    first, rows = _local_part(leaf) if _is_distributed(leaf) else (0, np.asarray(leaf))
    return np.asarray(rows[n - first])


def fetch(leaf: Any) -> np.ndarray:
    """Returns the whole array on the host; for JAX keys, their data.

    If the array is distributed over several processes, all of them must call this function
    together.
    """
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    if not _is_distributed(leaf):
        return np.asarray(leaf)
    from jax.experimental import multihost_utils  # noqa: PLC0415

    return multihost_utils.process_allgather(leaf, tiled=True)


def from_first(array: np.ndarray | None) -> np.ndarray:
    """Broadcasts an array from the host of process 0 to all hosts, bit by bit. The other processes
    pass None.
    """
    from jax.experimental import multihost_utils  # noqa: PLC0415

    kind = "" if array is None else json.dumps([array.dtype.str, array.shape])
    dtype, shape = json.loads(agreement.all_gather("an array of process 0", kind)[0])
    whole = np.empty(shape, dtype)
    if array is not None:
        whole[...] = array
    flat = whole.reshape(-1).view(np.uint8)
    for begin in range(0, flat.size, _PIECE):
        flat[begin : begin + _PIECE] = multihost_utils.broadcast_one_to_all(
            flat[begin : begin + _PIECE]
        )
    return whole


def row_digests(leaf: Any) -> list[str]:
    """Returns the digest of every worker's row of an array `[N, ...]`, wherever the rows are
    stored.

    All processes must call this function together.
    """
    if id(leaf) in _digests:
        return _digests[id(leaf)]
    if not _is_distributed(leaf):
        return [row_digest(row) for row in np.asarray(leaf)]
    begin, host = _local_part(leaf)
    texts = agreement.all_gather(
        "rows of the data", json.dumps({begin + i: row_digest(row) for i, row in enumerate(host)})
    )
    found = {int(n): digest for each in texts for n, digest in json.loads(each).items()}
    return [found[n] for n in range(len(leaf))]


def row_digest(row: np.ndarray | np.generic) -> str:
    """Returns the SHA-256 digest of an array's type, shape and bytes."""
    row = np.asarray(row)
    sha = hashlib.sha256(f"{row.dtype} {row.shape}".encode())
    sha.update(np.ascontiguousarray(row).reshape(-1).view(np.uint8).data)
    return sha.hexdigest()


def copy_arrays(tree: PyTree) -> PyTree:
    """Returns the same tree with numpy arrays copied, because their owner may modify them."""
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.Array) else _copy(leaf), tree)


def _copy(values: Any, dtype: Any = None) -> np.ndarray:
    """Copies values to a new numpy array. On CPUs, JAX arrays may share memory with numpy arrays
    even if a copy is requested.
    """
    return np.array(values, dtype)


def _put(leaf: Any, sharding: Sharding) -> jax.Array:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(
            _put(jax.random.key_data(leaf), sharding), impl=jax.random.key_impl(leaf)
        )
    distributed = _is_distributed(leaf)
    first, host = _local_part(leaf) if distributed else (0, np.asarray(leaf))
    axis = _axis(leaf) if distributed else 0

    def piece(index: tuple[slice, ...] | None) -> np.ndarray:
        if index is None or not distributed:
            return np.array(host[index])
        begin, end, _ = index[axis].indices(leaf.shape[axis])
        if not (first <= begin and end <= first + host.shape[axis]):
            last = first + host.shape[axis] - 1
            raise ValueError(
                f"an array of several processes: this process has rows {first} to {last}, but its "
                f"devices need {begin} to {end - 1}; expected a mesh in the order of the processes"
            )
        return np.array(
            host[(*index[:axis], slice(begin - first, end - first), *index[axis + 1 :])]
        )

    return jax.make_array_from_callback(np.shape(leaf), sharding, piece, dtype=host.dtype)


def _is_distributed(leaf: Any) -> bool:
    """Whether a part of the array is available only in other processes."""
    return isinstance(leaf, jax.Array) and not (
        leaf.is_fully_addressable or leaf.is_fully_replicated
    )


def _axis(leaf: jax.Array) -> int:
    """Returns the axis along which the array is distributed over devices."""
    shape = leaf.sharding.shard_shape(leaf.shape)
    return next(
        axis
        for axis, (part, whole) in enumerate(zip(shape, leaf.shape, strict=True))
        if part != whole
    )


def _local_part(leaf: jax.Array) -> tuple[int, np.ndarray]:
    """Returns this process's part of a distributed array: the first index along the distributed
    axis, and the rows.
    """
    axis = _axis(leaf)
    shards = {shard.index[axis].start or 0: shard.data for shard in leaf.addressable_shards}
    begins = sorted(shards)
    return begins[0], np.concatenate([np.asarray(shards[begin]) for begin in begins], axis=axis)
