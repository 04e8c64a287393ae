"""Runs of a script that go on where an earlier call of the same command was ended: each with a
checkpoint of its own, by its number.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dsgd

FOLDER = "checkpoints"  # in that of the results, until the script's end
_folders: Iterator[Path] | None = None


@contextmanager
def under(out: Path, kept: bool) -> Iterator[None]:
    """A script, in which `run` and `sweep` keep checkpoints, which are gone when it has come to its
    end.

    Args:
        out: folder of its results.
        kept: whether; if not, nothing is kept.
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
    """As `dsgd.run`, which goes on from the checkpoint of this number, where checkpoints are
    kept.
    """
    return dsgd.run(*args, **options, checkpoint=_next())


def sweep(*args: Any, **options: Any) -> dsgd.Sweep:
    """As `dsgd.sweep`, which goes on from the checkpoint of this number, where checkpoints are
    kept.
    """
    return dsgd.sweep(*args, **options, checkpoint=_next())


def _next() -> Path | None:
    """The next run's folder: all calls of a command make the same runs in the same order."""
    return None if _folders is None else next(_folders)
