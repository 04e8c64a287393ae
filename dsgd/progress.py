"""The progress bar of long runs."""

from __future__ import annotations

import rich.progress as rich


class Progress:
    """A bar with rounds, rounds a second, time left and the current loss; nothing where it is off."""

    def __init__(self, name: str, steps: int, shown: bool):
        self._bar = rich.Progress(
            rich.TextColumn("{task.description}"),
            rich.BarColumn(bar_width=20),
            rich.MofNCompleteColumn(),
            rich.TextColumn("{task.fields[speed]} rounds/s"),
            rich.TextColumn("loss {task.fields[loss]}"),
            rich.TimeRemainingColumn(),
            disable=not shown,
        )
        self._task = self._bar.add_task(name, total=steps, loss="-", speed="-")

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def update(self, done: int, loss: float) -> None:
        """After `done` rounds."""
        task = self._bar.tasks[0]
        speed = f"{done / task.elapsed:,.0f}" if task.elapsed else "-"
        self._bar.update(self._task, completed=done, loss=f"{loss:.4g}", speed=speed)
