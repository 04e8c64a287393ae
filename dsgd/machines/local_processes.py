"""Local processes that communicate over the loopback address, as machines do over a network.

They form a small cluster for experiments on one machine. If one of them fails, or the process that
started them ends for any reason, the others end as well.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dsgd import checks
from dsgd.machines import agreement, pickling, runtime, subprocess_call

HOST = "127.0.0.1"
_here = HOST  # a process in its own network namespace has a different address
_LOOK = 0.02  # seconds between two polls of the processes
_TOGETHER = 600.0  # time limit for joining, in seconds: on a busy machine starts are far apart
_SCRIPT = f"import sys; from {__name__} import take_part; take_part(*sys.argv[1:])"


class Site(NamedTuple):
    """Where a local process runs.

    Args:
        address: address at which it listens, and at which the others reach it.
        enter: prefix of its command, which enters its network namespace.
    """

    address: str = HOST
    enter: tuple[str, ...] = ()


@checks.arguments
def run_local_processes(
    processes: int, function: Callable[[], Any], *, timeout: float = 600.0
) -> list[Any]:
    """Calls `function()` in local processes that form one JAX runtime (`jax.distributed`).

    Each process has one device, a CPU.

    Args:
        processes: number of processes.
        function: called in each process; `jax.process_index()` returns the index there. It may be
            defined in a notebook or be a closure, if its contents can be pickled.
        timeout: time limit for all processes together, in seconds.

    Returns:
        The pickled and restored result of each process, in the order of their indices. Their output
        is used only in the error message if one fails.

    Raises:
        ValueError: if `processes` or `timeout` is not positive, the function cannot be pickled, or
            this process is itself one of several.
        ChildProcessError: if a process failed or was killed, or the time limit was exceeded. The
            message names the process and the reason. The others are killed.
    """
    return call(
        "run_local_processes",
        [Site()] * checks.positive_int("run_local_processes: processes", processes),
        function,
        timeout,
    )


def call(
    name: str, sites: Sequence[Site], function: Callable[[], Any], timeout: float
) -> list[Any]:
    """Calls `function()` in a process at each site, the first of which is the coordinator.

    Args:
        name: name of the calling function, for messages.
        sites: one per process.
        function, timeout: as in `run_local_processes`.

    Raises:
        ValueError, ChildProcessError: as in `run_local_processes`.
    """
    import cloudpickle  # noqa: PLC0415 (imported only to start processes)

    if not timeout > 0:
        raise ValueError(f"{name}: timeout = {timeout:g}; expected seconds > 0")
    if not agreement.is_single_process():
        raise ValueError(
            f"{name}: called in process {agreement.process_index()} of "
            f"{agreement.process_count()}; expected a "
            "call in a single process, which starts the others"
        )
    try:
        sent = pickling.dumps(function)
    except Exception as error:  # an object's own pickling may raise anything
        raise ValueError(
            f"{name}: function = {checks.show(function)} cannot be pickled ({error}); expected a "
            "function that can be sent to other processes"
        ) from error
    return [cloudpickle.loads(result) for result in _results(name, sent, sites, timeout)]


def _results(name: str, function: bytes, sites: Sequence[Site], timeout: float) -> list[bytes]:
    """Returns the pickled results of processes that call the pickled function."""
    with tempfile.TemporaryDirectory() as where, socket.socket() as held:
        folder = Path(where)
        (folder / "function").write_bytes(function)
        # The open socket reserves the port until the coordinator, which is process 0, listens on
        # it.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((HOST, 0))
        with _start(folder, sites, held.getsockname()[1]) as processes:
            _wait(name, folder, processes, timeout)
        return [_result(folder, i).read_bytes() for i in range(len(sites))]


def _result(folder: Path, i: int) -> Path:
    """Returns the path at which process i stores its result."""
    return folder / f"{i}.result"


@contextmanager
def _start(folder: Path, sites: Sequence[Site], port: int) -> Iterator[Sequence[subprocess.Popen]]:
    """Starts the processes, and kills those that are still running at the end of the block."""
    processes, coordinator = [], f"{sites[0].address}:{port}"
    try:
        for i, site in enumerate(sites):
            command = [
                *site.enter,
                sys.executable,
                "-c",
                _SCRIPT,
                str(folder),
                str(i),
                str(len(sites)),
                coordinator,
                site.address,
            ]
            with (folder / f"{i}.log").open("wb") as log:
                # The child ends when its stdin does, which happens when this process ends.
                processes.append(
                    subprocess.Popen(
                        command,
                        env=subprocess_call.environment(1),
                        stdin=subprocess.PIPE,
                        stdout=log,
                        stderr=log,
                    )
                )
        yield processes
    finally:
        for each in processes:
            each.kill()
        for each in processes:
            each.communicate()


def _wait(name: str, folder: Path, processes: Sequence[subprocess.Popen], timeout: float) -> None:
    """Waits until all processes have exited successfully."""
    end = time.monotonic() + timeout
    while True:
        statuses = [each.poll() for each in processes]
        if any(statuses):
            raise ChildProcessError(_why(folder, statuses))
        running = [str(i) for i, status in enumerate(statuses) if status is None]
        if not running:
            if missing := [i for i in range(len(processes)) if not _result(folder, i).exists()]:
                raise ChildProcessError(
                    f"{name}: process {missing[0]} of {len(processes)} exited with status 0 before "
                    "the function returned"
                )
            return
        if time.monotonic() > end:
            raise ChildProcessError(
                f"{name}: after timeout = {timeout:g} s, these of {len(processes)} processes were "
                f"still running and were killed: {', '.join(running)}"
            )
        time.sleep(_LOOK)


def _why(folder: Path, statuses: Sequence[int | None]) -> str:
    """Returns why the first process failed. The others may have failed as a consequence."""
    logs = {i: folder / f"{i}.log" for i, status in enumerate(statuses) if status}
    first = min(logs, key=lambda i: logs[i].stat().st_mtime_ns)
    process, status = f"process {first} of {len(statuses)}", statuses[first] or 0
    if status < 0:
        return f"{process} was killed by {signal.Signals(-status).name}"
    *_, last = logs[first].read_text(errors="replace").strip().splitlines() or ["no message"]
    return f"{process} exited with status {status}: {last}"


def take_part(where: str, number: str, of: str, coordinator: str, address: str) -> None:
    """Runs the job of one local process; the main function of each of these processes."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import cloudpickle  # noqa: PLC0415

    global _here  # noqa: PLW0603 (one address per process)
    _here = address
    folder, index, count = Path(where), int(number), int(of)
    try:
        runtime.join(coordinator, count, index, timeout=_TOGETHER)
        result = pickling.dumps(cloudpickle.loads((folder / "function").read_bytes())())
    except Exception as error:
        traceback.print_exc()
        print(
            f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr, flush=True
        )
        os._exit(1)  # immediately: an orderly exit would wait for the other processes
    _result(folder, index).write_bytes(result)


def here() -> str:
    """Returns the address at which this process listens."""
    return _here


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)  # returns at the end of stdin; the parent writes nothing
    os._exit(1)
