"""Tables: printed in the terminal, written as CSV next to the figure, and included in docs/ from
there.

In the CSV, the lines of the title, and below the rows those of the caption, start with `#`.
"""

from __future__ import annotations

import csv
import itertools
import os
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from dsgd import records

BLOCK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
SPECIAL = re.compile(r"([\\*|<`])")  # in Markdown


def console() -> Console:
    """Returns the terminal; 80 columns wide if the output is redirected."""
    return Console(width=None if os.environ.get("COLUMNS") or Console().is_terminal else 80)


def bar(
    items: Iterable[Any],
    what: str,
    shown: bool,
    total: int | None = None,
    screen: Console | None = None,
) -> Iterable[Any]:
    """Yields the items, with a progress bar that disappears at the end.

    Args:
        items: the items.
        what: label of the bar.
        shown: whether there is a bar.
        total: number of items, if they have no length.
        screen: the terminal; None: the default one.
    """
    return track(items, what, total, console=screen, disable=not shown, transient=True)


def table(title: str, columns: Sequence[str], caption: str = "", left: int = 1) -> Table:
    """Returns an empty table, to be filled with `add_row` and `add_section`.

    Args:
        title: above the table.
        columns: headings, with line breaks in long ones.
        caption: below the table.
        left: number of left-aligned columns; the others, with numbers, are right-aligned.
    """
    made = Table(title=title, caption=caption or None)
    for at, heading in enumerate(columns):
        made.add_column(heading, justify="left" if at < left else "right", no_wrap=True)
    return made


def wrap(name: str, width: int = 16) -> str:
    """Returns a name in lines of at most this many characters, broken after underscores."""
    lines = textwrap.wrap(name.replace("_", "_ "), width)
    return "\n".join(line.replace("_ ", "_") for line in lines)


def plain(number: float) -> str:
    """Returns three digits of a number, without an exponent."""
    return f"{float(f'{number:.3g}'):,.12g}"


def notes(lines: Iterable[str]) -> None:
    """Prints sentences as a list."""
    console().print("\n".join(f"- {line}" for line in lines), highlight=False)


def show(screen: Console, made: Table, path: Path) -> None:
    """Prints the table, and writes its title, headings, rows and caption to a CSV file."""
    screen.print(made)
    headings = [_one_line(column.header) for column in made.columns]
    rows = zip(*(map(_one_line, column.cells) for column in made.columns), strict=True)
    with (
        records.replacing(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        file.writelines(f"# {line}\n" for line in str(made.title).splitlines())
        csv.writer(file, lineterminator="\n").writerows([headings, *rows])
        file.writelines(f"# {line}\n" for line in str(made.caption or "").splitlines())


def _one_line(cell: object) -> str:
    return " ".join(str(cell).replace("_\n", "_").split())


def find_written(folder: Path) -> list[Path]:
    """Returns the tables in a folder of results, sorted by name; other CSV files have no title."""
    return [
        path
        for path in sorted(folder.glob("*.csv"))
        if path.read_text(encoding="utf-8").startswith("# ")
    ]


def markdown(path: Path) -> str:
    """Returns the table of a CSV file as Markdown, with its title above and its caption below."""
    lines = path.read_text(encoding="utf-8").splitlines()
    title = list(itertools.takewhile(_is_comment, lines))
    caption = [line for line in lines[len(title) :] if _is_comment(line)]
    headings, *rows = csv.reader(line for line in lines if not _is_comment(line))
    bars = [headings, [":--", *["--:"] * (len(headings) - 1)], *rows]
    return "\n".join(
        [
            f"**{_join(title)}**",
            "",
            *map(_row, bars),
            *(["", _join(caption)] if caption else []),
            "",
        ]
    )


def _is_comment(line: str) -> bool:
    return line.startswith("# ")


def _join(comments: Sequence[str]) -> str:
    return escape(" ".join(line.removeprefix("# ").strip() for line in comments))


def _row(cells: Sequence[str]) -> str:
    first, *others = map(escape, cells)
    if others and not any(others):  # the heading of a group of rows
        first = f"**{first}**"
    return f"| {' | '.join([first, *others])} |"


def escape(text: str) -> str:
    """Returns a text as Markdown that shows it, in a cell of a table."""
    return SPECIAL.sub(r"\\\1", text)


def include(text: str, folder: Path) -> str:
    """Returns a page in which each block `<!-- table: NAME -->` ... `<!-- end -->` contains the
    table of `NAME.csv` in the folder.
    """
    return BLOCK.sub(lambda found: found[1] + markdown(folder / f"{found[2]}.csv") + found[3], text)
