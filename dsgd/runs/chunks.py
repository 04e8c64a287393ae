"""Execution of the compiled loop in chunks of rounds, from the start or a checkpoint to the end."""

from __future__ import annotations

import json
import time
import warnings
from collections import deque
from collections.abc import Hashable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dsgd import checks
from dsgd.base import PyTree, State
from dsgd.engine import indices, loop, pooled, programs, protocol
from dsgd.engine.plan import Carry, Chunk, Records
from dsgd.engine.probe import probe
from dsgd.machines import agreement, arrays, host_calls
from dsgd.runs import fingerprint, hosting, nonfinite, plans, starts
from dsgd.runs.checkpoints import Checkpoint
from dsgd.runs.history import Log
from dsgd.runs.hosting import Stores
from dsgd.runs.interrupts import Interrupted, Stop
from dsgd.runs.progress import Progress
from dsgd.runs.results import Result
from dsgd.runs.run_spec import RunSpec, Tape

_CHUNK_SECONDS = 0.5  # target duration of a chunk; the loss is validated after each
_AHEAD = 2  # number of chunks queued on the devices
_SLOW_CHUNK = 1.0  # seconds of the first chunk, from which on an evaluation is timed
_LONG_EVALUATIONS = 5.0  # seconds; runs with less time in evaluations do not warn
_MOST_TIME = 0.6  # share of the time from which on evaluations are reported
_DONATED = (0,)  # donated arguments of `advance`: the carry


def execute(job: RunSpec, folder: str | Path | None) -> Result:
    """Executes a job, with a checkpoint in `folder` if one is given.

    Raises:
        ValueError, Diverged, Interrupted, PeerLost, PeerFailed: as in `dsgd.run`.
    """
    several = job.plan.mesh.is_multi_process
    with Stop() as stop, agreement.all_or_none(job.name, several):
        about = fingerprint.validate(job, has_checkpoint=folder is not None)
        with (
            nullcontext() if folder is None else Checkpoint(folder, about, several) as checkpoint,
            job.observers.watch(stop) if job.observers else nullcontext(),
        ):
            return _run(job, checkpoint, stop)


def _run(job: RunSpec, checkpoint: Checkpoint | None, stop: Stop) -> Result:
    """Prepares the devices, runs chunks until the last round or until the run is stopped, and
    collects the result.
    """
    host_calls.errors.clear()
    inputs, last = _place_inputs(job), job.last
    log = Log(
        runs=job.plan.runs,
        N=job.plan.N,
        record_every=job.plan.record_every,
        first=job.before,
        minimum=job.problem.constants.minimum,
        samples=sum(job.problem.local_samples or ()),
    )
    carry, stores = _first_carry(job, inputs, checkpoint, log)
    queue = _Queue(job, inputs, carry, log.steps[-1] if log.steps else job.before)
    if job.feed:
        with stop.users_code():
            job.feed.skip(queue.sent - job.before)
    shown = job.progress if agreement.process_index() == 0 else False
    with queue, Progress(job.name, queue.sent, last, shown) as bar:
        _pass_on(job, log, bar)
        if _is_enough(job, log, stop, bar):
            last = queue.sent
        pace = _pace(job, queue.carry, inputs)
        agree = partial(_agree, job, stop, pace, checkpoint)
        turn = agree()
        while queue.waiting or (queue.sent < last and not turn.stop):
            # The next chunk is queued before the last one is read, so that the devices never wait
            # for the host.
            ahead = 1 if job.until or turn.due or not log.steps else _AHEAD
            while queue.sent < last and len(queue.waiting) < ahead and not turn.stop:
                count, rounds = _next_chunk(job, queue.sent, last, turn.records)
                batches: PyTree = None
                if job.feed:
                    with stop.users_code():
                        batches = job.feed.take(rounds)
                    turn = agree()
                if not turn.stop:
                    queue.send(count, rounds, last, batches)
            if queue.waiting:
                records, count, done = queue.read()
                if not log.steps:
                    _warn_if_evaluations_are_slow(job, queue, queue.seconds())
                log.extend(records, done)
                pace.update(count)
                bar.update(done, log.last_loss())
                _check(job, log)
                _pass_on(job, log, bar)
            if not queue.waiting:
                if _is_enough(job, log, stop, bar):
                    last = queue.sent
                if checkpoint and log.steps and (turn.due or queue.sent >= last):
                    checkpoint.save(queue.carry, log.records(), hosting.pieces(stores))
            turn = agree()
    result = (
        None
        if turn.stop
        else Result(
            hosting.with_stores(queue.carry.state, stores),
            log.history(),
            _models(job, queue.carry.state, inputs),
            _tape(job, log),
        )
    )
    if result is None or agree().stop:
        raise _interruption(job, queue, log, checkpoint, stores)
    return result


class _Inputs(NamedTuple):
    """Arguments of the compiled programs that all chunks of a run share, on the devices."""

    points: PyTree
    keys: jax.Array
    data: PyTree
    shared: PyTree


def _place_inputs(job: RunSpec) -> _Inputs:
    """Copies the problem's arrays, the keys and the hyperparameters to the devices."""
    mesh, problem = job.plan.mesh, job.problem
    everywhere, by_worker = (NamedSharding(mesh, spec) for spec in (P(), job.plan.data_spec))
    blocks = 1 if job.plan.cohort else mesh.size
    data = arrays.place(pooled.lay_out(arrays.copy_arrays(problem.data), blocks), by_worker)
    points, keys, shared = arrays.place(
        (job.points, job.keys, arrays.copy_arrays(job.shared)), everywhere
    )
    return _Inputs(points, keys, data, shared)


def _first_carry(
    job: RunSpec, inputs: _Inputs, checkpoint: Checkpoint | None, log: Log
) -> tuple[Carry, Stores]:
    """Returns the initial carry of the loop, and the stores of the host; () if there are none.

    It is the checkpoint's state, whose records are added to the log; otherwise the given start;
    otherwise the method's initial state.
    """
    plan, points, keys = job.plan, inputs.points, inputs.keys
    hosted = bool(plan.cohort and plan.cohort.hosted)
    stores: Stores = ()
    if checkpoint and (found := checkpoint.restore(loop.shapes(plan, points, keys))):
        carry, records = found
        log.resume(records)
        if log.steps[-1] > job.last:
            done = log.steps[-1] - job.before
            raise ValueError(
                f"run: steps = {job.steps}, but the checkpoint has {done} rounds; expected steps "
                f">= {done}"
            )
        _check(job, log)
        if hosted:
            stores = hosting.from_pieces(checkpoint.pieces(), carry.state, plan, job.folder)
    elif not job.start:
        carry = programs.call(loop.first_carry, plan, points, keys)
        if hosted:
            stores = hosting.from_carry(carry, plan, job.folder)
    else:
        # Numbered draws continue as if all micro-batches of the previous rounds had been drawn.
        numbered = plan.problem.sampler.numbered
        drawn = job.before * probe(plan, job.methods[0]).draws if numbered else 0
        start = starts.with_rows(job.start, plan)
        carry = starts.restore(start, loop.shapes(plan, points, keys), drawn)
        if hosted:
            given = job.start if starts.has_stores(job.start) else starts.all_rows(job.start)
            stores = hosting.from_state(given, plan, job.folder)
    return hosting.with_numbers(carry, stores), stores


class _Queue:
    """Chunks that are queued on the devices, and the carry between them.

    Attributes:
        carry: the carry of the loop after round `sent`, on the devices.
        sent: number of rounds up to the end of the last queued chunk, including those before the
            run.
        waiting: the chunks that were not read yet: (records, number of records, round after the
            chunk).
    """

    def __init__(self, job: RunSpec, inputs: _Inputs, carry: Carry, sent: int) -> None:
        self._job, self._inputs = job, inputs
        self.carry, self.sent = carry, sent
        self.waiting: deque[tuple[Records, int, int]] = deque()
        self._batches: PyTree = None
        self._begun = 0.0

    def __enter__(self) -> _Queue:
        return self

    def __exit__(self, *error: object) -> None:
        """Waits for chunks that an error left, since they may call functions of this process."""
        jax.block_until_ready([records for records, *_ in self.waiting])

    def seconds(self) -> float:
        """Returns the time since the last chunk was queued."""
        return time.perf_counter() - self._begun

    def evaluation_seconds(self) -> float:
        """Returns the duration of one evaluation of the problem, which is made for this purpose by
        a chunk of 0 rounds. No chunk may be waiting.
        """
        begun = time.perf_counter()
        self.carry, records = self._advance(0, True, self._job.last, self._batches)
        jax.block_until_ready(records)
        return time.perf_counter() - begun

    def send(self, count: int, rounds: int, last: int, batches: PyTree) -> None:
        """Queues a chunk of `count` records and `rounds` rounds, in a run whose last round is
        `last`.
        """
        fresh, self._batches = self.sent == self._job.before, batches
        self.carry, records = self._advance(rounds, fresh, last, batches)
        # The program is compiled before the call returns, while the devices still compute.
        self._begun = time.perf_counter()
        self.sent += rounds
        self.waiting.append((records, count, self.sent))

    def _advance(
        self, rounds: int, fresh: bool, last: int, batches: PyTree
    ) -> tuple[Carry, Records]:
        points, keys, data, shared = self._inputs
        chunk = Chunk(*map(np.int32, (self.sent, rounds, fresh, last)))
        arguments = (self.carry, points, keys, data, shared, batches, chunk)
        return programs.call(loop.advance, self._job.plan, *arguments, donate=_DONATED)

    def read(self) -> tuple[dict[str, np.ndarray], int, int]:
        """Returns the oldest queued chunk. It waits if the devices are still computing it."""
        records, count, done = self.waiting.popleft()
        return jax.device_get(records), count, done


class _Turn(NamedTuple):
    """Decisions before a chunk.

    Any process can stop the run. Process 0 decides the rest, because clocks may differ between
    processes.

    Args:
        stop: whether a signal arrived.
        records: number of records in the next chunk.
        due: whether a checkpoint is due.
    """

    stop: bool
    records: int
    due: bool


def _agree(job: RunSpec, stop: Stop, pace: _Pace, checkpoint: Checkpoint | None) -> _Turn:
    """Returns the same decisions in all processes: a collective that only some of them begin would
    never finish.
    """
    local = _Turn(stop.asked, pace.records, bool(checkpoint and checkpoint.due()))
    if not job.plan.mesh.is_multi_process:
        return local
    turns = [
        _Turn(*json.loads(words))
        for words in agreement.all_gather("the next chunk", json.dumps(local))
    ]
    return turns[0]._replace(stop=any(turn.stop for turn in turns))


def _next_chunk(job: RunSpec, sent: int, last: int, most: int) -> tuple[int, int]:
    """Returns the numbers of records and rounds of the next chunk, which has at most `most`
    records.
    """
    every, left = job.plan.record_every, last - sent
    since = sent % every  # not 0 if an earlier run ended between two records
    most = min(most, -(-left // every), max(1, plans.MOST_IN_CHUNK // every))
    if job.feed:
        most = min(most, job.feed.records)
    count = 1 if since else most
    rounds = min(count * every - since, left)
    evaluated = sent + rounds - (sent + rounds) % (every * job.plan.evaluate_every)
    # `until` must find a loss in the last record, so a chunk ends with an evaluated record.
    if job.until and sent < evaluated:
        rounds = evaluated - sent
    return -(-rounds // every), rounds


def _check(job: RunSpec, log: Log) -> None:
    """Raises `Diverged` if a run diverged (except in a sweep), ValueError if the method reports
    that it cannot continue, and errors of functions that the program called.
    """
    host_calls.raise_error()
    if wrong := indices.first_message(log.pieces[-1], indices.REFUSED):
        raise ValueError(f"{job.name}: by round {log.steps[-1]}, {wrong}")
    if doubtful := indices.first_message(log.pieces[-1], indices.WARNED):
        warnings.warn(f"{job.name}: {doubtful}", stacklevel=2)
    if not job.points:
        log.check(job.name, partial(nonfinite.report, job))


def _pass_on(job: RunSpec, log: Log, bar: Progress) -> None:
    """Passes the records that are new to the functions of `on_record`."""
    if job.observers and job.observers.functions:
        with bar.hidden():
            job.observers.update(log.history())


def _is_enough(job: RunSpec, log: Log, stop: Stop, bar: Progress) -> bool:
    """Whether the user's `until` ends the run. No chunk may be on the devices."""
    if not (job.until and log.steps):
        return False
    enough = False
    where = f"until, of a run of {job.name}"
    with stop.users_code(), bar.hidden(), protocol.error_context(where):
        enough = checks.truth(
            "run: until", job.until(log.history()), "bool((history['loss'][..., -1] < 0.1).all())"
        )
    if job.plan.mesh.is_multi_process:
        enough = json.loads(agreement.all_gather("whether it is enough", json.dumps(enough))[0])
    return enough


def _tape(job: RunSpec, log: Log) -> Tape | None:
    """Returns the tape of the run; None if it is not taped."""
    if not job.plan.taped:
        return None
    shape = log.pieces[0]["loss"].shape[:-1]
    steps = log.steps[-1] - log.steps[0]
    return Tape(job.plan, job.points, job.keys, job.before, shape, steps, log.tape())


def _models(job: RunSpec, state: State, inputs: _Inputs) -> PyTree:
    """Returns the final models.

    The data are passed only if the problem estimates statistics from them; otherwise they are not
    part of the program.
    """
    return programs.call(
        loop.models,
        job.plan,
        state,
        inputs.points,
        inputs.data if job.problem.evaluation.statistics else (),
    )


def _interruption(
    job: RunSpec, queue: _Queue, log: Log, checkpoint: Checkpoint | None, stores: Stores
) -> Interrupted:
    """Saves a checkpoint and returns the exception to raise.

    If the checkpoint cannot be written, the exception still contains the history.
    """
    message = (
        f"{job.name}: interrupted after round {queue.sent} (the error's attribute `history` has "
        "the records so far)"
    )
    try:
        if checkpoint and log.steps:
            checkpoint.save(queue.carry, log.records(), hosting.pieces(stores))
    except OSError as error:
        message += f"; its checkpoint could not be written: {error}"
    return Interrupted(message, log.history())


def _warn_if_evaluations_are_slow(job: RunSpec, queue: _Queue, seconds: float) -> None:
    """Warns if evaluations will take most of the run's time.

    A compiled program of rounds and evaluations cannot be timed in parts, so one evaluation is
    made for this purpose, unless the run is fast.

    Args:
        job: the run.
        queue: the queue after the first chunk, which is empty.
        seconds: duration of the first chunk, without compilation.
    """
    left, rounds = job.last - queue.sent, queue.sent - job.before
    if seconds < _SLOW_CHUNK or left <= 0 or rounds <= 0 or job.plan.mesh.is_multi_process:
        return
    every = job.plan.record_every * job.plan.evaluate_every
    each = queue.evaluation_seconds()
    # The first chunk also evaluates the start.
    evaluations = 1 + queue.sent // every - job.before // every
    of_rounds = max(0.0, seconds - evaluations * each) * every / rounds
    share = each / (each + of_rounds)
    if share > _MOST_TIME and each * left / every > _LONG_EVALUATIONS:
        plans.warn_of_evaluations(job, share, each)


class _Pace:
    """Chooses the number of records in the next chunk.

    It is 1 at first, and then as many as take about `_CHUNK_SECONDS`.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.records = 1
        self.at = 0.0

    def update(self, count: int) -> None:
        """Updates the pace after a chunk of `count` records was read."""
        now = time.perf_counter()
        wanted = count * _CHUNK_SECONDS / max(now - self.at, 1e-9)
        self.records = max(1, min(self.most, max(self.records, 8 * count), int(wanted)))
        self.at = now


# By traced function (while it exists) and by shapes.
_paces: WeakKeyDictionary[Any, dict[Hashable, _Pace]] = WeakKeyDictionary()


def _pace(job: RunSpec, carry: Carry, inputs: _Inputs) -> _Pace:
    """Returns the pace of the last run of this plan on arrays of the same shapes.

    Each chunk allocates memory, so a run that begins with long chunks is faster.
    """
    by_shapes = _paces.setdefault(programs.traceable(loop.advance, job.plan, _DONATED), {})
    shapes = tuple(
        (leaf.shape, leaf.dtype)
        for leaf in jax.tree.leaves((carry, inputs, job.feed and job.feed.first))
    )
    # The first chunk also contains the record of the initial state.
    pace = by_shapes.setdefault(shapes, _Pace(job.plan.capacity - 1))
    pace.at = time.perf_counter()  # time before this run must not count
    return pace
