"""What an experiment's script prints and writes."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from experiments.shared import tables

TOPS = set("┏┃│└")  # of tables in a terminal


def printed(main: Callable[[Any], object], args: Any) -> list[str]:
    """The lines that it prints."""
    screen = tables.console()
    with pytest.MonkeyPatch.context() as patch, screen.capture() as captured:
        patch.setattr(tables, "console", lambda: screen)
        main(args)
    return captured.get().splitlines()


def cells(lines: Iterable[str]) -> list[list[str]]:
    """Rows of the tables in them, without headings."""
    return [
        [cell.strip() for cell in line.strip()[1:-1].split("│")]
        for line in lines
        if line.startswith("│")
    ]


def rows(path: Path) -> list[dict[str, str]]:
    """Of a CSV file; the lines of a table's title and caption begin with `# `."""
    with path.open(newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("# ")))


def is_figure(path: Path) -> bool:
    """Whether there is a PNG file."""
    return path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def too_wide(lines: Iterable[str]) -> list[str]:
    """Those that do not fit a terminal of 80 columns, or were cut to; a list of files may be
    longer.
    """
    return [
        line for line in lines if "…" in line or (len(line) > 80 and not line.startswith("Written"))
    ]
