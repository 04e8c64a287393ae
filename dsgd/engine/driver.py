"""`run`: checks what it is given, drives the compiled loop chunk by chunk, and turns its records into a history."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dsgd import checks, workers
from dsgd.base import Algorithm, Key, Problem, PyTree, Result
from dsgd.clusters import Cluster
from dsgd.engine import loop, programs, protocol
from dsgd.engine.checkpoints import Checkpoint
from dsgd.engine.history import Log
from dsgd.engine.progress import Progress

_CHUNK_SECONDS = 0.5  # between two looks at the loss
_ROOM = 1 << 14  # records of all runs in one chunk
_AHEAD = 2  # chunks on the devices


@checks.arguments
def run(
    algorithm: Algorithm,
    problem: Problem,
    *,
    steps: int,
    key: Key,
    seeds: int | None = None,
    batches: Iterable[PyTree] | None = None,
    cluster: Cluster | None = None,
    record_every: int = 1,
    mesh: Mesh | int | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = False,
) -> Result:
    """Runs a method on a problem for `steps` rounds, on every device of the mesh.

    Args:
        algorithm: from `algorithms`, or your own.
        problem: from `dsgd.problems`, or your own.
        steps: rounds.
        key: of everything random: the start, the samples, the compression.
        seeds: R independent runs as one compiled program, with the keys `jax.random.split(key, R)`; None: one run with `key`.
        batches: for data that do not fit on the device: an iterator whose items are worker-stacked batches, leaves `[N, ...]`, one a
            round and the same for all seeds. The problem's own data then serve only the history's loss. Batches of the built-in data sets
            are `problems.Examples`. The batches between two records, at least 16, are on the devices at a time, and as many ahead.
        cluster: from `dsgd.clusters`, whose clock the history then shows, and whose events drive asynchronous methods (which take one
            worker's gradient in a round, of batches from outside one worker's row).
        record_every: rounds between two records.
        mesh: from `dsgd.workers.mesh`, or a number of devices; None: all devices.
        checkpoint: a folder in which the run saves itself every half minute and at its end. The same call goes on from there, with the
            same result as if it had not stopped; with more `steps`, a finished run goes on. Batches from outside are skipped up to there.
        progress: show a bar with rounds a second and the current loss.

    Returns:
        The last state, the history, and the model to take home. The history's arrays are `[seeds?, records]`: `loss`, `grad_sqnorm` (of
        the whole objective, at the model to take home), `consensus` ((1/N) sum |x_n - x|^2, 0 where there is one model), `bits` (sent and
        received so far, per worker), with a cluster `clock` (simulated seconds so far, when the last worker was done, or the last
        update was), the problem's and the method's own scalars (of the record's last round; NaN before the first); and `step` `[records]`.
        The first record is the start, the last is after round `steps`.

    Raises:
        ValueError: steps, seeds or record_every < 1, N that the devices do not divide, a method built for another N, parameters that are
            not floating point, batches that end early or do not fit, a checkpoint of another run or of more rounds,
            a cluster for another N, or whose clock stops being finite or goes back.
        Diverged: the loss became infinite or NaN.
    """
    check_runnable(algorithm, problem, steps, key, cluster)
    if seeds is not None:
        checks.positive_int("seeds", seeds)
    runs = 0 if seeds is None else 1
    plan = make_plan(Always(algorithm), problem, mesh, runs=runs, size=seeds or 1, record_every=record_every, cluster=cluster)
    keys = key if seeds is None else jax.random.split(key, seeds)
    watch = Watch(algorithm.name, progress, learning_rate=algorithm.learning_rate)
    if checkpoint is None:
        return execute(plan, problem, {}, keys, steps, batches, watch)
    about = _about(algorithm, problem, key, seeds, record_every, cluster)
    with closing(Checkpoint(checkpoint, about)) as saved:
        return execute(plan, problem, {}, keys, steps, batches, watch, saved)


@checks.arguments
def compile_round(
    algorithm: Algorithm, problem: Problem, mesh: Mesh | int | None = None, cluster: Cluster | None = None
) -> jax.stages.Compiled:
    """One round of a run, compiled on its own, to look into: `dsgd.workers.traffic` reads in it what really crosses devices.

    Args:
        algorithm, problem, mesh, cluster: as in `run`; the clock is at 0.

    Returns:
        The program of (state, key, data) -> (state, info).

    Raises:
        ValueError: as `run`.
    """
    key = jax.random.key(0)
    check_runnable(algorithm, problem, 1, key, cluster)
    plan = make_plan(Always(algorithm), problem, mesh, runs=0, size=1, record_every=1, cluster=cluster)
    state = jax.eval_shape(lambda: protocol.held(algorithm, problem, plan.N).init(problem.init(key), plan.N))
    return programs.traceable(loop.one_round, plan).lower(state, key, problem.data).compile()


def _about(
    algorithm: Algorithm, problem: Problem, key: jax.Array, seeds: int | None, record_every: int, cluster: Cluster | None
) -> dict[str, str]:
    """What tells one run from another on disk."""
    return {
        "method": algorithm.name,
        "step size": f"{algorithm.learning_rate:.9g}",
        "problem": problem.name,
        "workers": str(problem.workers),
        "batch_size": str(problem.batch_size),
        "data": _digest((problem.data, problem.shared)),
        "seeds": str(seeds),
        "record_every": str(record_every),
        "cluster": cluster.name if cluster else "None",
        "key": np.asarray(jax.random.key_data(key)).tobytes().hex(),
    }


def _digest(tree: PyTree) -> str:
    sha = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        sha.update(np.asarray(leaf).tobytes())
    return sha.hexdigest()[:16]


@dataclass(frozen=True)
class Always:
    """A factory without hyperparameters. Equal where the algorithm is the same, so that a second run does not compile again."""

    algorithm: Algorithm

    def __call__(self, point: dict[str, jax.Array]) -> Algorithm:
        return self.algorithm


class Watch(NamedTuple):
    """What the driver shows, and what it refuses.

    Args:
        name: of the method.
        progress: show a bar.
        learning_rate: for the error message; None: runs may diverge (a sweep goes on).
    """

    name: str
    progress: bool
    learning_rate: float | None

    def check(self, log: Log) -> None:
        """Raises `Diverged` where a run that may not diverge did."""
        if self.learning_rate is not None:
            log.check(self.name, self.learning_rate)


def make_plan(
    build: Any, problem: Problem, mesh: Mesh | int | None, *, runs: int, size: int, record_every: int, cluster: Cluster | None = None
) -> loop.Plan:
    """The static side of a run of `size` independent runs."""
    checks.positive_int("record_every", record_every)
    if mesh is None or isinstance(mesh, int):
        mesh = workers.mesh(mesh)
    N = problem.workers
    if N % mesh.size:
        divisors = [d for d in range(1, mesh.size + 1) if N % d == 0]
        hint = f"mesh={divisors[-1]}, say"
        raise ValueError(f"{N} workers on {mesh.size} devices: need a number of devices that divides {N}: {hint}")
    capacity = max(1 << 8, _ROOM // (1 << (size - 1).bit_length()))
    return loop.Plan(build, loop.without_arrays(problem), mesh, N, runs, record_every, capacity, cluster)


def execute(
    plan: loop.Plan,
    problem: Problem,
    points: PyTree,
    keys: jax.Array,
    steps: int,
    batches: Iterable[PyTree] | None,
    watch: Watch,
    checkpoint: Checkpoint | None = None,
) -> Result:
    """Drives the compiled loop from the start, or from the checkpoint, to round `steps`. Arguments as in `run` and `loop.start`."""
    data = jax.device_put(problem.data, NamedSharding(plan.mesh, P(workers.AXIS)))
    shared, points, keys = jax.device_put((problem.shared, points, keys), NamedSharding(plan.mesh, P()))
    carry = programs.call(loop.start, plan, points, keys)
    log = Log(runs=plan.runs, N=plan.N, record_every=plan.record_every)
    found = checkpoint.restore(carry) if checkpoint else None
    if found:
        carry, records = found
        log.resume(records)
        if log.steps[-1] > steps:
            raise ValueError(f"steps = {steps}, but the checkpoint is of round {log.steps[-1]}: need at least as many steps")
        watch.check(log)
    sent = log.steps[-1] if found else 0
    feed = None if batches is None else _Feed(plan, iter(batches), skip=sent)
    pace = _Pace(plan.capacity - 1)  # the first chunk has the start's record, too
    with Progress(watch.name, sent, steps, watch.progress) as bar:
        waiting: deque[tuple[loop.Records, int, int]] = deque()  # chunks on the devices: records, how many, the round after them
        while sent < steps or waiting:
            # The next chunk is queued before the last one is read, so that the devices never wait for the host.
            ahead = 1 if checkpoint and checkpoint.due() else _AHEAD
            while sent < steps and len(waiting) < ahead:
                count = min(pace.records, feed.records) if feed else pace.records
                since = sent % plan.record_every  # not 0 where a run goes on that ended between two records
                count = 1 if since else min(count, -(-(steps - sent) // plan.record_every))
                rounds = min(count * plan.record_every - since, steps - sent)
                batch = feed.take(sent, rounds, steps) if feed else None
                arguments = (carry, points, keys, data, shared, batch, np.int32(sent), np.int32(rounds))
                carry, news = programs.call(loop.advance, plan, *arguments, donate=(0,))
                if sent == 0:
                    protocol.need_counted(watch.name, carry.state.step, rounds)
                sent += rounds
                waiting.append((news, count, sent))
            news, count, done = waiting.popleft()
            log.extend(jax.device_get(news), done)
            pace.finished(count)
            bar.update(done, log.last_loss())
            watch.check(log)
            if checkpoint and not waiting and (checkpoint.due() or done >= steps):
                checkpoint.save(done, carry, log.records())
    return Result(carry.state, log.history(), programs.call(loop.models, plan, carry.state, points))


class _Pace:
    """How many records the next chunk has: one at first, then as many as take about `_CHUNK_SECONDS`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.records = 1
        self.at = time.perf_counter()

    def finished(self, count: int) -> None:
        now = time.perf_counter()
        wanted = count * _CHUNK_SECONDS / max(now - self.at, 1e-9)
        self.records = max(1, min(self.most, 8 * count, int(wanted)))
        self.at = now


class _Feed:
    """Batches from outside, stacked by chunks of rounds."""

    _ROUNDS = 16

    def __init__(self, plan: loop.Plan, batches: Iterator[PyTree], skip: int) -> None:
        self.plan = plan
        self.batches = itertools.islice(batches, skip, None)
        self.records = max(1, self._ROUNDS // plan.record_every)
        self.kind: Any = None  # structure, shapes and types of a batch

    def take(self, done: int, rounds: int, steps: int) -> PyTree:
        """The next `rounds` batches, padded to the chunk's fixed length, on the devices."""
        taken = list(itertools.islice(self.batches, rounds))
        if len(taken) < rounds:
            raise ValueError(f"batches ended after round {done + len(taken)}: need one for each of the {steps} rounds")
        for i, batch in enumerate(taken, start=done):
            self._check(i, batch)
        taken += [taken[-1]] * (self.records * self.plan.record_every - rounds)
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *taken)
        return jax.device_put(stacked, NamedSharding(self.plan.mesh, P(None, workers.AXIS)))

    def _check(self, i: int, batch: PyTree) -> None:
        if not jax.tree.leaves(batch):
            raise ValueError(f"batches: batch {i} = {checks.shown(batch)} has no arrays; need leaves [N, ...]")
        for leaf in jax.tree.leaves(batch):
            if np.ndim(leaf) < 1 or np.shape(leaf)[0] != self.plan.N:
                raise ValueError(f"batch {i} has a leaf of shape {np.shape(leaf)}; need the leading axis of the {self.plan.N} workers")
        kind = jax.tree.structure(batch), [(np.shape(leaf), jnp.result_type(leaf)) for leaf in jax.tree.leaves(batch)]
        self.kind = self.kind or kind
        if kind != self.kind:
            raise ValueError(f"batch {i} is {kind}, the first was {self.kind}; need equal structures, shapes and types")


def check_runnable(algorithm: Algorithm, problem: Problem, steps: int, key: jax.Array, cluster: Cluster | None = None) -> None:
    """Raises a ValueError where they do not fit together: the method or the cluster is for another N, leaves of the data differ in N, or
    parameters are not floating point."""
    if not isinstance(algorithm, Algorithm):
        raise ValueError(f"algorithm = {algorithm!r}: need a dsgd.Algorithm, algorithms.minibatch_sgd(optax.sgd(0.1)), say")
    if not isinstance(problem, Problem):
        raise ValueError(f"problem = {problem!r}: need a dsgd.Problem, problems.logistic_regression(), say")
    checks.positive_int("steps", steps)
    N = problem.workers
    if algorithm.workers not in (None, N):
        raise ValueError(f"{algorithm.name} is built for {algorithm.workers} workers, {problem.name} has {N}; need the same number")
    if cluster is not None:
        if not isinstance(cluster, Cluster):
            raise ValueError(f"cluster = {cluster!r}: need a dsgd.clusters.Cluster, clusters.Cluster(clusters.constant(1.0)), say")
        cluster.need_workers(N)
    for path, leaf in jax.tree_util.tree_leaves_with_path(problem.data):
        if leaf.ndim < 1 or leaf.shape[0] != N:
            where = jax.tree_util.keystr(path)
            raise ValueError(f"{problem.name}: data{where} has shape {leaf.shape}; need the leading axis of the {N} workers")
    params = protocol.parameters(problem)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            where = jax.tree_util.keystr(path) or "they"
            raise ValueError(f"{problem.name}: parameters must be floating point, but {where} has dtype {leaf.dtype}")
