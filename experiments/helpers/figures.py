"""The house style of figures."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure, FigureBase
from matplotlib.ticker import LogLocator, NullFormatter

from dsgd import records
from experiments.helpers import common

# Okabe and Ito's colours, told apart by all common kinds of colour blindness; line styles differ too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 3)))


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
        x, (middle, error) = cost[on_axis], common.mean_and_error(y[:, on_axis])
        colour, style = COLOURS[i % len(COLOURS)], STYLES[(i + i // len(COLOURS)) % len(STYLES)]
        axes.plot(x, middle, color=colour, linestyle=style, linewidth=1.8, label=label)
        axes.fill_between(x, middle - error, middle + error, color=colour, alpha=0.2, linewidth=0)


def figure(
    columns: int, rows: int = 1, *, width: float = 4.2, height: float = 3.6, sharey: bool | Literal["row"] = True
) -> tuple[Figure, np.ndarray]:
    """Panels in the house style, with one y axis unless each, or each row, has its own, row by row."""
    sheet = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return sheet, panels(sheet, columns, rows, sharey=sharey)


def panels(sheet: FigureBase, columns: int, rows: int = 1, *, sharey: bool | Literal["row"] = True) -> np.ndarray:
    """Panels in the house style on a figure or a part of one, row by row."""
    style: dict[Any, Any] = {"font.size": 10, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False}
    with mpl.rc_context(style):
        return sheet.subplots(rows, columns, squeeze=False, sharey=sharey).ravel()


def save_figure(sheet: Figure, path: Path) -> None:
    """As PNG, atomically."""
    with records.replacing(path) as temporary:
        sheet.savefig(temporary, dpi=150)


def title(sheet: Figure, text: str) -> None:
    """A title above all panels, each of its lines wrapped."""
    width = round(11 * sheet.get_figwidth())
    sheet.suptitle("\n".join(textwrap.fill(line, width) for line in text.splitlines()), fontsize=11)


def plain_log(axis: Axis) -> None:
    """A logarithmic axis with a few plain numbers: 0.1, 0.3, 1, ..."""
    axis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())
