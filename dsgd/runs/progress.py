"""The progress bar of long runs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import Timer
from typing import Any

_DELAY = 2.0  # seconds after which the bar of a run appears by default
_NAME = 17  # maximum width of the method's name, with which a line fits 60 columns
_FORMAT = "{desc}: {n_fmt}/{total_fmt} {bar} {remaining} left{postfix}"


class Progress:
    """A progress bar on stderr with rounds, remaining time and the current loss.

    Args:
        name: name of the method.
        first: number of rounds that are done.
        steps: number of rounds at the end.
        shown: True: always; False: never; None: after two seconds, until the end, if stderr is a
            terminal or a notebook without another live display, and the environment variable
            TQDM_DISABLE is not set.
    """

    def __init__(self, name: str, first: int, steps: int, shown: bool | None) -> None:
        self._bar: Any = None
        if not (_is_watched() if shown is None else shown):
            return
        from tqdm import tqdm  # noqa: PLC0415 (imported only if a bar may be shown)

        # tqdm itself shows nothing in pseudo terminals that report 0 rows.
        columns, rows = shutil.get_terminal_size()
        self._bar = tqdm(
            desc=name if len(name) <= _NAME else f"{name[: _NAME - 1]}…",
            total=steps,
            initial=first,
            miniters=0,
            ncols=columns,
            nrows=rows,
            bar_format=_FORMAT,
            leave=bool(shown),
            delay=0.0 if shown else _DELAY,
            disable=False,
        )
        # Compilation may take longer than the delay, and calls no `update`.
        self._timer = Timer(_DELAY + self._bar.mininterval, self._bar.update, (0,))
        self._timer.daemon = True

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._timer.cancel()
            self._bar.close()

    def update(self, done: int, loss: float) -> None:
        """Updates the bar after `done` rounds."""
        if self._bar is not None:
            if not self._bar.postfix:  # the time of compilation says nothing about the rounds
                self._bar.unpause()
            self._bar.set_postfix_str(f"loss {loss:.4g}", refresh=False)
            self._bar.update(done - self._bar.n)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Context without the bar, in which other code may print."""
        bar = self._bar
        with bar.external_write_mode() if bar and self._has_appeared() else nullcontext():
            yield

    def _has_appeared(self) -> bool:
        return self._bar.last_print_t >= self._bar.start_t + self._bar.delay


def _is_watched() -> bool:
    """Whether stderr is a terminal or a notebook, no live display of rich has replaced it, and the
    user has not turned off bars.
    """
    if os.environ.get("TQDM_DISABLE", "0") != "0":
        return False
    kind = type(sys.stderr).__module__
    return kind == "ipykernel.iostream" or (
        kind != "rich.file_proxy" and sys.stderr is not None and sys.stderr.isatty()
    )
