"""The compiled loop, driven chunk by chunk from the start, or from a checkpoint, to the last round."""

from __future__ import annotations

import json
import time
import warnings
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dsgd import checks, workers
from dsgd.base import PyTree, Result, State
from dsgd.engine import indices, loop, pooled, programs, protocol
from dsgd.machines import agreement, arrays
from dsgd.runs import identity, plans, starts, suspects
from dsgd.runs.checkpoints import Checkpoint
from dsgd.runs.history import History, Log
from dsgd.runs.interrupts import Interrupted, Stop
from dsgd.runs.jobs import Job, Watch
from dsgd.runs.progress import Progress

_CHUNK_SECONDS = 0.5  # between two looks at the loss
_AHEAD = 2  # chunks on the devices
_DONATED = (0,)  # of `advance`'s arguments: what is carried


def execute(job: Job, watch: Watch, folder: str | Path | None) -> Result:
    """Does the job, with a checkpoint in that folder, if there is one.

    Raises:
        ValueError, Diverged, Interrupted, Lost, Elsewhere: as `dsgd.run`.
    """
    several = job.plan.mesh.is_multi_process
    with Stop() as stop, agreement.together(watch.name, several):
        about = identity.of(job, folder is not None) if several or folder is not None else {}
        if several:
            also = {"steps": job.steps, "first round": job.before, "devices": job.plan.mesh.size, "capacity": job.plan.capacity}
            asked = {"checkpoint": folder is not None, "until": watch.until is not None}
            identity.need_same(about | {name: str(value) for name, value in (also | asked).items()})
        with nullcontext() if folder is None else Checkpoint(folder, about, several) as checkpoint:
            drive = _Drive(job, watch, checkpoint, stop)
            drive.run()
            result = None if drive.turn.stop else drive.result()
            if result is None or drive.agree().stop:
                raise drive.interrupted()
            return result


class _Turn(NamedTuple):
    """What is decided before a chunk: by any process whether to stop, by process 0 the rest, where the clocks may differ.

    Args:
        stop: a signal came.
        records: that the next chunk has.
        due: whether it is time for a checkpoint.
    """

    stop: bool
    records: int
    due: bool


class _Drive:
    """One job on its way. `carry` is what the devices have after round `sent`; `waiting` are the chunks whose records were not yet read."""

    def __init__(self, job: Job, watch: Watch, checkpoint: Checkpoint | None, stop: Stop) -> None:
        plan, everywhere = job.plan, NamedSharding(job.plan.mesh, P())
        self.job, self.watch, self.checkpoint, self.stop = job, watch, checkpoint, stop
        self.several = plan.mesh.is_multi_process
        self.data = arrays.place(pooled.laid_out(arrays.owned(job.problem.data), plan.mesh.size), NamedSharding(plan.mesh, P(workers.AXIS)))
        self.shared, self.points, self.keys = arrays.place((arrays.owned(job.problem.shared), job.points, job.keys), everywhere)
        self.log = Log(runs=plan.runs, N=plan.N, record_every=plan.record_every, first=job.before)
        self.last = job.before + job.steps
        self.carry = self._begin()
        self.sent = self.log.steps[-1] if self.log.steps else job.before
        if job.feed:
            with stop.users_code():
                job.feed.skip(self.sent - job.before)
        self.pace = _pace(plan, (self.carry, self.points, self.keys, self.data, self.shared, job.feed and job.feed.first))
        self.waiting: deque[tuple[loop.Records, int, int]] = deque()  # records, how many, the round after them

    def run(self) -> None:
        """To the last round, or to where it is stopped."""
        self._ask()
        self.pace.begin()
        with Progress(self.watch.name, self.sent, self.last, self.watch.progress and agreement.index() == 0) as bar:
            while self._goes_on():
                self._send()
                if self.waiting:
                    self._read(bar)
                if not self.waiting:
                    self._ask()
                    self._save()

    def agree(self) -> _Turn:
        """The same in all processes: collectives that some begin and others do not are never done."""
        mine = _Turn(self.stop.asked, self.pace.records, bool(self.checkpoint and self.checkpoint.due()))
        if self.several:
            everybody = [_Turn(*json.loads(words)) for words in agreement.exchange("the next chunk", json.dumps(mine))]
            mine = everybody[0]._replace(stop=any(turn.stop for turn in everybody))
        self.turn = mine
        return mine

    def _goes_on(self) -> bool:
        return (not self.agree().stop and self.sent < self.last) or bool(self.waiting)

    def result(self) -> Result:
        return Result(self.carry.state, self.log.history(), self._models())

    def _models(self) -> PyTree:
        """The data are for what the model estimates from them; without that, they are no part of the program."""
        plan = self.job.plan
        return programs.call(loop.models, plan, self.carry.state, self.points, self.data if plan.problem.statistics else ())

    def interrupted(self) -> Interrupted:
        """What to raise. The checkpoint is written before; where it cannot be, the history is not lost for that."""
        said = f"{self.watch.name}: interrupted after round {self.sent} (the error's .history has what went before)"
        try:
            if self.checkpoint and self.log.steps:
                self.checkpoint.save(self.carry, self.log.records())
        except OSError as error:
            said += f"; its checkpoint could not be written: {error}"
        return Interrupted(said, self.log.history())

    def _begin(self) -> loop.Carry:
        """The checkpoint's state and records; or the start, given or made."""
        plan, start = self.job.plan, self.job.start
        if not (self.checkpoint or start):
            return programs.call(loop.first_carry, plan, self.points, self.keys)
        like = loop.shapes(plan, self.points, self.keys)
        found = self.checkpoint.restore(like) if self.checkpoint else None
        if found is None:
            return self._placed(start, like) if start else programs.call(loop.first_carry, plan, self.points, self.keys)
        carry, records = found
        self.log.resume(records)
        if self.log.steps[-1] > self.last:
            done = self.log.steps[-1] - self.job.before
            raise ValueError(f"steps = {self.job.steps}, but the checkpoint has {done} rounds: need at least as many steps")
        self._check()
        return carry

    def _placed(self, start: State, like: loop.Carry) -> loop.Carry:
        """Where another run ended. Draws that are numbered go on as if all micro-batches of its rounds had been drawn."""
        plan, before = self.job.plan, self.job.before
        drawn = before * loop.micro_batches(plan, self.points, self.keys, like) if plan.problem.numbered else 0
        return starts.placed(start, like, drawn)

    def _send(self) -> None:
        """Queues the next chunk before the last one is read, so that the devices never wait for the host."""
        ahead = 1 if self.watch.until or self.turn.due else _AHEAD
        while self.sent < self.last and len(self.waiting) < ahead and not self.turn.stop:
            count, rounds = self._next_chunk()
            batch: PyTree = None
            if self.job.feed:
                with self.stop.users_code():
                    batch = self.job.feed.take(rounds)
                if self.agree().stop:
                    return
            chunk = loop.Chunk(*map(np.int32, (self.sent, rounds, self.sent == self.job.before, self.last)))
            arguments = (self.carry, self.points, self.keys, self.data, self.shared, batch, chunk)
            self.carry, news = programs.call(loop.advance, self.job.plan, *arguments, donate=_DONATED)
            self.sent += rounds
            self.waiting.append((news, count, self.sent))

    def _next_chunk(self) -> tuple[int, int]:
        """Its records and rounds."""
        every, left = self.job.plan.record_every, self.last - self.sent
        since = self.sent % every  # not 0 where a run goes on that ended between two records
        most = min(self.turn.records, -(-left // every), max(1, plans.MOST_IN_CHUNK // every))
        if self.job.feed:
            most = min(most, self.job.feed.records)
        count = 1 if since else most
        rounds = min(count * every - since, left)
        evaluated = self.sent + rounds - (self.sent + rounds) % (every * self.job.plan.evaluate_every)
        if self.watch.until and self.sent < evaluated:  # it is to see a loss where it looks for one, in the last record
            rounds = evaluated - self.sent
        return -(-rounds // every), rounds

    def _read(self, bar: Progress) -> None:
        """The oldest chunk's records."""
        news, count, done = self.waiting.popleft()
        self.log.extend(jax.device_get(news), done)
        self.pace.finished(count)
        bar.update(done, self.log.last_loss())
        self._check()

    def _check(self) -> None:
        """Raises `Diverged` if a run diverged that may not, and a ValueError if the method refuses to go on."""
        if wrong := indices.found(self.log.pieces[-1], indices.REFUSED):
            raise ValueError(f"{self.watch.name}: by round {self.log.steps[-1]}, {wrong}")
        if doubtful := indices.found(self.log.pieces[-1], indices.WARNED):
            warnings.warn(f"{self.watch.name}: {doubtful}", stacklevel=2)
        if not self.watch.may_diverge:
            self.log.check(self.watch.name, partial(suspects.of, self.job))

    def _ask(self) -> None:
        """The run ends here if the user says so. Nothing is on its way."""
        if self.watch.until and self.log.steps:
            enough = False
            with self.stop.users_code():
                enough = self._asked(self.watch.until)
            if self.several:
                enough = json.loads(agreement.exchange("whether it is enough", json.dumps(enough))[0])
            if enough:
                self.last = self.sent

    def _asked(self, until: Callable[[History], bool]) -> bool:
        with protocol.noted(f"until, of a run of {self.watch.name}"):
            return checks.truth("run: until", until(self.log.history()), "bool((history['loss'][..., -1] < 0.1).all())")

    def _save(self) -> None:
        """What there is, where it is time to. Nothing is on its way."""
        if self.checkpoint and self.log.steps and (self.turn.due or self.sent >= self.last):
            self.checkpoint.save(self.carry, self.log.records())


class _Pace:
    """How many records the next chunk has: one at first, then as many as take about `_CHUNK_SECONDS`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.records = 1
        self.at = 0.0

    def begin(self) -> None:
        """Of a run: what went before it does not count."""
        self.at = time.perf_counter()

    def finished(self, count: int) -> None:
        now = time.perf_counter()
        wanted = count * _CHUNK_SECONDS / max(now - self.at, 1e-9)
        self.records = max(1, min(self.most, max(self.records, 8 * count), int(wanted)))
        self.at = now


# By traced function, as long as it is kept, and by shapes.
_paces: WeakKeyDictionary[Any, dict[Hashable, _Pace]] = WeakKeyDictionary()


def _pace(plan: loop.Plan, arrays: PyTree) -> _Pace:
    """That of the last run of this plan on such arrays: each chunk pays for memory that is taken anew, so that fewer are better."""
    known = _paces.setdefault(programs.traceable(loop.advance, plan, _DONATED), {})
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(arrays))
    return known.setdefault(shapes, _Pace(plan.capacity - 1))  # the first chunk has the start's record, too
