"""Runs of a command that resume after an interruption, and that are logged: each run of the command
has a number, under which its checkpoint and its logs are written. Independent runs on other cores
or machines have one number together, for a folder of finished results.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dsgd
from dsgd import loggers

FOLDER = "checkpoints"  # in the folder of the results, until the command ends
LOGS = "logs"  # in the folder of the results
LOGGERS: dict[str, Callable[[Path, int], loggers.Logger]] = {
    "tensorboard": lambda logs, i: loggers.TensorBoard(logs / "tensorboard" / str(i)),
    "wandb": lambda logs, i: loggers.WandB(folder=logs),
    "mlflow": lambda logs, i: loggers.MLflow(uri=f"sqlite:///{logs.absolute() / 'mlflow.db'}"),
    "csv": lambda logs, i: loggers.CSV(logs / f"{i}.csv", seeds="runs"),
    "console": lambda logs, i: loggers.Console(),
}
"""Functions (folder of the logs, number of the run) -> a logger, by the names of `--log`."""
_folders: Iterator[Path] | None = None
_logs: Iterator[list[loggers.Logger]] | None = None


@contextmanager
def keep_checkpoints(out: Path, kept: bool) -> Iterator[None]:
    """Lets `run` and `sweep` keep checkpoints within the block; they are removed when the block
    completes.

    Args:
        out: folder of the results.
        kept: whether to keep checkpoints.
    """
    global _folders  # noqa: PLW0603 (a process runs one script)
    if not kept:
        yield
        return
    _folders = (out / FOLDER / str(i) for i in itertools.count())
    try:
        yield
    finally:
        _folders = None
    shutil.rmtree(out / FOLDER, ignore_errors=True)


@contextmanager
def log_runs(out: Path, names: Sequence[str]) -> Iterator[None]:
    """Lets `run` and `sweep` write logs within the block.

    Args:
        out: folder of the results.
        names: names of loggers.

    Raises:
        ImportError: if a package is not installed.
        ValueError: if the block made no run that was logged.
    """
    global _logs  # noqa: PLW0603 (a process runs one script)
    for name in names:
        LOGGERS[name](out / LOGS, 0)  # raises now if its package is not installed
    made = itertools.count()
    _logs = ([LOGGERS[name](out / LOGS, i) for name in names] for i in made)
    try:
        yield
    finally:
        _logs = None
    if names and not next(made):
        raise ValueError(
            f"--log {' '.join(names)}: the results are written, but this command trains nothing "
            "that can be logged; leave the flag out"
        )


def run(*args: Any, **options: Any) -> dsgd.Result:
    """Calls `dsgd.run`, logs the run, and resumes from its checkpoint if checkpoints are kept."""
    return dsgd.run(*args, **options, checkpoint=next_folder(), on_record=next_loggers())


def sweep(*args: Any, **options: Any) -> dsgd.Sweep:
    """Calls `dsgd.sweep`, logs the runs, and resumes from its checkpoint if checkpoints are
    kept.
    """
    return dsgd.sweep(*args, **options, checkpoint=next_folder(), on_record=next_loggers())


def next_loggers() -> list[loggers.Logger]:
    """Returns loggers of the next run."""
    return [] if _logs is None else next(_logs)


def next_folder() -> Path | None:
    """Returns the next run's folder. All calls of a command make the same runs in one order."""
    return None if _folders is None else next(_folders)
