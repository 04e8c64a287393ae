"""Arrays over the devices of several processes: each puts only its own part on its devices, and no
process needs the others' parts.
"""

from __future__ import annotations

import hashlib
import json
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

_PIECE = 1 << 26  # bytes that go from process 0 to all at a time
_digests: dict[int, list[str]] = {}  # of all workers' rows, by array, where its maker had them all


def from_host(values: Any, dtype: Any = None) -> jax.Array:
    """A copy on JAX's default device, of that type. (`jnp.asarray` compiles a program for each
    shape.)
    """
    forks.need_threads()
    with jax.ensure_compile_time_eval():  # a value, also if JAX traces the call
        return jax.device_put(_own_memory(values, dtype))


def put(tree: PyTree, sharding: Sharding) -> PyTree:
    """A copy on the devices: of what every process has whole, or of its own part of what lies
    elsewhere on the same processes.
    """
    if sharding.is_fully_addressable:

        def copied(leaf: Any) -> jax.Array:
            return jax.device_put(
                leaf if isinstance(leaf, jax.Array) else _own_memory(leaf),
                sharding,
                may_alias=False,
            )

        return jax.tree.map(copied, tree)
    return jax.tree.map(lambda leaf: _put(leaf, sharding), tree)


def place(tree: PyTree, sharding: Sharding) -> PyTree:
    """As `put`, but what is already there is used as it is, also the memory of numpy's arrays,
    which must not change while it is used.
    """
    if sharding.is_fully_addressable:
        if any(map(_elsewhere, jax.tree.leaves(tree))):
            raise ValueError(
                "data of which other processes have a part, on this process's devices alone: need "
                "a mesh over all processes"
            )
        return jax.device_put(tree, sharding)

    def there(leaf: Any) -> bool:
        return isinstance(leaf, jax.Array) and leaf.sharding.is_equivalent_to(sharding, leaf.ndim)

    return jax.tree.map(lambda leaf: leaf if there(leaf) else _put(leaf, sharding), tree)


def by_worker(rows: Callable[[slice], np.ndarray], N: int, everybody: bool = True) -> jax.Array:
    """An array `[N, ...]` of which each process keeps the rows of its own workers only.

    Args:
        rows: of some of the workers.
        N: workers.
        everybody: whether each process could make all of them; it then does, one by one, for what
            tells them from others. Else only its own are asked for.

    Raises:
        ValueError: the processes do not divide the workers.
    """
    if agreement.alone():
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
    if everybody:
        _digests[id(array)] = [row_digest(rows(slice(n, n + 1))[0]) for n in range(N)]
        weakref.finalize(array, _digests.pop, id(array), None)
    return array


def own_workers(N: int) -> range:
    """Those of this process, by its data.

    Raises:
        ValueError: the processes do not divide the workers.
    """
    processes = agreement.count()
    if N % processes:
        raise ValueError(
            f"{N} workers in {processes} processes: need a number of processes that divides {N}"
        )
    return range(N)[agreement.index() * (N // processes) :][: N // processes]


def known(values: np.ndarray) -> Any:
    """Real numbers of all workers that every process makes for itself, in JAX's default type: on no
    device where there are several.
    """
    kind = jnp.result_type(float)
    return from_host(values, kind) if agreement.alone() else _own_memory(values, kind)


def own_mesh(N: int) -> Mesh:
    """As many devices of each process as divide N workers.

    Raises:
        ValueError: the processes do not divide them.
    """
    own = len(own_workers(N))
    return workers.mesh(
        agreement.count() * max(d for d in range(1, jax.local_device_count() + 1) if own % d == 0)
    )


def own(leaf: Any) -> np.ndarray:
    """What this process has of an array `[N, ...]`, on the host: its workers' rows, or all."""
    return _own_part(leaf)[1] if _elsewhere(leaf) else np.asarray(leaf)


def row(leaf: Any, n: int) -> np.ndarray:
    """The row of worker n, one of this process's, of an array `[N, ...]`."""
    first, rows = _own_part(leaf) if _elsewhere(leaf) else (0, np.asarray(leaf))
    return np.asarray(rows[n - first])


def on_host(leaf: Any) -> np.ndarray:
    """The whole array, of keys their data. Where it lies in several processes, all ask for it
    together.
    """
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    if not _elsewhere(leaf):
        return np.asarray(leaf)
    from jax.experimental import multihost_utils  # noqa: PLC0415

    return multihost_utils.process_allgather(leaf, tiled=True)


def from_first(array: np.ndarray | None) -> np.ndarray:
    """An array of process 0's host on all hosts, bit by bit; the others give None."""
    from jax.experimental import multihost_utils  # noqa: PLC0415

    kind = "" if array is None else json.dumps([array.dtype.str, array.shape])
    dtype, shape = json.loads(agreement.exchange("an array of process 0", kind)[0])
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
    """Of every worker's row of an array `[N, ...]`, whoever has it. All processes ask for them
    together.
    """
    if id(leaf) in _digests:
        return _digests[id(leaf)]
    if not _elsewhere(leaf):
        return [row_digest(row) for row in np.asarray(leaf)]
    begin, host = _own_part(leaf)
    told = agreement.exchange(
        "rows of the data", json.dumps({begin + i: row_digest(row) for i, row in enumerate(host)})
    )
    found = {int(n): digest for each in told for n, digest in json.loads(each).items()}
    return [found[n] for n in range(len(leaf))]


def row_digest(row: np.ndarray | np.generic) -> str:
    """SHA-256 of an array's type, shape and bytes."""
    row = np.asarray(row)
    sha = hashlib.sha256(f"{row.dtype} {row.shape}".encode())
    sha.update(np.ascontiguousarray(row).reshape(-1).view(np.uint8).data)
    return sha.hexdigest()


def owned(tree: PyTree) -> PyTree:
    """The same leaves, numpy's arrays as copies: their owner may refill them."""
    return jax.tree.map(
        lambda leaf: leaf if isinstance(leaf, jax.Array) else _own_memory(leaf), tree
    )


def _own_memory(values: Any, dtype: Any = None) -> np.ndarray:
    """JAX's arrays on CPUs may lie where numpy's do, also where it is asked for a copy."""
    return np.array(values, dtype)


def _put(leaf: Any, sharding: Sharding) -> jax.Array:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(
            _put(jax.random.key_data(leaf), sharding), impl=jax.random.key_impl(leaf)
        )
    elsewhere = _elsewhere(leaf)
    first, host = _own_part(leaf) if elsewhere else (0, np.asarray(leaf))
    axis = _axis(leaf) if elsewhere else 0

    def piece(index: tuple[slice, ...] | None) -> np.ndarray:
        if index is None or not elsewhere:
            return np.array(host[index])
        begin, end, _ = index[axis].indices(leaf.shape[axis])
        if not (first <= begin and end <= first + host.shape[axis]):
            held = f"this process has rows {first} to {first + host.shape[axis] - 1}, not {begin} to {end - 1}"
            raise ValueError(
                f"an array on other processes' devices: {held}; need a mesh in the order of the "
                "processes"
            )
        return np.array(
            host[(*index[:axis], slice(begin - first, end - first), *index[axis + 1 :])]
        )

    return jax.make_array_from_callback(np.shape(leaf), sharding, piece, dtype=host.dtype)


def _elsewhere(leaf: Any) -> bool:
    """Whether a part of it is only in other processes."""
    return isinstance(leaf, jax.Array) and not (
        leaf.is_fully_addressable or leaf.is_fully_replicated
    )


def _axis(leaf: jax.Array) -> int:
    """Along which it lies on several devices."""
    shape = leaf.sharding.shard_shape(leaf.shape)
    return next(
        axis
        for axis, (part, whole) in enumerate(zip(shape, leaf.shape, strict=True))
        if part != whole
    )


def _own_part(leaf: jax.Array) -> tuple[int, np.ndarray]:
    """What this process has of it, together: the first index along the axis on which it is cut, and
    the array.
    """
    axis = _axis(leaf)
    shards = {shard.index[axis].start or 0: shard.data for shard in leaf.addressable_shards}
    begins = sorted(shards)
    return begins[0], np.concatenate([np.asarray(shards[begin]) for begin in begins], axis=axis)
