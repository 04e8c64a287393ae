"""One worker per process: where it computes, and how its arrays are combined with those of the
others.
"""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dsgd import workers
from dsgd.base import PyTree


def mesh(name: str, N: int) -> Mesh:
    """Returns the mesh of the worker axis over the processes, with the first device of each.

    Args:
        name: name of the calling function, for messages.
        N: number of workers.

    Raises:
        ValueError: if the number of processes is not N.
    """
    if jax.process_count() != N:
        found = f"{jax.process_count()} process{'es' * (jax.process_count() > 1)}"
        raise ValueError(
            f"{name}: {found} for {N} workers; expected one process per worker; "
            f"dsgd.run_local_processes({N}, ...) starts them"
        )
    first = {device.process_index: device for device in reversed(jax.devices())}
    return workers.mesh([first[n] for n in range(N)])


def rows(tree: PyTree, mesh: Mesh) -> PyTree:
    """Combines the processes' leaves `[1, ...]` to the rows of arrays `[N, ...]`."""
    device, sharding = mesh.local_devices[0], NamedSharding(mesh, P(workers.AXIS))

    def combine(leaf):
        return jax.make_array_from_single_device_arrays(
            (mesh.size, *leaf.shape[1:]), sharding, [jax.device_put(leaf, device)]
        )

    return jax.tree.map(combine, tree)


def own(tree: PyTree) -> PyTree:
    """Returns this process's part of arrays over all processes."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)


def gather(numbers: list[list[float]]) -> np.ndarray:
    """Gathers every process's rows `[steps, k]` to `[steps, N, k]`.

    The values are transferred bit by bit, so all processes that base a decision on them make the
    same one.
    """
    from jax.experimental import multihost_utils  # noqa: PLC0415

    bits = np.array(numbers).view(np.uint32)  # by default JAX would round float64 to float32
    return np.moveaxis(multihost_utils.process_allgather(bits).view(float), 0, 1)
