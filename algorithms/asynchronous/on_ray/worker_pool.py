"""The workers of a run: actors that Ray restarts when their processes die, and whose `run` is then
called again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

_LOOK = 0.1  # seconds for which `look` waits


class WorkerPool:
    """The workers of a run.

    Args:
        ray: the module.
        actors: the workers' actors, in order.
        begin: (worker, incarnation) -> future of the worker's run; `incarnation` is the number of
            restarts of this worker.
    """

    def __init__(self, ray: Any, actors: Sequence[Any], begin: Callable[[int, int], Any]) -> None:
        self.ray: Any = ray
        self.actors: Sequence[Any] = actors
        self.begin: Callable[[int, int], Any] = begin
        # number of restarts of each worker
        self.incarnations: dict[int, int] = dict.fromkeys(range(len(actors)), 0)
        self.runs: dict[Any, int] = {}

    def start(self, timeout: float) -> None:
        """Starts all runs at the same time, after all workers have compiled their programs."""
        self.ray.get([actor.compile.remote() for actor in self.actors], timeout=timeout)
        for worker in self.incarnations:
            self._run(worker)

    def look(self) -> list[int]:
        """Waits for a short time, and restarts runs that ended because their processes died. While
        Ray restarts a process, a run in it ends immediately.

        Returns:
            The workers whose processes died.

        Raises:
            Exception: the error that a worker's own code raised.
            ChildProcessError: if all workers have died and none can be restarted.
        """
        gone, dead = [], self.ray.exceptions.ActorDiedError
        done, _ = self.ray.wait(list(self.runs), timeout=_LOOK)
        for run in done:
            worker = self.runs.pop(run)
            try:
                self.ray.get(run)
            except self.ray.exceptions.RayTaskError as error:
                raise error.cause from error
            except self.ray.exceptions.RayActorError as error:
                gone.append(worker)
                self.incarnations[worker] += 1
                if not isinstance(error, dead):
                    self._run(worker)
        if gone and not self.runs:
            raise ChildProcessError(
                "on_ray: all workers have died and cannot be restarted; the last one was worker "
                f"{gone[-1]}; pass more restarts"
            )
        return gone

    def _run(self, worker: int) -> None:
        self.runs[self.begin(worker, self.incarnations[worker])] = worker


class StallTimeout:
    """A limit on the time without progress.

    Args:
        seconds: the limit.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds: float = seconds
        self.seen: Any = None
        self.since: float = time.monotonic()

    def need(self, progress: Any, what: str) -> None:
        """Raises a TimeoutError if `progress` has not changed for longer than the limit."""
        if progress != self.seen:
            self.seen, self.since = progress, time.monotonic()
        elif time.monotonic() - self.since > self.seconds:
            raise TimeoutError(f"on_ray: {what} for {self.seconds:g} s")
