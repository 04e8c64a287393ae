"""Runs of experiments, with their output and files."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

import dsgd
from dsgd import plots
from experiments.shared import tables, tuning

TOPS = set("┏┃│└")  # borders of tables in a terminal


def ran(main: Callable[[Any], object], args: Any, wide: str = "\n") -> list[str]:
    """Runs an experiment on one device, and checks common properties: lines of at most 80 columns,
    figures that are PNG files and whose tick labels do not overlap, a configuration.

    Args:
        main, args: of the experiment.
        wide: lines that contain this text may be longer.

    Returns:
        The lines that it prints.
    """
    screen, save = tables.console(), plots.save

    def save_and_check(sheet: Figure, path: Path) -> None:
        save(sheet, path)
        assert not (found := overlapping_labels(sheet)), f"{path.name}: {found}"

    with pytest.MonkeyPatch.context() as patch, screen.capture() as captured:
        patch.setattr(plots, "save", save_and_check)
        patch.setattr(tables, "console", lambda: screen)
        patch.setattr(tuning, "devices_for", lambda workers: dsgd.workers.mesh(1))
        main(args)
    lines = captured.get().splitlines()
    assert not too_wide(line for line in lines if wide not in line)
    assert (args.out / "config.json").exists()
    for path in args.out.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    return lines


def overlapping_labels(sheet: Figure) -> list[tuple[str, str]]:
    """Returns pairs of tick labels of an axis that overlap, or are side by side with less than two
    pixels between them at 100 dots per inch.
    """
    sheet.draw_without_rendering()
    found = []
    for axes in sheet.axes:
        for axis, at in ((axes.xaxis, 0), (axes.yaxis, 1)):
            low, high = sorted(axis.get_view_interval())
            boxes = [
                (label.get_text(), label.get_window_extent())
                for label in axis.get_ticklabels(which="both")
                if label.get_text() and label.get_visible() and axes.axison
                if low <= label.get_position()[at] <= high
            ]
            for (one, left), (other, right) in itertools.combinations(boxes, 2):
                wider = Bbox.from_extents(left.x0 - 2, left.y0, left.x1 + 2, left.y1)
                if wider.overlaps(right):
                    found.append((one, other))
    return found


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
