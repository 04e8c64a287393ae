"""A worker of synchronous SGD on the real clock, in a process of its own: `train_processes` of
DropCompute and of Cannikin.

Kimad's processes are no such workers: their messages have a length that changes from round to
round, which an all-reduce of a compiled program cannot have, and go to and from one server, each
over its own connection, on which the bandwidth is measured byte by byte.
"""

from __future__ import annotations

from functools import partial

import jax
import optax
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from algorithms import optimizers
from dsgd import workers
from dsgd.base import Key, Problem, PyTree
from dsgd.engine import leaves, loop, oracle
from dsgd.machines import arrays, nodes


class RealWorker:
    """The worker that this process is: its data, and the model as all have it.

    Programs are found again where problem and optimizer are the same, in one process: their
    functions are static arguments.

    Args:
        name: of the function that trains, for messages.
        problem: with as many workers as there are processes.
        optimizer: all make its steps alike.
        key: of everything random.

    Raises:
        ValueError: another number of workers than of processes, or a problem without what real
            processes need.
    """

    def __init__(
        self, name: str, problem: Problem, optimizer: optax.GradientTransformation, key: Key
    ) -> None:
        leaves.need_all(name, problem)
        self.mesh: Mesh = nodes.mesh(name, problem.workers)
        self.n: int = jax.process_index()
        self.N: int = problem.workers
        here = self.mesh.local_devices[0]
        self.problem: Problem = oracle.of_worker(problem, self.n)
        self.optimizer: optax.GradientTransformation = optimizer
        first, own = loop.split(key)
        self.key: Key = own
        self.data: PyTree = jax.device_put(
            jax.tree.map(lambda leaf: arrays.row(leaf, self.n), problem.data), here
        )
        self.model: optimizers.Model = jax.device_put(
            optimizers.drawn(problem.init, optimizer, first), here
        )

    def sum(self, own: PyTree) -> PyTree:
        """The sum over all workers of what each has, leaves `[1, ...]`: an all-reduce of one
        message, which waits for the last worker.
        """
        return nodes.own(jax.block_until_ready(_summed(self.mesh, nodes.rows(own, self.mesh))))


@partial(jax.jit, static_argnums=0)
def _summed(mesh: Mesh, rows: PyTree) -> PyTree:
    def summed(rows):
        flat, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], rows))
        return unravel(lax.psum(flat, workers.AXIS))

    return jax.shard_map(summed, mesh=mesh, in_specs=P(workers.AXIS), out_specs=P())(rows)
