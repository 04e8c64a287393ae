"""The workers of a run: actors that Ray restarts when their processes die, and whose runs begin
again here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

_LOOK = 0.1  # seconds between two looks


class Crew:
    """The workers of a run, each of which runs until it is done.

    Args:
        ray: the module.
        actors: of the workers, in their order.
        begin: (worker, life) -> its run, a future of Ray's.
    """

    def __init__(self, ray: Any, actors: Sequence[Any], begin: Callable[[int, int], Any]) -> None:
        self.ray: Any = ray
        self.actors: Sequence[Any] = actors
        self.begin: Callable[[int, int], Any] = begin
        # the number of each worker's run
        self.lives: dict[int, int] = dict.fromkeys(range(len(actors)), 0)
        self.runs: dict[Any, int] = {}

    def start(self, timeout: float) -> None:
        """Begins all runs at once, when all workers have compiled."""
        self.ray.get([actor.rehearse.remote() for actor in self.actors], timeout=timeout)
        for worker in self.lives:
            self._run(worker)

    def look(self) -> list[int]:
        """Waits a little, and begins runs again that ended because their processes died. While Ray
        restarts one, its run ends at once.

        Returns:
            These workers.

        Raises:
            Exception: what a worker's own code raised.
            ChildProcessError: all workers have died, and have no restarts left.
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
                self.lives[worker] += 1
                if not isinstance(error, dead):
                    self._run(worker)
        if gone and not self.runs:
            raise ChildProcessError(
                "on_ray: all workers have died, and have no restarts left; the last was worker "
                f"{gone[-1]}"
            )
        return gone

    def _run(self, worker: int) -> None:
        self.runs[self.begin(worker, self.lives[worker])] = worker


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
