"""One worker a process: where it computes, and how what it has reaches the others, or comes from
them.
"""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dsgd import workers
from dsgd.base import PyTree


def mesh(name: str, N: int) -> Mesh:
    """The workers' axis over the processes; of each, its first device.

    Args:
        name: of the function that asks, for its message.
        N: workers.

    Raises:
        ValueError: another number of processes.
    """
    if jax.process_count() != N:
        there = f"{jax.process_count()} process{'es' * (jax.process_count() > 1)}"
        raise ValueError(
            f"{name}: a problem of {N} workers in {there}: need one worker a process "
            f"(dsgd.loopback starts {N})"
        )
    first = {device.process_index: device for device in reversed(jax.devices())}
    return workers.mesh([first[n] for n in range(N)])


def rows(tree: PyTree, mesh: Mesh) -> PyTree:
    """Each process's own, leaves `[1, ...]`, as the rows of arrays `[N, ...]`."""
    here, own = mesh.local_devices[0], NamedSharding(mesh, P(workers.AXIS))

    def placed(leaf):
        return jax.make_array_from_single_device_arrays(
            (mesh.size, *leaf.shape[1:]), own, [jax.device_put(leaf, here)]
        )

    return jax.tree.map(placed, tree)


def own(tree: PyTree) -> PyTree:
    """What this process has of what all have."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)


def gathered(numbers: list[list[float]]) -> np.ndarray:
    """Every process's rows `[steps, k]`, bit by bit, `[steps, N, k]`: so that all who decide by
    them decide the same.
    """
    from jax.experimental import multihost_utils  # noqa: PLC0415

    bits = np.array(numbers).view(np.uint32)  # JAX has no float64 by default
    return np.moveaxis(multihost_utils.process_allgather(bits).view(float), 0, 1)
