"""The progress bar of long runs."""

from __future__ import annotations

from typing import Any


class Progress:
    """A progress bar with rounds, rounds per second, remaining time and the current loss.

    If `shown` is False, it does nothing.
    """

    def __init__(self, name: str, first: int, steps: int, shown: bool) -> None:
        self._first = first  # rounds completed by an earlier session
        self._bar: Any = _bar() if shown else None
        if shown:
            self._task = self._bar.add_task(name, total=steps, completed=first, loss="-", speed="-")

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, done: int, loss: float) -> None:
        """Updates the bar after `done` rounds."""
        if not self._bar:
            return
        task = self._bar.tasks[0]
        speed = f"{(done - self._first) / task.elapsed:,.0f}" if task.elapsed else "-"
        self._bar.update(self._task, completed=done, loss=f"{loss:.4g}", speed=speed)


def _bar() -> Any:
    import rich.progress as rich  # noqa: PLC0415 (imported only if a bar is shown)
    from rich.table import Column  # noqa: PLC0415

    return rich.Progress(
        rich.TextColumn(
            "{task.description}", table_column=Column(width=22, no_wrap=True, overflow="ellipsis")
        ),
        rich.BarColumn(bar_width=8),
        rich.MofNCompleteColumn(),
        rich.TextColumn("{task.fields[speed]} rounds/s", table_column=Column(no_wrap=True)),
        rich.TextColumn("loss {task.fields[loss]}", table_column=Column(no_wrap=True)),
        rich.TimeRemainingColumn(),
    )
