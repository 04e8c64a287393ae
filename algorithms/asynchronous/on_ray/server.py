"""A parameter server: a process with one shard of the model, which makes a step with each gradient
that arrives.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms import optimizers
from algorithms.asynchronous.asynchronous_sgd import stale_step
from algorithms.asynchronous.on_ray.actors import is_replacement
from algorithms.mechanisms import arrivals
from algorithms.optimizers import Model
from dsgd.base import Params, PyTree, State
from dsgd.engine import randomness
from dsgd.engine.plan import Carry
from dsgd.runs.checkpoints import Checkpoint


class Rules(NamedTuple):
    """Options of a server.

    Args:
        optimizer: the optimizer of its step.
        steps: T, number of updates after which it is done.
        record_every: updates between two models that it keeps for the history.
        together: whether a step uses the mean of the gradients of all workers (synchronous).
        bound: tau of bounded staleness, or None.
        staleness_aware: whether steps are divided by the staleness.
        folder: folder of its checkpoint, or None.
        about: description of the run, for the checkpoint.
        seconds: between two checkpoints.
        key: for random keys in the optimizer's state, derived from the run's key and this server's
            number; as its data and the name of its implementation.
    """

    optimizer: optax.GradientTransformation
    steps: int
    record_every: int
    together: bool
    bound: int | None
    staleness_aware: bool
    folder: str | None
    about: dict[str, str]
    seconds: float
    key: tuple[np.ndarray, str] = (np.zeros(2, np.uint32), "threefry2x32")


class Pushed(NamedTuple):
    """What a worker sends with its gradient.

    Args:
        worker: its number.
        incarnation: number of restarts of the worker.
        version: version of the shard at which the gradient was computed.
        read: versions of all shards at which it was computed.
        server_incarnation: number of restarts of the server when the shard was read.
        draw: number of its batch in the worker's stream.
        computed: seconds of the gradient.
        round_trip: seconds of the last exchange with the servers, without the time spent in the
            servers; NaN before the first.
    """

    worker: int
    incarnation: int
    version: int
    read: tuple[int, ...]
    server_incarnation: int
    draw: int
    computed: float
    round_trip: float


class Reply(NamedTuple):
    """The server's reply to a worker, with the current shard.

    Args:
        part: the shard, with NumPy leaves.
        version: number of updates made to it.
        server_incarnation: number of restarts of the server.
        draw: number of batches that the worker is known to have drawn, for a worker that starts.
        served: seconds that the worker's message spent in the server.
        done: whether no more gradients are needed.
    """

    part: PyTree
    version: int
    server_incarnation: int
    draw: int
    served: float
    done: bool


class Update(NamedTuple):
    """A gradient that was applied.

    Args:
        step: number of the update to which it belongs, from 0.
        worker, version, read, draw, computed, round_trip: as in `Pushed`.
        at: seconds since the start of the run when the update had been made.
        busy: seconds that the server worked on it.
    """

    step: int
    worker: int
    version: int
    read: tuple[int, ...]
    draw: int
    computed: float
    round_trip: float
    at: float
    busy: float


class Progress(NamedTuple):
    """Progress of a server.

    Args:
        version: number of updates made.
        server_incarnation: number of restarts of the server.
        finite: whether its shard is finite.
    """

    version: int
    server_incarnation: int
    finite: bool


class Server:
    """Ray actor of the server of one shard. It has one thread, so code between two `await`s is
    atomic.

    Args:
        part: the initial shard, with NumPy leaves.
        rules: its options.
        workers: number of workers.
    """

    def __init__(self, part: PyTree, rules: Rules, workers: int) -> None:
        self.rules = rules
        self.step: Callable[..., Model] = jax.jit(
            partial(stale_step, rules.optimizer), static_argnames="aware"
        )
        self.allowed: Callable[..., jax.Array] = jax.jit(
            arrivals.allowed_workers, static_argnames="bound"
        )
        numbers, kind = rules.key
        key = jax.random.wrap_key_data(jnp.asarray(numbers), impl=kind)
        self.model: Model = randomness.fold_owner(optimizers.init(rules.optimizer, part), key)
        self.version: int = 0
        self.server_incarnation: int = 0
        self.updates: list[Update] = []
        self.records: list[PyTree] = [part]
        # the latest known incarnation of each worker
        self.incarnations: dict[int, int] = dict.fromkeys(range(workers), 0)
        # versions read by the workers whose gradients are expected
        self.reads: dict[int, int] = dict.fromkeys(range(workers), 0)
        self.waiting: dict[int, tuple[Pushed, PyTree, asyncio.Future[None]]] = {}
        self.finite: bool = True
        self.zero: float = time.monotonic()
        self.checkpoint: Checkpoint | None = None
        self.saved: float = -np.inf
        self._compile(part)
        if is_replacement():
            self._restore(after_death=True)

    async def restore(self) -> Progress:
        """Restores the checkpoint, if there is one."""
        self._restore(after_death=False)
        return self._progress()

    async def begin(self) -> None:
        """Starts the clock of the run."""
        self.zero = time.monotonic() - self._seconds()
        self._save()

    async def pull(self, worker: int, incarnation: int) -> Reply:
        """Returns the shard to a worker that starts, with the number of batches that the worker
        drew before, in an earlier incarnation or before a checkpoint.
        """
        drawn = (
            max((update.draw for update in self.updates if update.worker == worker), default=-1) + 1
        )
        return self._reply(worker, incarnation, time.monotonic(), drawn)

    async def push(self, gradient: PyTree, about: Pushed) -> Reply:
        """Applies a gradient as soon as it is allowed, and returns the current shard. A gradient
        that was computed before a death of the server is discarded.
        """
        arrived = time.monotonic()
        newest = (
            about.incarnation == self.incarnations[about.worker]
            and self.reads.get(about.worker) == about.version
        )
        if about.server_incarnation == self.server_incarnation and newest and not self._done():
            taken = asyncio.get_running_loop().create_future()
            self.waiting[about.worker] = (about, gradient, taken)
            self._advance()
            await taken
        return self._reply(about.worker, about.incarnation, arrived)

    async def progress(self, incarnations: Mapping[int, int]) -> Progress:
        """Returns the progress to the driver, which sends the current incarnation of each worker:
        the server does not wait for a worker that died, and discards its pending gradients.
        """
        for worker, incarnation in incarnations.items():
            self._enter(worker, incarnation)
        self._advance()
        return self._progress()

    async def history(self) -> tuple[list[Update], list[PyTree], PyTree, float]:
        """Returns all updates, the models of the records, the last model, and the seconds of the
        run.
        """
        return self.updates, self.records, to_numpy(self.model.params), self._seconds()

    def _progress(self) -> Progress:
        return Progress(self.version, self.server_incarnation, self.finite)

    def _done(self) -> bool:
        return self.version >= self.rules.steps or not self.finite

    def _seconds(self) -> float:
        """Returns the seconds of the run at the last update."""
        return self.updates[-1].at if self.updates else 0.0

    def _reply(self, worker: int, incarnation: int, arrived: float, drawn: int = 0) -> Reply:
        """Returns the shard, and waits for the gradient of the worker that receives it."""
        self._enter(worker, incarnation)
        if incarnation == self.incarnations[worker]:
            self.reads[worker] = self.version
        return Reply(
            to_numpy(self.model.params),
            self.version,
            self.server_incarnation,
            drawn,
            time.monotonic() - arrived,
            self._done(),
        )

    def _enter(self, worker: int, incarnation: int) -> None:
        """Leaves out a worker whose earlier run has ended, until it reads the shard again."""
        if incarnation > self.incarnations[worker]:
            self.incarnations[worker] = incarnation
            self.reads.pop(worker, None)
            if worker in self.waiting:
                _resolve(self.waiting.pop(worker)[2])

    def _advance(self) -> None:
        """Makes all updates that can be made now."""
        while not self._done() and (chosen := self._choose()):
            began = time.monotonic()
            taken = [self.waiting.pop(worker) for worker in chosen]
            self._update(
                [about for about, _, _ in taken], [gradient for _, gradient, _ in taken], began
            )
            for worker, (_, _, future) in zip(chosen, taken, strict=True):
                self.reads[worker] = self.version
                _resolve(future)
        if self._done():
            for _, _, future in self.waiting.values():
                _resolve(future)
            self.waiting.clear()

    def _choose(self) -> list[int]:
        """Returns the workers whose gradients make the next update."""
        if not self.waiting:
            return []
        if self.rules.together:
            return sorted(self.waiting) if self.reads.keys() <= self.waiting.keys() else []
        if self.rules.bound is None:
            return [next(iter(self.waiting))]  # in the order of arrival
        readers = sorted(self.reads)
        versions = np.array([[self.reads[worker]] for worker in readers], np.int32)
        may = dict(
            zip(
                readers,
                np.asarray(self.allowed(versions, np.int32(self.version), bound=self.rules.bound)),
                strict=True,
            )
        )
        return next(([worker] for worker in self.waiting if may[worker]), [])

    def _update(self, about: list[Pushed], gradients: list[PyTree], began: float) -> None:
        """Makes one update with the mean of these gradients."""
        mean = (
            gradients[0]
            if len(gradients) == 1
            else jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *gradients)
        )
        staleness = np.int32(self.version - min(each.version for each in about))
        self.model = jax.block_until_ready(
            self.step(self.model, mean, staleness, aware=self.rules.staleness_aware)
        )
        now = time.monotonic()
        busy = (now - began) / len(about)
        for each in about:
            row = (each.worker, each.version, each.read, each.draw, each.computed, each.round_trip)
            self.updates.append(Update(self.version, *row, at=now - self.zero, busy=busy))
        self.version += 1
        if self.version % self.rules.record_every == 0 or self.version == self.rules.steps:
            self.records.append(to_numpy(self.model.params))
            self.finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(self.records[-1]))
            if time.monotonic() - self.saved > self.rules.seconds or self._done():
                self._save()

    def _compile(self, part: PyTree) -> None:
        """Compiles the server's programs before the first gradient arrives."""
        jax.block_until_ready(
            self.step(self.model, part, np.int32(0), aware=self.rules.staleness_aware)
        )
        if self.rules.bound is not None:
            self.allowed(
                np.zeros((len(self.reads), 1), np.int32), np.int32(0), bound=self.rules.bound
            )

    def _restore(self, *, after_death: bool) -> None:
        """Restores the checkpoint, if there is one. `after_death`: whether the process died, so
        that the time without it counts as time of the run.
        """
        if self.rules.folder is None:
            return
        self.checkpoint = Checkpoint(self.rules.folder, self.rules.about)
        found = self.checkpoint.restore(jax.tree.map(_shape_of, self._carry()))
        if found is None:
            return
        carry, records = found
        kept, wall = dict(records), float(records["wall"])
        self.model, self.version = Model(*carry.state.server), int(carry.state.step)
        columns = {name: kept[name].tolist() for name in Update._fields}
        columns["read"] = [tuple(versions) for versions in columns["read"]]
        self.updates = [Update(*row) for row in zip(*columns.values(), strict=True)]
        self.records = _unstack(
            [kept[f"model{i}"] for i in range(len(jax.tree.leaves(self.model.params)))],
            self.model.params,
        )
        self.server_incarnation = int(kept["server_incarnation"]) + 1
        # the next reads are of this version or a later one
        self.reads = dict.fromkeys(self.reads, self.version)
        self.zero = time.monotonic() - (
            float(kept["elapsed"]) + (time.time() - wall if after_death else 0.0)
        )
        self.saved = time.monotonic()
        if after_death:
            self._save()  # another death before the next checkpoint is another incarnation

    def _carry(self) -> Carry:
        return Carry(State(tuple(self.model), step=np.int32(self.version)), ())

    def _save(self) -> None:
        if self.checkpoint is None:
            return
        rows = {
            name: np.array(
                [getattr(update, name) for update in self.updates], _TYPES.get(name, float)
            )
            for name in Update._fields
        }
        clock = {
            "elapsed": time.monotonic() - self.zero,
            "wall": time.time(),
            "server_incarnation": self.server_incarnation,
        }
        leaves = [jax.tree.leaves(record) for record in self.records]
        models = {f"model{i}": np.stack(each) for i, each in enumerate(zip(*leaves, strict=True))}
        self.checkpoint.save(
            self._carry(),
            {**rows, **models, **{name: np.array(value) for name, value in clock.items()}},
        )
        self.saved = time.monotonic()


_TYPES: Mapping[str, type] = {"step": int, "worker": int, "version": int, "read": int, "draw": int}


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def to_numpy(tree: Params) -> PyTree:
    """Returns the tree with NumPy leaves, which can be sent."""
    return jax.tree.map(np.asarray, tree)


def _shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    leaf = jax.numpy.asarray(leaf)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


def _unstack(leaves: list[np.ndarray], like: PyTree) -> list[PyTree]:
    """Returns leaves `[records, ...]` as a list of trees."""
    structure = jax.tree.structure(like)
    return [jax.tree.unflatten(structure, row) for row in zip(*leaves, strict=True)]
