"""The one way to show a table: printed in the terminal, and written as CSV beside the figure, from where docs/ includes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dsgd import records


def table(title: str, columns: Sequence[str], caption: str = "", left: int = 1) -> Table:
    """An empty table, to be filled with `add_row` and `add_section`.

    Args:
        title: above it.
        columns: headings; a line break where one is long.
        caption: below it.
        left: how many columns are aligned to the left; the others, of numbers, to the right.
    """
    made = Table(title=title, caption=caption or None)
    for at, heading in enumerate(columns):
        made.add_column(heading, justify="left" if at < left else "right", no_wrap=True)
    return made


def show(screen: Console, made: Table, path: Path) -> None:
    """Prints the table and writes its heading and rows to a CSV file."""
    screen.print(made)
    headings = [" ".join(str(column.header).split()) for column in made.columns]
    records.write_rows(path, headings, zip(*(column.cells for column in made.columns), strict=True))
