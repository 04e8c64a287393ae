"""A server and its workers event by event, in plain Python: the oracle of all methods of
`asynchronous_server` with one server and no bound.

A method is a rule, what the server does with what arrives, and an order, who begins then; see
`server_case`. Times are absolute, models are kept by the jobs that read them, and a heap has the
ends of all computations.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dsgd import clusters
from tests.methods import events
from tests.methods.asynchronous_sgd import LATENCY, LENGTH, SYMBOLS, bits
from tests.methods.given import Case, Given, Rounds, Setting, Symbols
from tests.methods.steps import Step
from theory_checks.machinery.statement import Draws

__all__ = ["Arrival", "Local", "Options", "Order", "Pending", "Rule", "bits", "server_case"]
METRICS = {"delay", "server_steps", "began", "ended", "lost"}  # some methods lack some of them
# (t, model) -> the gradients of all workers, [N, d]
Gradients = Callable[[int, np.ndarray], np.ndarray]


class Arrival(NamedTuple):
    """What arrives at the server.

    Args:
        t: number of the event, from 0.
        g: the gradient, or x - y of a local run, `[d]`; None: the computation was cut.
        job, worker: who computed it.
        delay: number of the server's steps since its model was read.
        staleness: number of events since then.
        x: the server's model, `[d]`.
        read: the model that was read, `[d]`.
        clock: seconds.
    """

    t: int
    g: np.ndarray | None
    job: int
    worker: int
    delay: int
    staleness: int
    x: np.ndarray
    read: np.ndarray
    clock: float


class Pending(NamedTuple):
    """A job after the server's step, as an order sees it: its worker, whether it waits, and the
    number of the server's steps since its model was read.
    """

    worker: int
    waiting: bool
    delay: int


# what arrives -> the change of the model, or None: no step
Rule = Callable[[Arrival], np.ndarray | None]
# what arrives, all jobs -> the worker that begins a job, by the job's number
Order = Callable[[Arrival, Sequence[Pending]], dict[int, int]]


class Local(NamedTuple):
    """Local runs: a function that returns the first step of one, the number of steps of each
    worker, and rho.
    """

    step: Callable[[], Step]
    steps: Sequence[int]
    pull: float = 0.0


class Options(NamedTuple):
    """What jobs are, and when they end.

    Args:
        local: local runs; None: a job is one gradient.
        timeouts: seconds after which each worker's gradient is cut, `[N]`.
        spells: begin and end of each spell of each worker.
        concurrency: number of workers that compute from the start on; None: all.
        latency: seconds of a message.
        convention: "blocking", if latency occupies the ports, or "pipelined".
    """

    local: Local | None = None
    timeouts: Sequence[float] | None = None
    spells: Sequence[Sequence[tuple[float, float]]] | None = None
    concurrency: int | None = None
    latency: float = LATENCY
    convention: str = "blocking"


PLAIN = Options()


@dataclass
class _Job:
    """A model, and the computation at it, which has a number if it will end."""

    worker: int
    left: int = 1
    number: int | None = None
    began: float = 0.0
    ready: float = np.inf
    lost: bool = False
    waiting: bool = False
    read: np.ndarray | None = None  # not before the server sends it
    version: int = 0
    steps: int = 0
    y: np.ndarray | None = None
    step: Step | None = None


@dataclass
class Loop:
    """The events of a method.

    Args:
        numbers: the cluster.
        options: what jobs are.
        model: bits of a model.
    """

    numbers: events.Numbers
    options: Options
    model: float
    clock: float = 0.0
    into: float = 0.0  # until when the server's receiving and sending ports are busy
    out: float = 0.0
    jobs: list[_Job] = field(default_factory=list)
    ends: list[tuple[float, int, int]] = field(default_factory=list)  # time, job, computation
    reads: list[tuple[float, int, _Job]] = field(default_factory=list)  # time, computation, job
    computations: int = 0

    def run(
        self, x: np.ndarray, gradients: Gradients, length: int, rule: Rule, order: Order
    ) -> Iterator[Symbols]:
        """Yields each event.

        Args:
            x: the first model.
            gradients: of all workers.
            length: number of events.
            rule, order: the method.
        """
        steps, local = 0, self.options.local
        for n in range(len(self.numbers.up)):
            self.jobs.append(_Job(n, self._run_length(n), read=x))
            if self.options.concurrency is None or n < self.options.concurrency:
                self._compute(n, n, 0.0)
            else:
                self.jobs[n].waiting = True
        for t in range(length):
            j, job = self._next()
            began, ended, n = job.began, job.ready, job.worker
            inner = not job.lost and job.left > 1
            sends = not job.lost and not inner
            self.clock = self._send_up(n, ended) if sends else max(ended, self.clock)
            self._read(self.clock, t, x, steps)
            assert job.read is not None
            g = None if job.lost else gradients(t, job.read if job.y is None else job.y)[n]
            if local is not None and g is not None:
                g = self._local_step(job, local, g)
            delay = steps - job.steps
            now = Arrival(t, g, j, n, delay, t - job.version, x, job.read, self.clock)
            down = np.zeros(len(self.jobs))
            if inner:
                job.left -= 1
                self._compute(j, n, max(ended, self._busy(n, j)))
            else:
                if g is not None or self.options.timeouts is not None:
                    change = rule(now)
                    x, steps = (x, steps) if change is None else (x + change, steps + 1)
                down = self._begin(order, now, steps)
            after = self.jobs[j]
            yield {
                "worker": n,
                "delay": delay,
                "staleness": t - job.version,
                "x": x,
                "server_steps": steps,
                "asked": n,
                "clock": self.clock,
                "began": began,
                "ended": ended,
                "resumed": after.began if np.isfinite(after.ready) else -1.0,
                "lost": g is None,
                "bits up": np.where(np.arange(len(down)) == n, self.model * sends, 0),
                "bits down": self.model * down,
            }

    def _run_length(self, n: int) -> int:
        return 1 if self.options.local is None else self.options.local.steps[n]

    def _next(self) -> tuple[int, _Job]:
        """Returns the job whose computation ends first; the first one of several."""
        while True:
            _, j, number = heapq.heappop(self.ends)
            if self.jobs[j].number == number:  # it was not stopped
                return j, self.jobs[j]

    def _send_up(self, n: int, ready: float) -> float:
        """Returns when a gradient has arrived."""
        latency, blocking = self.options.latency, self.options.convention == "blocking"
        leaves = max(ready, self.into - latency * (not blocking))
        self.into = leaves + latency + self.model / self.numbers.up[n]
        return self.into

    def _send_down(self, n: int) -> tuple[float, float]:
        """Returns when the server reads a model for this worker, and when it has received it."""
        latency, blocking = self.options.latency, self.options.convention == "blocking"
        reads, down = max(self.clock, self.out), self.model / self.numbers.down[n]
        self.out = reads + down + latency * blocking
        return reads, reads + latency + down

    def _read(self, now: float, t: int, x: np.ndarray, steps: int) -> None:
        """Gives the model to the jobs for which the server has read it, before event t at `now`."""
        while self.reads and self.reads[0][0] <= now:
            job = heapq.heappop(self.reads)[-1]
            job.read, job.version, job.steps = x, t, steps

    def _local_step(self, job: _Job, local: Local, g: np.ndarray) -> np.ndarray:
        """Makes a step of a local run; returns x - y after it."""
        assert job.read is not None
        if job.step is None:
            job.y, job.step = job.read, local.step()
        job.y = job.y + job.step(g + local.pull * (job.y - job.read))
        return job.read - job.y

    def _begin(self, order: Order, now: Arrival, steps: int) -> np.ndarray:
        """Begins jobs; returns the number of models that each worker receives, `[N]`."""
        self._end(now.job)
        self.jobs[now.job].waiting = True
        seen = [
            Pending(job.worker, job.waiting, 0 if waits else steps - job.steps)
            for job in self.jobs
            for waits in [job.waiting or job.read is None]
        ]
        begins, received = order(now, seen), np.zeros(len(self.jobs))
        for j in begins:
            self._end(j)
        for j, n in sorted(begins.items()):
            self.jobs[j] = _Job(n, self._run_length(n))
            reads, arrives = self._send_down(n)
            heapq.heappush(self.reads, (reads, self.computations, self.jobs[j]))
            self._compute(j, n, max(arrives, self._busy(n, j)))
            received[n] += 1
        return received

    def _busy(self, n: int, j: int) -> float:
        """Returns until when the worker computes jobs other than j."""
        others = (job.ready for i, job in enumerate(self.jobs) if i != j and job.worker == n)
        return max((ready for ready in others if np.isfinite(ready)), default=0.0)

    def _end(self, j: int) -> None:
        """Ends a computation; the heap's entry is then of no use."""
        self.jobs[j].number, self.jobs[j].ready = None, np.inf

    def _compute(self, j: int, n: int, begin: float) -> None:
        """Begins a computation."""
        job, seconds = self.jobs[j], self.numbers.seconds(n, begin)
        job.began, job.number, job.lost = begin, self.computations, False
        self.computations += 1
        if self.options.timeouts is not None and seconds > self.options.timeouts[n]:
            job.lost, seconds = True, self.options.timeouts[n]
        job.ready = begin + seconds
        if self.options.spells is not None:
            spells = self.options.spells[n]
            if not any(first <= begin and job.ready <= last for first, last in spells):
                job.lost = True
                job.ready = min([first for first, _ in spells if first > begin], default=np.inf)
        if np.isfinite(job.ready):
            heapq.heappush(self.ends, (job.ready, j, job.number))


def go_on(now: Arrival, jobs: Sequence[Pending]) -> dict[int, int]:
    """The order of a server at which the worker of each arrival begins again."""
    return {now.job: now.worker}


def server_case(
    make: Callable[[Setting], Any],
    rule: Callable[[Given], Rule | tuple[Rule, Order]],
    optimizer: str = "plain",
    *,
    local: Callable[[Given], Local] | None = None,
    options: Options = PLAIN,
    more: Callable[[Draws], events.Numbers] = events.cluster,
    length: int = 2 * LENGTH,
) -> Case:
    """Returns the case of a server with a rule of its own.

    Args:
        make: returns the method.
        rule: given -> the rule, or the rule and the order, without memory of earlier events.
        optimizer: see `Case`.
        local: given -> local runs.
        options: when jobs end, and the cluster's latency, convention and spells.
        more: draws -> the cluster's numbers.
        length: number of events.
    """

    def rounds(given: Given) -> Rounds:
        own = options._replace(local=None if local is None else local(given))
        method, logged = rule(given), METRICS & given.found.metrics.keys()
        both: Any = method if isinstance(method, tuple) else (method, go_on)
        loop = Loop(given.more, own, given.model)
        for symbols in loop.run(given.x, given.gradients_at, given.length, *both):
            yield {name: symbols[name] for name in symbols if name in logged or name not in METRICS}

    place: dict[str, Any] = {"latency": options.latency, "convention": options.convention}
    if options.spells is not None:
        begins, ends = (
            [[spell[end] for spell in each] for each in options.spells] for end in (0, 1)
        )
        place["present"] = clusters.lifetimes(begins, ends)
    return Case(
        make,
        rounds,
        optimizer=optimizer,
        symbols=SYMBOLS
        | {name: f"metrics.{name}" for name in METRICS}
        | {"resumed": lambda found: np.nan_to_num(found.metrics["resumed"], nan=-1.0)},
        more=more,
        place=partial(events.place, **place),
        length=length,
    )
