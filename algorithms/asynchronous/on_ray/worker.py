"""A worker: a process with only its own data, which computes gradients at the model that it
received last, and waits for no other worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms import optimizers
from algorithms.asynchronous.asynchronous_server import LocalRuns, local_step, shard, unshard
from algorithms.asynchronous.on_ray.server import Pushed
from algorithms.optimizers import Model
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
        local: its local runs, or None.
        steps: number of its gradients in a message.
    """

    problem: Problem
    stream: tuple[np.ndarray, str]
    like: PyTree
    delay: Delay | None
    local: LocalRuns | None = None
    steps: int = 1


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


class Changes:
    """The changes x - y of one worker's local runs. A run of H steps that ends with gradient k uses
    the gradients k - H + 1 to k.
    """

    def __init__(self, gradients: Gradients, local: LocalRuns, steps: int) -> None:
        self.gradients: Gradients = gradients
        self.steps: int = steps
        numbers, kind = gradients.task.stream
        stream = jax.random.wrap_key_data(jnp.asarray(numbers), impl=kind)
        self.key: jax.Array = jax.random.fold_in(stream, gradients.worker)
        self.begin: Callable[..., PyTree] = jax.jit(
            partial(optimizers.first_memory, local.optimizer)
        )
        self.step: Callable[..., Model] = jax.jit(partial(local_step, local))

    def __call__(self, params: Params, k: int) -> tuple[PyTree, float]:
        """Returns the change of a run, with NumPy leaves, and the mean seconds of its gradients."""
        model = Model(params, self.begin(params, jax.random.fold_in(self.key, k)))
        total = 0.0
        for draw in range(k - self.steps + 1, k + 1):
            slope, seconds = self.gradients(model.params, draw)
            model, total = self.step(model, params, slope), total + seconds
        change = jax.tree.map(lambda x, y: x - np.asarray(y), params, model.params)
        return change, total / self.steps


class Worker:
    """Ray actor of a worker. If a server dies during a call and is restarted, Ray repeats the call.

    Args:
        worker: its number.
        task: what it computes.
    """

    def __init__(self, worker: int, task: Task) -> None:
        self.worker: int = worker
        self.gradients: Gradients = Gradients(worker, task)
        self.message: Callable[..., tuple[PyTree, float]] = self.gradients
        if task.local is not None:
            self.message = Changes(self.gradients, task.local, task.steps)
        self.task: Task = task

    def compile(self) -> None:
        """Compiles the worker's programs."""
        self.gradients.compile()

    def run(self, servers: Sequence[Any], incarnation: int) -> int:
        """Reads a model, computes, sends the gradient or the change of its local run, and continues
        with the model in the reply, until all servers are done.

        Args:
            servers: the servers of the shards, in order.
            incarnation: number of restarts of this worker.

        Returns:
            The number of messages that it sent.
        """
        self.compile()
        ray = require_ray()
        replies = ray.get([server.pull.remote(self.worker, incarnation) for server in servers])
        drawn = max(reply.draw for reply in replies)
        sent, round_trip = 0, float("nan")
        while not all(reply.done for reply in replies):
            sent += 1
            k = drawn + sent * self.task.steps - 1
            read = join([reply.part for reply in replies], self.task.like)
            message, computed = self.message(read, k)
            versions = tuple(reply.version for reply in replies)
            about = [
                Pushed(
                    self.worker,
                    incarnation,
                    reply.version,
                    versions,
                    reply.server_incarnation,
                    k,
                    computed,
                    round_trip,
                )
                for reply in replies
            ]
            began = time.monotonic()
            parts = zip(servers, split(message, len(servers)), about, strict=True)
            replies = ray.get([server.push.remote(part, one) for server, part, one in parts])
            round_trip = time.monotonic() - began - max(reply.served for reply in replies)
        return sent


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
