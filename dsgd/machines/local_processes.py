"""Processes of one machine that see each other over its loopback address, as machines do over a
network: a cluster to try things on.

They live and die together: where one fails, or the one that started them ends, however it does, the
others end, too.
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
from dsgd.contract import elsewhere
from dsgd.machines import agreement, runtime

HOST = "127.0.0.1"
_here = HOST  # of a process in a namespace of its own, another one
_LOOK = 0.02  # seconds between two looks at the processes
_TOGETHER = 600.0  # seconds in which all have joined: on a busy machine they begin far apart
_SCRIPT = f"import sys; from {__name__} import take_part; take_part(*sys.argv[1:])"


class Site(NamedTuple):
    """Where a process runs.

    Args:
        address: where it listens, and the others find it.
        enter: words before its command, which lead there.
    """

    address: str = HOST
    enter: tuple[str, ...] = ()


@checks.arguments
def loopback(processes: int, function: Callable[[], Any], *, timeout: float = 600.0) -> list[Any]:
    """What `function()` gives in each of so many processes of one JAX runtime (`jax.distributed`),
    each with one device, a CPU.

    Args:
        processes: how many.
        function: called in each; `jax.process_index()` says in which. It may be a notebook's, or a
            closure, of what can be pickled.
        timeout: seconds that they have in all.

    Returns:
        What each gives, in the order of their indices; it is pickled, too. What they print is only
        looked at where one fails.

    Raises:
        ValueError: no processes, or no time; what cannot be pickled; this process is itself one of
            many.
        ChildProcessError: one failed or was killed, or time is over; it says which and why. The
            others are killed.
    """
    return called(
        "loopback",
        [Site()] * checks.positive_int("loopback: processes", processes),
        function,
        timeout,
    )


def called(
    name: str, sites: Sequence[Site], function: Callable[[], Any], timeout: float
) -> list[Any]:
    """What `function()` gives in a process at each of these sites, of which the first is the
    coordinator's.

    Args:
        name: of the function that asks, for its messages.
        sites: one a process.
        function, timeout: as of `loopback`.

    Raises:
        ValueError, ChildProcessError: as `loopback`.
    """
    import cloudpickle  # noqa: PLC0415 (only who starts processes needs it)

    if not timeout > 0:
        raise ValueError(f"{name}: timeout = {timeout:g}: need seconds > 0")
    if not agreement.alone():
        raise ValueError(
            f"{name}: this is process {agreement.index()} of {agreement.count()}: need one "
            "process, which starts the others"
        )
    try:
        sent = cloudpickle.dumps(function)
    except Exception as error:  # anything may be what cannot be pickled
        raise ValueError(
            f"{name}: {checks.shown(function)} cannot be sent to other processes ({error})"
        ) from error
    return [cloudpickle.loads(result) for result in _results(name, sent, sites, timeout)]


def _results(name: str, function: bytes, sites: Sequence[Site], timeout: float) -> list[bytes]:
    """Of processes that call it; pickled, as it is."""
    with tempfile.TemporaryDirectory() as where, socket.socket() as held:
        folder = Path(where)
        (folder / "function").write_bytes(function)
        # Nobody else gets the port until the coordinator, the first of the processes, listens
        # there.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((HOST, 0))
        with _started(folder, sites, held.getsockname()[1]) as processes:
            _wait(name, folder, processes, timeout)
        return [_result(folder, i).read_bytes() for i in range(len(sites))]


def _result(folder: Path, i: int) -> Path:
    """Where a process leaves it."""
    return folder / f"{i}.result"


@contextmanager
def _started(
    folder: Path, sites: Sequence[Site], port: int
) -> Iterator[Sequence[subprocess.Popen]]:
    """The processes, none of which outlives the block."""
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
                # stdin is the lifeline: it ends when this process does.
                processes.append(
                    subprocess.Popen(
                        command,
                        env=elsewhere.environment(1),
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
    """Until all have ended well."""
    end = time.monotonic() + timeout
    while True:
        statuses = [each.poll() for each in processes]
        if any(statuses):
            raise ChildProcessError(_why(folder, statuses))
        running = [str(i) for i, status in enumerate(statuses) if status is None]
        if not running:
            if missing := [i for i in range(len(processes)) if not _result(folder, i).exists()]:
                raise ChildProcessError(
                    f"{name}: process {missing[0]} of {len(processes)} ended, with status 0, "
                    "before the function did"
                )
            return
        if time.monotonic() > end:
            still = f"of {len(processes)} processes these still run: {', '.join(running)}"
            raise ChildProcessError(f"{name}: after {timeout:g} s, {still}; they were killed")
        time.sleep(_LOOK)


def _why(folder: Path, statuses: Sequence[int | None]) -> str:
    """What was the matter with the first one that failed: the others may have failed since it was
    gone.
    """
    logs = {i: folder / f"{i}.log" for i, status in enumerate(statuses) if status}
    first = min(logs, key=lambda i: logs[i].stat().st_mtime_ns)
    who, status = f"process {first} of {len(statuses)}", statuses[first] or 0
    if status < 0:
        return f"{who} was ended by {signal.Signals(-status).name}"
    *_, last = logs[first].read_text(errors="replace").strip().splitlines() or ["no message"]
    return f"{who} ended with status {status}: {last}"


def take_part(where: str, number: str, of: str, coordinator: str, address: str) -> None:
    """What each of the processes does."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import cloudpickle  # noqa: PLC0415

    global _here  # noqa: PLW0603 (a process has one)
    _here = address
    folder, index, count = Path(where), int(number), int(of)
    try:
        runtime.join(coordinator, count, index, timeout=_TOGETHER)
        result = cloudpickle.dumps(cloudpickle.loads((folder / "function").read_bytes())())
    except Exception as error:
        traceback.print_exc()
        print(
            f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr, flush=True
        )
        os._exit(1)  # at once: an orderly end would wait for the others
    _result(folder, index).write_bytes(result)


def here() -> str:
    """The address at which this process listens."""
    return _here


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)  # until it ends: nothing is ever written
    os._exit(1)
