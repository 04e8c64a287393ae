"""Runs of experiments, with their output and files."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import dsgd
from experiments.shared import tables, tuning

TOPS = set("┏┃│└")  # borders of tables in a terminal


def ran(main: Callable[[Any], object], args: Any, wide: str = "\n") -> list[str]:
    """Runs an experiment on one device, and checks common properties: lines of at most 80 columns,
    figures that are PNG files, a configuration.

    Args:
        main, args: of the experiment.
        wide: lines that contain this text may be longer.

    Returns:
        The lines that it prints.
    """
    screen = tables.console()
    with pytest.MonkeyPatch.context() as patch, screen.capture() as captured:
        patch.setattr(tables, "console", lambda: screen)
        patch.setattr(tuning, "devices_for", lambda workers: dsgd.workers.mesh(1))
        main(args)
    lines = captured.get().splitlines()
    assert not too_wide(line for line in lines if wide not in line)
    assert (args.out / "config.json").exists()
    for path in args.out.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    return lines


def cells(lines: Iterable[str]) -> list[list[str]]:
    """Returns the rows of the tables in these lines, without headings."""
    return [
        [cell.strip() for cell in line.strip()[1:-1].split("│")]
        for line in lines
        if line.startswith("│")
    ]


def rows(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a CSV file; the lines of a table's title and caption start with `# `."""
    with path.open(newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("# ")))


def figures(folder: Path) -> set[str]:
    """Returns the names of the figures in a folder of results."""
    return {path.stem for path in folder.glob("*.png")}


def too_wide(lines: Iterable[str]) -> list[str]:
    """Returns the lines that do not fit a terminal of 80 columns, or were truncated; a list of
    files may be longer.
    """
    return [
        line for line in lines if "…" in line or (len(line) > 80 and not line.startswith("Written"))
    ]
