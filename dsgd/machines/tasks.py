"""Calls of one function with many items, which are independent tasks: here one after the other, or
on several cores or machines.
"""

from __future__ import annotations

import collections
import pickle
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dsgd import checks, records
from dsgd.machines import executors, pickling, remote_calls

ATTEMPTS = 3  # how often a task is made at most, if the process that makes it is lost
_LOOK = 0.02  # seconds between two looks at the running tasks


@checks.arguments
def parallel_map(
    function: Callable[[Any], Any],
    items: Sequence[Any],
    *,
    on: Any = None,
    jobs: int | None = None,
    folder: str | Path | None = None,
    progress: bool = False,
) -> list[Any]:
    """Calls a function with each item, on several cores or machines; each call is a program of its
    own.

    It is meant for runs that do not fit one `sweep`, because they differ in more than numbers:

        def best(period):
            method = lambda learning_rate: algorithms.local_sgd(optax.sgd(learning_rate), period)
            sweep = dsgd.sweep(method, problem, **run, learning_rate=np.logspace(-2, 0, 10))
            return sweep.at(sweep.best())

        histories = dsgd.parallel_map(best, [1, 2, 4, 8], on="processes")

    The results are those of one process, to the bit on processors of the same type. A call whose
    process or machine is lost is made again, at most three times. The output of the processes is
    not shown; their warnings are.

    Args:
        function: item -> result. It may be defined in a notebook or be a closure, if its contents
            can be pickled.
        items: its arguments.
        on: where the calls are made. None: in this process, one after the other. "processes":
            in processes that share the cores of this machine. "ray": on the Ray cluster of the
            environment variable RAY_ADDRESS, or on this machine. "slurm": as jobs of Slurm, with
            the partition, the account and the time limit of the variables SBATCH_*. Or an executor:
            any object with the method `submit` of `concurrent.futures.Executor`, for example one of
            submitit.
        jobs: number of calls at the same time; None: one for each core of this machine with
            "processes", otherwise all.
        folder: folder of the finished results, from which the same call resumes; with "slurm" it is
            required, and all machines must be able to access it. None: results are not kept.
        progress: whether to show a progress bar.

    Returns:
        The results, in the order of the items.

    Raises:
        ValueError: if the executor is unknown or cannot be used here, the function or an item
            cannot be pickled, `jobs` is not positive, or the folder contains results of other
            items.
        ImportError: if submitit is needed and not installed.
        ChildProcessError: if a call was lost three times.
        Exception: the first error of the function, immediately; other calls are ended.
    """
    where = "parallel_map"
    checks.require_call(f"{where}: function", function, "item")
    executors.require(where, on, jobs)
    kept = None if folder is None else records.user_path(f"{where}: folder", folder)
    done = completed(where, function, items, on=on, jobs=jobs, folder=kept)
    if progress:
        from rich.progress import track  # noqa: PLC0415 (imported only if a bar is shown)

        done = track(done, "tasks", total=len(items), transient=True)
    found = dict(done)
    return [found[i] for i in range(len(items))]


def completed(
    where: str,
    function: Callable[[Any], Any],
    items: Sequence[Any],
    *,
    on: Any = None,
    jobs: int | None = None,
    folder: Path | None = None,
    files: Path | None = None,
) -> Iterator[tuple[int, Any]]:
    """Yields the index and the result of each item, as soon as it is known.

    Args:
        where: name of the calling function, for messages.
        function, items, on, jobs, folder: as in `parallel_map`.
        files: folder of the files of Slurm's jobs; None: `folder`.

    Raises:
        ValueError, ChildProcessError, Exception: as in `parallel_map`.
    """
    missing = []
    for i, item in enumerate(items):
        path = folder and _path(folder, i)
        if path and path.exists():
            yield i, _read(where, path, _describe(function, item))
        else:
            missing.append(i)
    made = (
        ((i, function(items[i])) for i in missing)
        if on is None
        else _send(where, function, items, missing, on, jobs, files or folder)
    )
    for i, result in made:
        if folder:
            with records.replacing(_path(folder, i)) as temporary:
                temporary.write_bytes(pickling.dumps((_describe(function, items[i]), result)))
        yield i, result


def _send(
    where: str,
    function: Callable[[Any], Any],
    items: Sequence[Any],
    missing: list[int],
    on: Any,
    jobs: int | None,
    files: Path | None,
) -> Iterator[tuple[int, Any]]:
    """Yields the index and the result of each missing item; the calls are made by an executor."""
    if not missing:
        return
    all_cores = isinstance(on, str) and on == "processes"
    most = jobs or (len(remote_calls.cores()) if all_cores else len(missing))
    most = min(most, len(missing))
    waiting, losses = collections.deque(missing), collections.Counter[int]()
    running: list[tuple[int, Any]] = []
    with executors.open_executor(where, on, most, files) as submit:
        try:
            while waiting or running:
                while waiting and len(running) < most:
                    i = waiting.popleft()
                    running.append((i, submit(remote_calls.pack(where, function, items[i]))))
                ended = [each for each in running if each[1].done()]
                for i, job in ended:
                    running.remove((i, job))
                    try:
                        returned = job.result()
                    except Exception as lost:
                        losses[i] += 1
                        if losses[i] == ATTEMPTS:
                            raise ChildProcessError(
                                f"{where}: the call with {checks.show(items[i])} was lost "
                                f"{ATTEMPTS} times, the last time because {lost}"
                            ) from lost
                        waiting.append(i)
                    else:
                        yield i, remote_calls.unpack(returned)
                if not ended:
                    time.sleep(_LOOK)
        finally:
            for _, job in running:
                job.cancel()


def _path(folder: Path, i: int) -> Path:
    return folder / f"{i}.pickle"


def _describe(function: Callable[[Any], Any], item: Any) -> str:
    """Returns a text by which the calls of other functions or items are recognized."""
    name = getattr(getattr(function, "func", function), "__qualname__", type(function).__name__)
    return re.sub(r" at 0x\w+", "", f"{name}({item!r})")


def _read(where: str, path: Path, expected: str) -> Any:
    description, result = pickle.loads(path.read_bytes())
    if description != expected:
        raise ValueError(
            f"{where}: {path} has the result of {description[:200]}, not of {expected[:200]}; "
            "expected a folder of the same calls; pass another folder, or remove this one"
        )
    return result
