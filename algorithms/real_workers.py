"""One process as one worker of synchronous SGD in real time; used by `train_processes` of
DropCompute and of Cannikin.

Kimad's processes do not use it: the length of their messages changes from round to round, which is
impossible in a compiled all-reduce, each worker has its own connection to the server, on which the
bandwidth is measured, and the server, which is no worker, decides which round is the last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import jax
import numpy as np
import optax
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from algorithms import optimizers
from dsgd import workers
from dsgd.base import Key, Problem, PyTree
from dsgd.engine import leaves, oracle, run_keys
from dsgd.machines import agreement, arrays, nodes

T = TypeVar("T")


class RealWorker:
    """This process as a worker, with its data and its replica of the model.

    In one process, programs are compiled once for the same problem and optimizer, because their
    functions are static arguments.

    Args:
        name: name of the calling function, for error messages.
        problem: with as many workers as there are processes.
        optimizer: all workers make the same steps with it.
        key: JAX key from which all random numbers derive.

    Raises:
        ValueError: if the number of workers differs from the number of processes, or the problem
            lacks something that real processes need.
    """

    def __init__(
        self, name: str, problem: Problem, optimizer: optax.GradientTransformation, key: Key
    ) -> None:
        leaves.require_all(name, problem)
        self.mesh: Mesh = nodes.mesh(name, problem.workers)
        self.n: int = jax.process_index()
        self.N: int = problem.workers
        self.step: int = 0
        here = self.mesh.local_devices[0]
        self.problem: Problem = oracle.worker_problem(problem, self.n)
        self.optimizer: optax.GradientTransformation = optimizer
        first, own = run_keys.split(key)
        self.key: Key = own
        self.data: PyTree = jax.device_put(
            jax.tree.map(lambda leaf: arrays.row(leaf, self.n), problem.data), here
        )
        self.model: optimizers.Model = jax.device_put(
            optimizers.initial_model(problem.init, optimizer, first), here
        )

    def run(
        self,
        rounds: int,
        compute: Callable[[int | None], T],
        finish: Callable[[T], tuple[optimizers.Model, Sequence[float]]],
    ) -> np.ndarray:
        """Runs rounds, and returns what all workers measured in them. While the clock runs, the
        workers exchange only what `finish` exchanges.

        Args:
            rounds: number of rounds, which follow those of earlier calls.
            compute: step -> the worker's own part of the round. It is first called with None, only
                to compile; the result is not used for the model.
            finish: own part -> the next model, and k measurements; it may communicate.

        Returns:
            The measurements and the seconds of the whole round, `[rounds, N, k + 1]`.
        """
        own = jax.block_until_ready(compute(None))
        # Unlike a collective, which fails after some seconds, this waits for the other workers as
        # long as they live: they compile and start at different speeds.
        agreement.all_gather("the start of real workers", "")
        finish(own)
        rows = []
        for _ in range(rounds):
            began = time.monotonic()
            self.model, measured = finish(compute(self.step))
            rows.append([*measured, time.monotonic() - began])
            self.step += 1
        return nodes.gather(rows)

    def sum(self, own: PyTree) -> PyTree:
        """Returns the sum over all workers of their values, leaves `[1, ...]`, by an all-reduce of
        one message. It waits for the last worker.
        """
        return nodes.own(jax.block_until_ready(_sum(self.mesh, nodes.rows(own, self.mesh))))


@partial(jax.jit, static_argnums=0)
def _sum(mesh: Mesh, rows: PyTree) -> PyTree:
    def sum_rows(rows):
        flat, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], rows))
        return unravel(lax.psum(flat, workers.AXIS))

    return jax.shard_map(sum_rows, mesh=mesh, in_specs=P(workers.AXIS), out_specs=P())(rows)
