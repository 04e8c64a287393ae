"""Runs of a command that resume after an interruption: each run of the command has a numbered
checkpoint.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dsgd

FOLDER = "checkpoints"  # in the folder of the results, until the command ends
_folders: Iterator[Path] | None = None


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


def run(*args: Any, **options: Any) -> dsgd.Result:
    """Calls `dsgd.run`, and resumes from its checkpoint if checkpoints are kept."""
    return dsgd.run(*args, **options, checkpoint=next_folder())


def sweep(*args: Any, **options: Any) -> dsgd.Sweep:
    """Calls `dsgd.sweep`, and resumes from its checkpoint if checkpoints are kept."""
    return dsgd.sweep(*args, **options, checkpoint=next_folder())


def next_folder() -> Path | None:
    """Returns the next run's folder. All calls of a command make the same runs in one order."""
    return None if _folders is None else next(_folders)
