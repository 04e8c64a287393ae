"""Where calls are made: processes that share the cores of this machine, Ray, Slurm, or an executor
of the user.

Each context yields a function that submits a packed call and returns its job, which has the methods
`done`, `result` and `cancel` of a `concurrent.futures.Future`. `result` raises an exception if the
call was lost.
"""

from __future__ import annotations

import functools
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dsgd import checks, optional
from dsgd.machines import ray_session, remote_calls, subprocess_call

Submit = Callable[[bytes], Any]

KINDS = ("processes", "ray", "slurm")
_GRACE = 10.0  # seconds in which an interrupted process may end by itself
_DAY = 24 * 60  # minutes, the time limit of a job of Slurm
_SCRIPT = f"import sys; from {__name__} import serve; serve(*map(int, sys.argv[1:]))"


def require(where: str, on: Any, jobs: int | None) -> None:
    """Raises a ValueError if there is no such executor, or `jobs` is not positive."""
    known = on is None or (isinstance(on, str) and on in KINDS)
    if not known and not callable(getattr(on, "submit", None)):
        raise ValueError(
            f"{where}: on = {checks.show(on)}; expected None, {', '.join(map(repr, KINDS))}, or an "
            "executor with a method submit"
        )
    if jobs is not None:
        checks.positive_int(f"{where}: jobs", jobs)


def open_executor(
    where: str, on: Any, jobs: int, folder: Path | None
) -> AbstractContextManager[Submit]:
    """Returns the context of an executor.

    Args:
        where: name of the calling function, for messages.
        on: one of `KINDS`, or an executor.
        jobs: number of calls at the same time.
        folder: folder for the files of Slurm's jobs.

    Raises:
        ValueError: if it cannot be used here.
    """
    if not isinstance(on, str):
        return _given(on)
    if on == "processes":
        return local_processes(where, jobs)
    return ray_tasks(jobs) if on == "ray" else slurm_jobs(where, folder)


@contextmanager
def _given(executor: Any) -> Iterator[Submit]:
    yield lambda call: executor.submit(remote_calls.perform, call)


@contextmanager
def local_processes(where: str, count: int) -> Iterator[Submit]:
    """Makes calls in processes that each have an equal share of this machine's cores.

    They have as many threads as this process, because results depend on their number to rounding.

    Raises:
        ValueError: if JAX computes on an accelerator in this process.
    """
    if jax.default_backend() in ("gpu", "tpu"):
        raise ValueError(
            f"{where}: on = 'processes' shares the cores of this machine, but JAX computes on "
            f"{jax.default_backend()}; expected 'ray', 'slurm' or an executor"
        )
    mine = remote_calls.cores()
    shares = [part.tolist() for part in np.array_split(mine, min(count, len(mine)))]
    with tempfile.TemporaryDirectory() as logs:
        processes = [Process(shares[i % len(shares)], Path(logs, str(i))) for i in range(count)]

        def submit(call: bytes) -> Process:
            return next(each for each in processes if not each.busy).begin(call)

        try:
            yield submit
        finally:
            for each in processes:
                each.interrupt()
            for each in processes:
                each.end()


class Process:
    """A process of this machine that makes one call after the other; it is started again if it
    ends. It is also the job of its call.

    Args:
        cores: on which it runs.
        log: file of its output.
    """

    def __init__(self, cores: Sequence[int], log: Path) -> None:
        self.cores: Sequence[int] = cores
        self.log: Path = log
        self.busy: bool = False
        self._start()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-c", _SCRIPT, str(theirs.fileno()), *map(str, self.cores)]
        with theirs, self.log.open("wb") as log:
            # In its own session it receives no Ctrl-C, and its process group has all processes
            # that it starts.
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                command,
                env=subprocess_call.environment(jax.local_device_count()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.connection: Connection[Any, Any] = Connection(ours.detach())

    def begin(self, call: bytes) -> Process:
        """Starts a call, and returns its job."""
        if self.process.poll() is not None:
            self.end()
            self._start()
        self.busy = True
        with suppress(OSError):  # `result` raises the error
            self.connection.send_bytes(call)
        return self

    def done(self) -> bool:
        """Returns whether the call has ended."""
        return self.connection.poll()

    def result(self) -> bytes:
        """Returns the result of the call.

        Raises:
            ChildProcessError: if the process has ended.
        """
        self.busy = False
        try:
            return self.connection.recv_bytes()
        except (EOFError, OSError):
            status = self.process.wait()
        if status < 0:
            raise ChildProcessError(f"its process was killed by {signal.Signals(-status).name}")
        *_, last = self.log.read_text(errors="replace").strip().splitlines() or ["no message"]
        raise ChildProcessError(f"its process exited with status {status}: {last}")

    def cancel(self) -> None:
        """Does nothing: all processes end with their context."""

    def interrupt(self) -> None:
        """Sends SIGTERM, if there is a call, so that it may write what it has so far."""
        if self.busy and self.process.poll() is None:
            self.process.terminate()

    def end(self) -> None:
        """Kills the process, and all processes that it has started."""
        if self.busy:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_GRACE)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.connection.close()


def serve(descriptor: int, *cores: int) -> None:
    """Makes the calls that arrive at a socket, on these cores; the main function of a `Process`."""
    connection, calls = Connection(descriptor), queue.SimpleQueue[bytes]()
    threading.Thread(target=_receive, args=(connection, calls), daemon=True).start()
    pin(cores)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    while True:
        connection.send_bytes(remote_calls.perform(calls.get()))


def _receive(connection: Connection, calls: queue.SimpleQueue[bytes]) -> None:
    """Receives calls; if the process that sends them has ended, kills this one, with all processes
    that it has started.
    """
    with suppress(EOFError, OSError):
        while True:
            calls.put(connection.recv_bytes())
    os.killpg(0, signal.SIGKILL)


def pin(cores: Sequence[int]) -> None:
    """Lets all threads of this process run only on these cores. Has an effect only on Linux."""
    if hasattr(os, "sched_setaffinity"):
        for thread in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), cores)


@contextmanager
def ray_tasks(jobs: int) -> Iterator[Submit]:
    """Makes calls as tasks of Ray, each on one core: on the cluster whose address is the
    environment variable RAY_ADDRESS, or else on this machine.

    Raises:
        ValueError: if Ray is not installed or cannot be reached.
    """
    address = os.environ.get("RAY_ADDRESS", "local")
    here = address == "local"
    names = ("JAX_PLATFORMS", "PYTHONPATH", "XLA_FLAGS")
    inherited = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment = {name: inherited[name] for name in names if name in inherited}
    with ray_session.session(min(jobs, len(remote_calls.cores())) if here else 1, address) as ray:
        perform = ray.remote(_perform_on_core).options(
            num_cpus=1,
            num_gpus=int(jax.default_backend() == "gpu"),
            max_retries=0,  # of calls, which are made again by `tasks`
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": environment},
        )
        made = []

        def submit(call: bytes) -> Any:
            made.append(perform.remote(call))
            return made[-1].future()

        try:
            yield submit
        finally:
            for each in made:
                ray.cancel(each, force=True)


def _perform_on_core(call: bytes) -> bytes:
    """Makes a call in a process of Ray, which Ray does not limit to its core."""
    _take_core()
    return remote_calls.perform(call)


@functools.cache
def _take_core() -> Any:
    """Pins this process to a core of the machine on which no other process of Ray runs, if there is
    one; the lock that is returned ends with the process.
    """
    import filelock  # noqa: PLC0415

    for core in remote_calls.cores():
        lock = filelock.FileLock(Path(tempfile.gettempdir(), f"dsgd-{os.getuid()}-core-{core}"))
        with suppress(filelock.Timeout):
            lock.acquire(blocking=False)
            pin([core])
            return lock
    return None


@contextmanager
def slurm_jobs(where: str, folder: Path | None) -> Iterator[Submit]:
    """Makes calls as jobs of Slurm, each with one core; Slurm's environment variables SBATCH_* set
    the partition, the account and the time limit.

    Raises:
        ImportError: if submitit is not installed.
        ValueError: if there is no folder, or this machine has no Slurm.
    """
    submitit = optional.load(f"{where}: on = 'slurm'", "submitit", "slurm")
    if folder is None:
        raise ValueError(
            f"{where}: on = 'slurm' without a folder; expected one that all machines can access: "
            "folder=, or checkpoint= of plan"
        )
    try:
        executor = submitit.AutoExecutor(folder / "slurm", cluster="slurm")
    except RuntimeError as error:
        raise ValueError(
            f"{where}: on = 'slurm', but {error}; expected a machine of a Slurm cluster"
        ) from error
    gpus = int(jax.default_backend() == "gpu")
    executor.update_parameters(
        name="dsgd", timeout_min=_DAY, cpus_per_task=1, **{"gpus_per_node": 1} if gpus else {}
    )
    with _given(executor) as submit:
        yield submit
