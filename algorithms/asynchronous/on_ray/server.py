"""A parameter server: a process with one shard of the model, which applies a method's rule to each
gradient that arrives.

A *job* is a model that was read, and the computation at it, as in `algorithms.mechanisms.arrivals`.
The rule is the simulation's: `step` makes the step, and `order` says who begins which jobs at the
current model. A computation in another process cannot be interrupted. If its job is stopped, its
gradient is discarded when it arrives, and its worker then begins at the model that is current then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.asynchronous.asynchronous_server import Arrival, Jobs, Rule
from algorithms.asynchronous.on_ray.actors import is_replacement
from algorithms.mechanisms import arrivals
from dsgd.base import Params, PyTree, State
from dsgd.engine import randomness
from dsgd.engine.plan import Carry
from dsgd.runs.checkpoints import Checkpoint


class Settings(NamedTuple):
    """Options of a server.

    Args:
        rule: the method.
        steps: T, number of updates after which it is done.
        record_every: updates between two models that it keeps for the history.
        together: whether a step uses the mean of the gradients of all workers (synchronous).
        seconds: between two checkpoints.
        folder: folder of its checkpoint, or None.
        about: description of the run, for the checkpoint.
        key: for random keys in the optimizer's state and of the rule, derived from the run's key
            and this server's number; as its data and the name of its implementation.
    """

    rule: Rule
    steps: int
    record_every: int
    together: bool
    seconds: float
    folder: Path | None = None
    about: Mapping[str, str] = {}
    key: tuple[np.ndarray, str] = (np.zeros(2, np.uint32), "threefry2x32")


class Job(NamedTuple):
    """A computation.

    Args:
        worker: the worker that computes it.
        model: the shard at which it is computed.
        version: number of updates made to the shard before it was read.
        steps: number of the server's steps before.
    """

    worker: int
    model: Params
    version: int
    steps: int


class Pushed(NamedTuple):
    """What a worker sends with its gradient.

    Args:
        worker: its number.
        incarnation: number of restarts of the worker.
        version: version of the shard at which the gradient was computed.
        read: versions of all shards at which it was computed.
        server_incarnation: number of restarts of the server when the shard was read.
        draw: number of its batch in the worker's stream; of a local run, that of its last batch.
        computed: seconds of the gradient; of a local run, the mean of its gradients.
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
    """The server's reply to a worker, with its next job.

    Args:
        part: the shard at which it is computed, with NumPy leaves.
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
    """A gradient to which the rule was applied.

    Args:
        step: number of the update to which it belongs, from 0.
        worker, version, read, draw, computed, round_trip: as in `Pushed`.
        delay: number of the server's steps since its shard was read.
        server_steps: number of the server's steps after it; if the rule does not count them, each
            update is a step.
        messages: number of gradients and models that were sent up to and including the update.
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
    delay: int
    server_steps: int
    messages: int
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
        settings: its options.
        workers: number of workers.
    """

    def __init__(self, part: PyTree, settings: Settings, workers: int) -> None:
        self.settings: Settings = settings
        self.rule: Rule = settings.rule
        self.step: Callable[..., Any] = jax.jit(self.rule.make_step)
        self.decide: Callable[..., jax.Array] = jax.jit(self.rule.decide)
        self.allowed: Callable[..., jax.Array] = jax.jit(
            arrivals.allowed_workers, static_argnames="bound"
        )
        numbers, kind = settings.key
        self.key: jax.Array = jax.random.wrap_key_data(jnp.asarray(numbers), impl=kind)
        self.model: Any = randomness.fold_owner(self.rule.initial_model(part, workers), self.key)
        self.version: int = 0
        self.server_incarnation: int = 0
        self.updates: list[Update] = []
        self.records: list[PyTree] = [part]
        self.messages: int = 0
        # the latest known incarnation of each worker
        self.incarnations: dict[int, int] = dict.fromkeys(range(workers), 0)
        # workers that died, or whose computation was stopped, and that have not asked for a job
        # since then; their next jobs read the model when they ask
        self.away: set[int] = set()
        self.jobs: list[Job] = []
        self.waiting: set[int] = set()  # jobs that wait for an order
        self.queues: dict[int, list[int]] = {}  # jobs that each worker will compute
        self.computing: dict[int, int] = {}  # the job that each worker computes
        # gradients that were not applied yet
        self.pending: dict[int, tuple[Pushed, PyTree]] = {}
        self.news: asyncio.Event = asyncio.Event()
        self.finite: bool = True
        self.zero: float = time.monotonic()
        self.checkpoint: Checkpoint | None = None
        self.saved: float = -np.inf
        self._start()
        if is_replacement():
            self._restore(after_death=True)

    async def restore(self) -> Progress:
        """Restores the checkpoint, if there is one, and compiles the server's programs."""
        self._restore(after_death=False)
        arrival, part = self._arrival(0), self.model.params
        jax.block_until_ready(self.step(self.model, part, arrival, part))
        if self.rule.order is not None:
            self.decide(self.model, arrival, self._table(), self.key)
        if self.rule.bound is not None:
            self._allowed(self.jobs)
        return self._progress()

    async def begin(self) -> None:
        """Starts the clock of the run, at the time of the last update."""
        self.zero = time.monotonic() - (self.updates[-1].at if self.updates else 0.0)
        self._save()

    async def pull(self, worker: int, incarnation: int) -> Reply:
        """Returns the first job of a worker that starts, with the number of batches that the worker
        drew before, in an earlier incarnation or before a checkpoint. A gradient that it computed
        then is lost.
        """
        arrived = time.monotonic()
        drawn = (
            max((update.draw for update in self.updates if update.worker == worker), default=-1) + 1
        )
        self._enter(worker, incarnation)
        if incarnation == self.incarnations[worker]:
            self._lose(worker)
        return await self._reply(worker, incarnation, arrived, drawn)

    async def push(self, gradient: PyTree, about: Pushed) -> Reply:
        """Applies a gradient as soon as it is allowed, and returns the worker's next job as soon as
        it has one. A gradient is discarded if its job was stopped, or if it was computed before a
        death of the server.
        """
        arrived, worker = time.monotonic(), about.worker
        self._enter(worker, about.incarnation)
        job = self.computing.get(worker)
        current = about.incarnation == self.incarnations[worker]
        expected = job is not None and self.jobs[job].version == about.version
        if current and expected and about.server_incarnation == self.server_incarnation:
            self.pending[worker] = about, gradient
            self._advance()
        else:
            self.messages += 1
            if current:
                self._lose(worker)
        return await self._reply(worker, about.incarnation, arrived)

    async def progress(self, incarnations: Mapping[int, int]) -> Progress:
        """Returns the progress to the driver, which sends the current incarnation of each worker:
        the server does not wait for a worker that died, and discards its pending gradients.
        """
        for worker, incarnation in incarnations.items():
            self._enter(worker, incarnation)
        self._advance()
        return self._progress()

    async def history(self) -> tuple[list[Update], list[PyTree], PyTree]:
        """Returns all updates, the models of the records, and the last model."""
        return self.updates, self.records, to_numpy(self.model.params)

    def _progress(self) -> Progress:
        return Progress(self.version, self.server_incarnation, self.finite)

    def _done(self) -> bool:
        return self.version >= self.settings.steps or not self.finite

    def _steps(self) -> int:
        """Returns the number of the server's steps."""
        return int(getattr(self.model, "steps", self.version))

    def _start(self) -> None:
        """Gives each worker its own job, at the current model."""
        workers = range(len(self.incarnations))
        self.jobs = [self._read(worker) for worker in workers]
        self.queues = {worker: [worker] for worker in workers}

    def _read(self, worker: int) -> Job:
        return Job(worker, self.model.params, self.version, self._steps())

    async def _reply(self, worker: int, incarnation: int, arrived: float, drawn: int = 0) -> Reply:
        """Waits until the worker has a job, and returns it."""
        queue = self.queues[worker]
        while not (queue or self._done() or incarnation < self.incarnations[worker]):
            await self.news.wait()
        job = self._read(worker)
        if queue and not self._done() and incarnation == self.incarnations[worker]:
            self.computing[worker] = queue.pop(0)
            job = self.jobs[self.computing[worker]]
        return Reply(
            to_numpy(job.model),
            job.version,
            self.server_incarnation,
            drawn,
            time.monotonic() - arrived,
            self._done(),
        )

    def _enter(self, worker: int, incarnation: int) -> None:
        """Leaves out a worker after its earlier run has ended, until it asks for a job."""
        if incarnation > self.incarnations[worker]:
            self.incarnations[worker] = incarnation
            self.away.add(worker)
            self.pending.pop(worker, None)
            self._wake()

    def _wake(self) -> None:
        """Lets the calls that wait for news look again."""
        self.news.set()
        self.news.clear()

    def _advance(self) -> None:
        """Makes all updates that can be made now."""
        while not self._done() and (chosen := self._choose()):
            self._update(chosen)
        if self._done():
            self._wake()

    def _choose(self) -> list[int]:
        """Returns the workers whose gradients make the next update."""
        live = [job for job in self.jobs if job.worker not in self.away]
        if self.settings.together:
            everybody = {job.worker for job in live}
            return sorted(self.pending) if everybody <= self.pending.keys() else []
        allowed = self.pending if self.rule.bound is None else self._allowed(live)
        return next(([worker] for worker in self.pending if worker in allowed), [])

    def _allowed(self, jobs: Sequence[Job]) -> set[int]:
        """Returns the workers whose gradients a bounded server accepts now."""
        versions = np.array([[job.version] for job in jobs], np.int32)
        may = self.allowed(versions, np.int32(self.version), bound=self.rule.bound)
        return {job.worker for job, each in zip(jobs, np.asarray(may), strict=True) if each}

    def _update(self, workers: list[int]) -> None:
        """Makes one update with the mean of these workers' gradients, which several have computed
        at the same model, and begins the next jobs.
        """
        began = time.monotonic()
        taken = [(self.computing.pop(worker), *self.pending.pop(worker)) for worker in workers]
        numbers, about, gradients = zip(*taken, strict=True)
        mean = (
            gradients[0]
            if len(gradients) == 1
            else jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *gradients)
        )
        job, arrival = self.jobs[numbers[0]], self._arrival(numbers[0])
        delay = self._steps() - job.steps
        self.model = jax.block_until_ready(self.step(self.model, mean, arrival, job.model))
        self.version += 1
        self.messages += len(taken)
        self._begin(numbers, arrival)
        now = time.monotonic()
        after = (delay, self._steps(), self.messages, now - self.zero, (now - began) / len(about))
        for each in about:
            row = (each.worker, each.version, each.read, each.draw, each.computed, each.round_trip)
            self.updates.append(Update(self.version - 1, *row, *after))
        settings = self.settings
        if self.version % settings.record_every == 0 or self.version == settings.steps:
            self.records.append(to_numpy(self.model.params))
            self.finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(self.records[-1]))
            if time.monotonic() - self.saved > settings.seconds or self._done():
                self._save()

    def _lose(self, worker: int) -> None:
        """Ends the job that a worker was computing, if it was not stopped, without a gradient."""
        if worker in self.away:
            self.away.remove(worker)
            for job in self.queues[worker]:
                self.jobs[job] = self._read(worker)
        if (job := self.computing.pop(worker, None)) is not None:
            self._begin([job], self._arrival(job, lost=True))

    def _arrival(self, job: int, *, lost: bool = False) -> Arrival:
        """Returns the arrival of a job's gradient, as passed to the rule."""
        worker, read, version, steps = self.jobs[job]
        staleness = np.int32(self.version - version)
        delay: Any = np.int32(self._steps() - steps) if hasattr(self.model, "steps") else ()
        each = jax.tree.map(lambda leaf: staleness, read)
        key = jax.random.fold_in(self.key, self.version)
        return Arrival(jnp.int32(worker), each, delay, np.int32(job), lost, key)

    def _table(self) -> Jobs:
        """Returns the jobs, as passed to the rule."""
        waiting = [job in self.waiting for job in range(len(self.jobs))]
        delays = [
            0 if waits or job.worker in self.away else self._steps() - job.steps
            for waits, job in zip(waiting, self.jobs, strict=True)
        ]
        return Jobs(
            jnp.array([job.worker for job in self.jobs], jnp.int32),
            jnp.array(waiting),
            jnp.array(delays, jnp.int32) if hasattr(self.model, "steps") else (),
        )

    def _begin(self, ended: Sequence[int], arrival: Arrival) -> None:
        """Begins jobs at the current model, after an event that ended some."""
        orders = {job: self.jobs[job].worker for job in ended}
        if self.rule.order is not None:
            self.waiting.update(ended)
            key = jax.random.fold_in(arrival.key, 1)
            given = np.asarray(self.decide(self.model, arrival, self._table(), key)).tolist()
            if not all(-1 <= worker < len(given) for worker in given):
                raise ValueError(
                    f"{self.rule.name}: order gives the workers {given}; expected -1 to "
                    f"{len(given) - 1}"
                )
            orders = {job: worker for job, worker in enumerate(given) if worker >= 0}
        for job, worker in orders.items():
            self._stop(job)
            self.jobs[job] = self._read(worker)
            self.queues[worker].append(job)
        self.messages += len(orders)
        if not (self.computing or any(self.queues.values())):
            raise ValueError(
                f"{self.rule.name}: all workers wait for the server, which waits for them; "
                "expected an order that lets one begin"
            )
        self._wake()

    def _stop(self, job: int) -> None:
        """Takes a job away from its worker; its gradient is not expected any more."""
        worker = self.jobs[job].worker
        self.waiting.discard(job)
        if job in self.queues[worker]:
            self.queues[worker].remove(job)
        if self.computing.get(worker) == job:
            del self.computing[worker]
            self.away.add(worker)

    def _restore(self, *, after_death: bool) -> None:
        """Restores the checkpoint, if there is one. `after_death`: whether the process died, so
        that the time without it counts as time of the run.
        """
        if self.settings.folder is None:
            return
        self.checkpoint = Checkpoint(self.settings.folder, dict(self.settings.about))
        found = self.checkpoint.restore(jax.tree.map(_shape_of, self._carry()))
        if found is None:
            return
        carry, records = found
        kept, wall = dict(records), float(records["wall"])
        self.model, self.version = carry.state.server, int(carry.state.step)
        columns = {name: kept[name].tolist() for name in Update._fields}
        columns["read"] = [tuple(versions) for versions in columns["read"]]
        self.updates = [Update(*row) for row in zip(*columns.values(), strict=True)]
        self.records = _unstack(
            [kept[f"model{i}"] for i in range(len(jax.tree.leaves(self.model.params)))],
            self.model.params,
        )
        self.server_incarnation = int(kept["server_incarnation"]) + 1
        self.messages = self.updates[-1].messages if self.updates else 0
        self._start()
        self.zero = time.monotonic() - (
            float(kept["elapsed"]) + (time.time() - wall if after_death else 0.0)
        )
        self.saved = time.monotonic()
        if after_death:
            self._save()  # another death before the next checkpoint is another incarnation

    def _carry(self) -> Carry:
        return Carry(State(self.model, step=np.int32(self.version)), ())

    def _save(self) -> None:
        if self.checkpoint is None:
            return
        rows = {
            name: np.array([getattr(update, name) for update in self.updates])
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
