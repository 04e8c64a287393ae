"""The workers of a run: started, watched, left out where they die, and started anew."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from algorithms.asynchronous.on_ray.session import ended

_LOOK = 0.1  # seconds between two looks


class Crew:
    """The workers of a run, each of which runs until it is done.

    Args:
        ray: the module.
        made: worker -> its actor.
        begin: (worker, actor, life) -> its run, a future of Ray's.
        workers: N.
        restarts: how often each may be started anew.
    """

    def __init__(self, ray: Any, made: Callable[[int], Any], begin: Callable[[int, Any, int], Any], workers: int, restarts: int) -> None:
        self.ray: Any = ray
        self.made: Callable[[int], Any] = made
        self.begin: Callable[[int, Any, int], Any] = begin
        self.restarts: int = restarts
        self.actors: dict[int, Any] = {worker: made(worker) for worker in range(workers)}
        self.lives: dict[int, int] = dict.fromkeys(range(workers), 0)
        self.there: set[int] = set(range(workers))  # who has not died, or is there again
        self.runs: dict[Any, int] = {}
        self.died: list[int] = []

    def start(self, timeout: float) -> None:
        """All of them, at once, when all have compiled."""
        self.ray.get([actor.rehearse.remote() for actor in self.actors.values()], timeout=timeout)
        for worker in self.actors:
            self._run(worker)

    def look(self) -> list[int]:
        """Waits a little. Who has died since then; each is on its way again, if it may be.

        Raises:
            Exception: what a worker's own code raised.
            ChildProcessError: there is none any more.
        """
        gone = []
        done, _ = self.ray.wait(list(self.runs), timeout=_LOOK)
        for run in done:
            worker = self.runs.pop(run)
            try:
                self.ray.get(run)
            except self.ray.exceptions.RayActorError:
                gone.append(worker)
            except self.ray.exceptions.RayTaskError as error:
                raise error.cause from error
        for worker in gone:
            self.died.append(worker)
            self.there.discard(worker)
            self.lives[worker] += 1
            if self.lives[worker] <= self.restarts:
                self.actors[worker] = self.made(worker)
                self._run(worker)
        if gone and not self.runs:
            raise ChildProcessError(f"on_ray: all workers have died, {self.restarts} restarts each; the last was worker {gone[-1]}")
        return gone

    def end(self) -> None:
        """Whether they are done or not."""
        ended(self.ray, list(self.actors.values()))

    def _run(self, worker: int) -> None:
        self.runs[self.begin(worker, self.actors[worker], self.lives[worker])] = worker


class Patience:
    """How long nothing may happen.

    Args:
        seconds: as long.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds: float = seconds
        self.seen: Any = None
        self.since: float = time.monotonic()

    def need(self, progress: Any, what: str) -> None:
        """Raises a TimeoutError where the progress has been the same for too long."""
        if progress != self.seen:
            self.seen, self.since = progress, time.monotonic()
        elif time.monotonic() - self.since > self.seconds:
            raise TimeoutError(f"on_ray: {what} for {self.seconds:g} s")
