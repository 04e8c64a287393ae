"""Shared functions to draw a panel of losses, a legend and a title, and to write a figure; other
plots are in `dsgd.plots`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase

from dsgd import plots, records


def save_figure(sheet: Figure, path: Path) -> None:
    """Writes a figure as PNG, atomically."""
    with records.replacing(path) as temporary:
        sheet.savefig(temporary, dpi=150)


def title(sheet: Figure, text: str) -> None:
    """Sets a title above all panels, with each of its lines wrapped."""
    width = round(11 * sheet.get_figwidth())
    sheet.suptitle("\n".join(textwrap.fill(line, width) for line in text.splitlines()), fontsize=11)


def losses(
    axes: Axes,
    lines: Mapping[str, tuple[np.ndarray, np.ndarray]],
    target: float | None = None,
    **look: Any,
) -> None:
    """Draws a panel of losses on a logarithmic axis, with bands over seeds.

    Args:
        axes: the panel.
        lines: x `[records]` and losses `[seeds, records]`, by name.
        target: value at which a grey line is drawn; None: no line.
        look: labels, scales and title, as in `Axes.set`.
    """
    axes.set(yscale="log", **look)
    plots.draw_lines(axes, lines)
    if target is not None:
        axes.axhline(target, color="0.4", linewidth=0.8)
    plots.plain_log(axes.yaxis)


def legend(sheet: FigureBase, axes: Axes, columns: int) -> None:
    """Adds a legend below all panels, for the lines of one of them."""
    handles, labels = axes.get_legend_handles_labels()
    sheet.legend(
        handles, labels, loc="outside lower center", ncols=min(len(labels), columns), frameon=False
    )
