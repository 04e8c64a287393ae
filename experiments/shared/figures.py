"""The one way to draw a panel of losses, a legend and a title, and to write a figure; all else is
in `dsgd.plots`.
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
    """As PNG, atomically."""
    with records.replacing(path) as temporary:
        sheet.savefig(temporary, dpi=150)


def title(sheet: Figure, text: str) -> None:
    """A title above all panels, each of its lines wrapped."""
    width = round(11 * sheet.get_figwidth())
    sheet.suptitle("\n".join(textwrap.fill(line, width) for line in text.splitlines()), fontsize=11)


def losses(
    axes: Axes,
    lines: Mapping[str, tuple[np.ndarray, np.ndarray]],
    target: float | None = None,
    **look: Any,
) -> None:
    """A panel of losses on a logarithmic axis, with bands over seeds.

    Args:
        axes: the panel.
        lines: x `[records]` and losses `[seeds, records]`, by name.
        target: where a grey line is drawn.
        look: labels, scales and title, as of `Axes.set`.
    """
    axes.set(yscale="log", **look)
    plots.draw_lines(axes, lines)
    if target is not None:
        axes.axhline(target, color="0.4", linewidth=0.8)
    plots.plain_log(axes.yaxis)


def legend(sheet: FigureBase, axes: Axes, columns: int) -> None:
    """A legend below all panels, of the lines of one of them."""
    handles, labels = axes.get_legend_handles_labels()
    sheet.legend(
        handles, labels, loc="outside lower center", ncols=min(len(labels), columns), frameon=False
    )
