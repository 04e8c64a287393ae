"""Parts that the figures of experiments share: styles of lines, axes with their legend, panels of
curves, titles. Everything else is in `dsgd.plots`.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase

from dsgd import plots
from experiments.shared import statistics

# Inches. Pages show figures 832 pixels wide: a figure of this width has text of 13 pixels there.
WIDTH = 9.0

Panel = Callable[[Axes], Any]


def title(sheet: Figure, text: str) -> None:
    """Adds a title above all panels, each of its lines wrapped."""
    width = round(11 * sheet.get_figwidth())
    sheet.suptitle("\n".join(textwrap.fill(line, width) for line in text.splitlines()), fontsize=11)


def look(i: int, **others: Any) -> dict[str, Any]:
    """Returns the colour and style of the i-th line, with other properties."""
    return {"color": plots.COLOURS[i], "linestyle": plots.STYLES[i], **others}


def describe(
    axes: Axes,
    x: str | None = None,
    y: str | None = None,
    title: str | None = None,
    *,
    log: str = "",
    legend: bool = False,
    **others: Any,
) -> None:
    """Labels a panel and scales its axes.

    Args:
        axes: the panel.
        x, y, title: labels; None leaves them as they are.
        log: axes with a logarithmic scale, as in `plots.log_scale`: "x", "y" or "xy".
        legend: whether the panel gets a legend of its lines.
        others: properties, as for `Axes.set`.
    """
    labels = {"xlabel": x, "ylabel": y, "title": title}
    axes.set(**{name: text for name, text in labels.items() if text is not None})
    plots.log_scale(axes, log)
    axes.set(**others)
    if legend:
        axes.legend(frameon=False, fontsize=9)


def curves(
    lines: Mapping[str, tuple[np.ndarray, np.ndarray]],
    target: float | None = None,
    legend: Any = "",
    log: str = "y",
    **look: Any,
) -> Panel:
    """Returns the function that draws lines with error bands over seeds.

    Args:
        lines: x `[records]` and y `[seeds, records]`, by name.
        target: value at which a grey line is drawn; None: no line.
        legend: its place in the panel; "": no legend.
        log: axes with a logarithmic scale, as in `plots.log_scale`.
        look: labels, limits and title, as in `Axes.set`.
    """

    def draw(axes: Axes) -> None:
        plots.log_scale(axes, log)
        axes.set(**look)
        axes.title.set_fontsize(10)
        plots.draw_lines(axes, lines)
        if target is not None:
            axes.axhline(target, color="0.4", linewidth=0.8)
        if legend:
            axes.legend(frameon=False, fontsize=9, loc=legend)

    return draw


def sheet(
    panels: Sequence[Panel],
    columns: int,
    heading: str = "",
    *,
    height: float = 3.2,
    legend_columns: int | None = 4,
    sharey: bool | Literal["row"] = "row",
) -> Figure:
    """Returns a figure with panels, row by row.

    Args:
        panels: functions that draw one panel each.
        columns: number of columns.
        heading: title above all panels.
        height: of a panel, inches.
        legend_columns: of the legend of the first panel, below all panels; None: no legend.
        sharey: as in `plots.figure`.
    """
    rows = -(-len(panels) // columns)
    made, places = plots.figure(columns, rows, width=WIDTH / columns, height=height, sharey=sharey)
    for draw, axes in zip(panels, places, strict=False):
        draw(axes)
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    if sharey:  # only the first panel of a row names the axis
        for axes in places.reshape(rows, columns)[:, 1:].flat:
            axes.set_ylabel("")
    if legend_columns:
        legend(made, legend_columns, places[0])
    if heading:
        title(made, heading)
    return made


def points(axes: Axes, x: Any, values: Sequence[np.ndarray], **look: Any) -> None:
    """Draws the means of several runs as points with 95 % intervals; a single run has no bar.

    Args:
        axes: the panel.
        x: positions of the points.
        values: numbers of the runs, one array for each point.
        look: as for `Axes.errorbar`.
    """
    half = np.array([statistics.half_interval(each) for each in values])
    half[~np.isfinite(half)] = np.nan
    style = {"linestyle": "none", "marker": "o", "capsize": 3, **look}
    axes.errorbar(x, [each.mean() for each in values], half, **style)


def legend(sheet: FigureBase, columns: int, *panels: Axes, **options: Any) -> None:
    """Adds a legend of the lines of some panels below all panels.

    Args:
        sheet: the figure, or a part of one.
        columns: maximal number of columns.
        panels: the panels with the lines.
        options: as for `Figure.legend`.
    """
    found = [panel.get_legend_handles_labels() for panel in panels]
    handles, labels = (list(itertools.chain(*parts)) for parts in zip(*found, strict=True))
    place = {"loc": "outside lower center", "ncols": min(len(labels), columns), "frameon": False}
    sheet.legend(handles, labels, **place | options)
