"""Figures of runs in a common style. Import with `from dsgd import plots`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure, FigureBase
from matplotlib.ticker import LogLocator, NullFormatter

from dsgd import checks
from dsgd.frames import Runs, single_points
from dsgd.runs.history import History, evaluated_records, mean_and_error

__all__ = ["COLOURS", "MARKERS", "STYLES", "curves", "draw_lines", "figure", "panels", "plain_log"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""Colours of Okabe and Ito, which people with any common colour blindness can distinguish."""
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 3)))
"""Line styles, used together with the colours."""
MARKERS = ("", "o", "s", "D", "^", "v", "P", "X", "<", ">", "p", "h", "*", "d", "8")
"""Markers of the first eight lines, which have none, of the next eight, and so on."""

_AXES = {  # name in the history: (unit of the axis in units of the history, label of the axis)
    "step": (1, "rounds"),
    "bits": (1e6, "megabits sent and received per worker"),
    "clock": (1, "simulated seconds"),
    "loss": (1, "loss f(x)"),
    "grad_sqnorm": (1, "|f'(x)|²"),
    "objective": (1, "objective f(x) + r(x)"),
    "prox_grad_sqnorm": (1, "|x - prox(x - f'(x))|²"),
    "consensus": (1, "consensus distance"),
    "train_loss": (1, "loss of the batches"),
    "test_error": (1, "test error"),
}
_Columns = Annotated[str | Sequence[str], "a name in the history, or a list of such names"]
_Scale = Literal["linear", "log"]


@checks.arguments
def curves(
    runs: Runs,
    x: _Columns = "step",
    y: _Columns = "loss",
    *,
    xscale: _Scale = "linear",
    yscale: _Scale = "linear",
) -> Figure:
    """Plots runs as lines: the mean over seeds, in a band of one standard error.

    Args:
        runs: a result, a sweep, a history, or a dictionary of these by method, as in `dsgd.frame`.
            Each method and each point of a sweep is one line. Only evaluated records are plotted.
        x: a name in the history, for example "step", "bits" or "clock", or a list of names, each of
            which becomes a column of panels. If x differs between seeds, its mean is used.
        y: a name in the history, or a list of names, each of which becomes a row of panels.
        xscale, yscale: "linear" or "log", for all panels.

    Returns:
        The figure. Its `axes` are the panels, row by row.

    Raises:
        ValueError: if a name is not in a history or has one number per worker, there are no names,
            a scale is unknown, or `runs` is not as in `dsgd.frame`.
    """
    xs, ys = ([name] if isinstance(name, str) else list(name) for name in (x, y))
    for what, names in (("x", xs), ("y", ys)):
        if not names:
            raise ValueError(f"curves: {what} = []; expected a name in the history, or several")
    for what, scale in (("xscale", xscale), ("yscale", yscale)):
        if scale not in ("linear", "log"):
            raise ValueError(f"curves: {what} = {scale!r}; expected 'linear' or 'log'")
    histories = {_line_label(labels): history for labels, history in single_points("curves", runs)}
    across = [
        {
            label: _series(label, history, "x", name).mean(axis=0)
            for label, history in histories.items()
        }
        for name in xs
    ]
    up = [
        {label: _series(label, history, "y", name) for label, history in histories.items()}
        for name in ys
    ]
    sheet, axes = figure(len(xs), len(ys), sharey="row")
    for panel, (rows, columns) in zip(axes, itertools.product(up, across), strict=True):
        panel.set(xscale=xscale, yscale=yscale)
        draw_lines(panel, {label: (columns[label], rows[label]) for label in histories})
    for panel, name in zip(axes[-len(xs) :], xs, strict=True):
        panel.set_xlabel(_label(name))
    for panel, name in zip(axes[:: len(xs)], ys, strict=True):
        panel.set_ylabel(_label(name))
    _legend(sheet, axes[0], max(len(history["loss"]) for history in histories.values()))
    return sheet


def _line_label(labels: dict[str, Any]) -> str:
    method, point = (
        labels.get("method"),
        [f"{name} = {value:.4g}" for name, value in labels.items() if name != "method"],
    )
    return ", ".join(([] if method is None else [method]) + point)


def _series(label: str, history: History, what: str, name: str) -> np.ndarray:
    """Returns a series `[seeds, records]` in the unit of the axis, with NaN in place of non-finite
    numbers.
    """
    if name not in history:
        of = f" of {label}" if label else ""
        raise ValueError(
            f"curves: {what} = {name!r} is not in the history{of}; expected one of "
            f"{', '.join(history)}"
        )
    values = np.asarray(evaluated_records(history)[name], float) / _AXES.get(name, (1, ""))[0]
    if values.ndim > 2:
        raise ValueError(
            f"curves: {what} = {name!r} has one number per worker; expected one number per record, "
            "such as the loss"
        )
    return np.atleast_2d(np.where(np.isfinite(values), values, np.nan))


def _label(name: str) -> str:
    return _AXES[name][1] if name in _AXES else name.replace("_", " ")


def _legend(sheet: Figure, panel: Axes, seeds: int) -> None:
    """Adds a legend with the names of the lines and the meaning of the bands.

    It is below the panels, or to their right if there are many lines. The size of the panels stays
    the same.
    """
    handles, labels = panel.get_legend_handles_labels()  # omits lines without a label
    bands = f"bands: standard error over {seeds} seeds" if seeds > 1 else None
    if not labels and not bands:
        return
    if not labels:
        handles, labels = panel.lines, [f"mean of {seeds} seeds"]
    width, height = sheet.get_size_inches()
    widest = max(map(len, labels))
    columns = max(1, min(len(labels), int(12 * width / (widest + 7))))
    rows = math.ceil(len(labels) / columns)
    if rows > 2:
        sheet.set_size_inches(width + 0.8 + 0.08 * max(widest, len(bands or "") - 5), height)
        sheet.legend(handles, labels, loc="outside right upper", frameon=False, title=bands)
    else:
        sheet.set_size_inches(width, height + 0.25 * rows + 0.3 * (seeds > 1))
        sheet.legend(
            handles, labels, loc="outside lower center", ncols=columns, frameon=False, title=bands
        )


@checks.arguments
def draw_lines(axes: Axes, lines: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Draws one line per method, with a band of one standard error over seeds.

    Args:
        axes: the axes to draw on.
        lines: (x `[records]`, y `[seeds, records]`) by method. The n-th method always has the n-th
            colour and style, and from the ninth on a marker. On a logarithmic x axis, records with
            x <= 0 are omitted.

    Raises:
        ValueError: if a line has other shapes.
    """
    for i, (label, (cost, y)) in enumerate(lines.items()):
        if np.ndim(y) != 2 or np.shape(cost) != np.shape(y)[1:]:
            raise ValueError(
                f"draw_lines: lines[{label!r}] has x {list(np.shape(cost))} and y "
                f"{list(np.shape(y))}; expected [records] and [seeds, records]"
            )
        on_axis = cost > (0 if axes.get_xscale() == "log" else -np.inf)
        if not on_axis.any():
            continue
        x, (middle, error) = cost[on_axis], mean_and_error(y[:, on_axis])
        colour, style = COLOURS[i % len(COLOURS)], STYLES[(i + i // len(COLOURS)) % len(STYLES)]
        (line,) = axes.plot(x, middle, color=colour, linestyle=style, linewidth=1.8, label=label)
        if i >= len(COLOURS):
            line.set(marker=MARKERS[i // len(COLOURS) % len(MARKERS)], markevery=0.2)
        axes.fill_between(x, middle - error, middle + error, color=colour, alpha=0.2, linewidth=0)


@checks.arguments
def figure(
    columns: int,
    rows: int = 1,
    *,
    width: float = 4.2,
    height: float = 3.6,
    sharey: bool | Literal["row"] = True,
) -> tuple[Figure, np.ndarray]:
    """Returns a new figure with panels in the common style.

    Args:
        columns, rows: numbers of columns and rows of panels.
        width, height: size of each panel in inches.
        sharey: whether all panels share the y axis; "row": the panels of each row share it.

    Returns:
        The figure and its panels, `[rows * columns]`, row by row.

    Raises:
        ValueError: if there are no panels, or their size is not positive and finite.
    """
    for name, size in (("width", width), ("height", height)):
        if not 0 < size < np.inf:
            raise ValueError(f"figure: {name} = {size}; expected finite inches > 0")
    columns, rows = (
        checks.positive_int("figure: columns", columns),
        checks.positive_int("figure: rows", rows),
    )
    sheet = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return sheet, panels(sheet, columns, rows, sharey=sharey)


@checks.arguments
def panels(
    sheet: FigureBase, columns: int, rows: int = 1, *, sharey: bool | Literal["row"] = True
) -> np.ndarray:
    """Adds panels in the common style to a figure, or to a part of one.

    Args:
        sheet: the figure or subfigure.
        columns, rows, sharey: as in `figure`.

    Returns:
        The panels, `[rows * columns]`, row by row.

    Raises:
        ValueError: if there are no panels, or `sharey` is unknown.
    """
    if not isinstance(sharey, bool | np.bool_) and sharey != "row":
        raise ValueError(f"panels: sharey = {sharey!r}; expected True, False or 'row'")
    columns, rows = (
        checks.positive_int("panels: columns", columns),
        checks.positive_int("panels: rows", rows),
    )
    style: dict[Any, Any] = {
        "font.size": 10,
        "axes.grid": True,
        "grid.alpha": 0.3,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with mpl.rc_context(style):
        return sheet.subplots(rows, columns, squeeze=False, sharey=sharey).ravel()


@checks.arguments
def plain_log(axis: Axis) -> None:
    """Formats a logarithmic axis with a few plain numbers: 0.1, 0.3, 1, ...

    Args:
        axis: `axes.xaxis` or `axes.yaxis`.
    """
    axis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())
