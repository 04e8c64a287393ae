"""What the scripts share: statistics over seeds, figures, and the house style."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from dsgd import records

# Okabe and Ito's colours, told apart by all common kinds of colour blindness; line styles differ too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 3)))


def console() -> Console:
    """The terminal; 80 columns where there is none."""
    return Console(width=None if os.environ.get("COLUMNS") or Console().is_terminal else 80)


def mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds and its standard error, `[seeds, ...]` to two `[...]`; the error of one seed is 0."""
    seeds = values.shape[0]
    error = values.std(axis=0, ddof=1) / np.sqrt(seeds) if seeds > 1 else np.zeros(values.shape[1:])
    return values.mean(axis=0), error


def first_reaching(values: np.ndarray, target: float) -> int | None:
    """Index of the first record whose mean over seeds is at most the target; None where there is none."""
    reached = np.flatnonzero(values.mean(axis=0) <= target)
    return int(reached[0]) if reached.size else None


def draw_lines(axes: Axes, lines: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """One line a method, with a band of one standard error over seeds.

    Args:
        axes: where to.
        lines: (x `[records]`, y `[seeds, records]`) by method; the n-th method always has the n-th colour and style. Where the x axis
            is logarithmic, what cost nothing has no place on it.
    """
    for i, (label, (cost, y)) in enumerate(lines.items()):
        on_axis = cost > (0 if axes.get_xscale() == "log" else -np.inf)
        if not on_axis.any():
            continue
        x, (middle, error) = cost[on_axis], mean_and_error(y[:, on_axis])
        colour, style = COLOURS[i % len(COLOURS)], STYLES[i % len(STYLES)]
        axes.plot(x, middle, color=colour, linestyle=style, linewidth=1.8, label=label)
        axes.fill_between(x, middle - error, middle + error, color=colour, alpha=0.2, linewidth=0)


def figure(columns: int, *, width: float = 4.2, height: float = 3.6) -> tuple[Figure, np.ndarray]:
    """A row of panels in the house style, with one y axis."""
    style: dict[Any, Any] = {"font.size": 10, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False}
    with mpl.rc_context(style):
        sheet = Figure(figsize=(width * columns, height), layout="constrained")
        return sheet, sheet.subplots(1, columns, squeeze=False, sharey=True)[0]


def save_figure(sheet: Figure, path: Path) -> None:
    """As PNG, atomically."""
    with records.replacing(path) as temporary:
        sheet.savefig(temporary, dpi=150)


def title(sheet: Figure, text: str) -> None:
    """A title above all panels, wrapped."""
    sheet.suptitle(textwrap.fill(text, 110), fontsize=11)
