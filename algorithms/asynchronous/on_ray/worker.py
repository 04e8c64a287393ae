"""A worker: a process with only its own data, which computes gradients at the model that it
received last, and waits for no other worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from algorithms.asynchronous.asynchronous_server import shard, unshard
from algorithms.asynchronous.on_ray.server import Pushed
from dsgd import checks
from dsgd.base import Params, Problem, PyTree
from dsgd.engine import oracle
from dsgd.machines.ray_session import require_ray

Delay = Callable[[int, int], float]  # (worker, gradient) -> seconds
_shard, _unshard = jax.jit(shard, static_argnums=1), jax.jit(unshard)


class Task(NamedTuple):
    """What a worker computes.

    Args:
        problem: its functions, and the data of this worker alone.
        stream: the key of its batches, as its data and the name of its implementation, because keys
            cannot be sent.
        like: a tree with the shapes of the model.
        delay: (worker, gradient) -> seconds for which it sleeps in each gradient, or None.
    """

    problem: Problem
    stream: tuple[np.ndarray, str]
    like: PyTree
    delay: Delay | None


class Gradients:
    """The gradients of one worker. Gradient k uses batch k of its stream: the same batch as a query
    with `draws` = k in `dsgd.run`.
    """

    def __init__(self, worker: int, task: Task) -> None:
        self.worker: int = worker
        self.task: Task = task
        self.stream: np.ndarray
        self.stream, kind = task.stream
        self.function: Callable[..., Params] = jax.jit(
            partial(_gradient, task.problem._replace(data=()), worker, kind)
        )
        self.data: PyTree = jax.device_put(task.problem.data)

    def compile(self) -> None:
        """Compiles the gradient function."""
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), self.task.like)
        jax.block_until_ready(self.function(zeros, self.data, self.stream, np.int32(0)))

    def __call__(self, params: Params, k: int) -> tuple[PyTree, float]:
        """Returns gradient k, with NumPy leaves, and the seconds that it took."""
        began = time.monotonic()
        if self.task.delay is not None:
            time.sleep(
                checks.require_delay(f"delay({self.worker}, {k})", self.task.delay(self.worker, k))
            )
        slope = jax.tree.map(np.asarray, self.function(params, self.data, self.stream, np.int32(k)))
        return slope, time.monotonic() - began


def _gradient(
    problem: Problem,
    worker: int,
    kind: str,
    params: Params,
    data: PyTree,
    stream: jax.Array,
    k: jax.Array,
) -> Params:
    key = jax.random.wrap_key_data(stream, impl=kind)
    if problem.sampler.numbered:
        batch = problem.sample(jax.random.fold_in(key, worker), data, k)
    else:
        batch = problem.sample(jax.random.fold_in(jax.random.fold_in(key, k), worker), data)
    return oracle.value_and_grad(problem)(params, batch)[1]


class Worker:
    """Ray actor of a worker. If a server dies during a call and is restarted, Ray repeats the call.

    Args:
        worker: its number.
        task: what it computes.
    """

    def __init__(self, worker: int, task: Task) -> None:
        self.worker: int = worker
        self.gradients: Gradients = Gradients(worker, task)
        self.like: PyTree = task.like

    def compile(self) -> None:
        """Compiles the worker's programs."""
        self.gradients.compile()

    def run(self, servers: Sequence[Any], incarnation: int) -> int:
        """Reads the model, computes, sends the gradient, and continues with the model in the reply,
        until all servers are done.

        Args:
            servers: the servers of the shards, in order.
            incarnation: number of restarts of this worker.

        Returns:
            The number of gradients that it sent.
        """
        self.gradients.compile()
        ray = require_ray()
        replies = ray.get([server.pull.remote(self.worker, incarnation) for server in servers])
        first = k = max(reply.draw for reply in replies)
        round_trip = float("nan")
        while not all(reply.done for reply in replies):
            slope, computed = self.gradients(join([reply.part for reply in replies], self.like), k)
            read = tuple(reply.version for reply in replies)
            about = [
                Pushed(
                    self.worker,
                    incarnation,
                    reply.version,
                    read,
                    reply.server_incarnation,
                    k,
                    computed,
                    round_trip,
                )
                for reply in replies
            ]
            began = time.monotonic()
            sent = zip(servers, split(slope, len(servers)), about, strict=True)
            replies = ray.get([server.push.remote(part, one) for server, part, one in sent])
            round_trip = time.monotonic() - began - max(reply.served for reply in replies)
            k += 1
        return k - first


def split(params: Params, servers: int) -> list[PyTree]:
    """Returns a model as the shards of P servers: the model itself for one server, vectors of equal
    length for several.
    """
    return [params] if servers == 1 else list(np.asarray(_shard(params, servers)))


def join(parts: Sequence[PyTree], like: Params) -> Params:
    """Returns the model, joined from its shards."""
    if len(parts) == 1:
        return parts[0]
    return jax.tree.map(np.asarray, _unshard(np.stack(parts), like))
